"""Addresses that are too long for environment variables travel in a file."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ringtrain._core.world.config import WorkerConfig
from ringtrain.errors import ConfigurationError
from ringtrain_job.agent.world_file import MOST_BYTES, WorldFiles
from ringtrain_job.control.model import Member, World

MANY = 8000
ADDRESSES = tuple(f"10.0.{rank // 250}.{rank % 250}:7400" for rank in range(MANY))


def world(size: int, formation: int = 0) -> World:
    members = tuple(Member(slot, 1) for slot in range(size)) if formation else ()
    return World(2, ADDRESSES[:size], ADDRESSES[:size], "h0", 7390, formation, members)


def variables(size: int, rank: int = 1) -> dict[str, str]:
    task = {"cluster": {"worker": list(ADDRESSES[:size])}, "task": {"type": "worker", "index": rank}}
    return {
        "RINGTRAIN_RANK": str(rank),
        "RINGTRAIN_SIZE": str(size),
        "RINGTRAIN_RING_ADDRESSES": ",".join(ADDRESSES[:size]),
        "TF_CONFIG": json.dumps(task),
    }


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorldFiles]:
    """An agent's files, in a temporary directory; nothing of them is there after the agent."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ExitStack() as stack:
        yield WorldFiles(stack)
    assert not list(tmp_path.iterdir())


def test_a_small_world_keeps_its_variables(files: WorldFiles) -> None:
    """The variables do not change, and no file is written."""
    assert files.fitted(variables(100), world(100)) == variables(100)


@pytest.mark.slow
def test_what_is_too_long_alone_gives_way(files: WorldFiles) -> None:
    """TF_CONFIG is longer than the list of addresses, which stays where it fits; ranks find the same world."""
    size = next(n for n in range(1, MANY) if len(variables(n)["TF_CONFIG"]) > MOST_BYTES)
    fitted = files.fitted(variables(size), world(size))
    assert fitted["RINGTRAIN_RING_ADDRESSES"] == variables(size)["RINGTRAIN_RING_ADDRESSES"]
    assert len(fitted["TF_CONFIG"]) < 1000
    assert WorkerConfig.from_env(fitted) == WorkerConfig.from_env(variables(size))


def test_a_rank_finds_a_large_world_in_the_file(files: WorldFiles) -> None:
    """The configuration is that of the same world in variables."""
    fitted = files.fitted(variables(MANY), world(MANY))
    assert max(len(value) for value in fitted.values()) < 1000
    assert WorkerConfig.from_env(fitted) == WorkerConfig.from_env(variables(MANY))
    assert json.loads(Path(fitted["RINGTRAIN_WORLD_FILE"]).read_bytes())["tfAddresses"] == list(ADDRESSES)


def test_files_of_earlier_formations_are_removed(files: WorldFiles) -> None:
    """The ranks of a pod read one file; the file of the previous generation stays for ranks that still read it."""
    paths = [Path(files.fitted(variables(MANY), world(MANY, n))["RINGTRAIN_WORLD_FILE"]) for n in (1, 1, 2, 3)]
    assert paths[0] == paths[1]
    assert [path.exists() for path in paths] == [False, False, True, True]


def test_a_formation_that_fits_again_is_found(files: WorldFiles) -> None:
    """A rank adds the variables of each generation to its environment; files of earlier generations are ignored."""
    own = files.fitted(variables(MANY), world(MANY, 1)) | files.fitted(variables(3), world(3, 2))
    assert WorkerConfig.from_env(own).addresses == ADDRESSES[:3]
    own |= files.fitted(variables(MANY), world(MANY, 3))
    assert WorkerConfig.from_env(own).addresses == ADDRESSES


def test_a_directory_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message contains the purpose and a solution."""
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with (
        ExitStack() as stack,
        pytest.raises(ConfigurationError, match=r"addresses of 8000 ranks .* make /tmp writable"),
    ):
        WorldFiles(stack).fitted(variables(MANY), world(MANY))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file or directory"),
        ("{", "not JSON"),
        ("[]", "its version is None"),
        ('{"version": 2}', "its version is 2; expected an object of version 1"),
        ('{"version": 1}', "ringAddresses is None; expected a list"),
        ('{"version": 1, "ringAddresses": [1]}', "ringAddresses is [1]; expected a list"),
        ('{"version": 1, "ringAddresses": ["a:1"]}', "has 1 address; expected 2, one for each rank"),
        ('{"version": 1, "ringAddresses": ["a:1", "b"]}', 'rank 1: "b" is not an address'),
        ('{"version": 1, "ringAddresses": ["a:1", "a:1"]}', "has a:1 for ranks 0 and 1; give each rank a different"),
    ],
    ids=["absent", "no-json", "list", "version", "no-list", "number", "too-few", "no-address", "twice"],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: str | None, expected: str) -> None:
    """The message names the variable, the file, and what was expected."""
    path = tmp_path / "world.json"
    if content is not None:
        path.write_text(content)
    env = {"RINGTRAIN_RANK": "0", "RINGTRAIN_SIZE": "2", "RINGTRAIN_WORLD_FILE": os.fspath(path)}
    with pytest.raises(ConfigurationError) as caught:
        WorkerConfig.from_env(env)
    assert "RINGTRAIN_WORLD_FILE" in str(caught.value)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)
