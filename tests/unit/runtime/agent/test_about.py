"""Description of a run: entries of ranks and agents, and the stored document."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import completed

from ringtrain.errors import ConfigurationError
from ringtrain.run_config import report_config
from ringtrain.shared.masking import shown_command
from ringtrain_job.agent.commit import agent_commit_of
from ringtrain_job.logs.about import AboutFile, read_about, read_run_description
from ringtrain_job.logs.layout import AttemptFiles


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The read end of this rank's report pipe."""
    read, write = os.pipe()
    monkeypatch.setenv("RINGTRAIN_REPORT_FD", str(write))
    yield read
    os.close(read)
    os.close(write)


def reported(pipe: int) -> dict[str, Any]:
    """The configuration in the lines that are there."""
    found: dict[str, Any] = {}
    with contextlib.suppress(BlockingIOError):
        os.set_blocking(pipe, False)
        for line in os.read(pipe, 1 << 20).splitlines():
            found |= json.loads(line)["about"].get("config", {})
    return found


def test_a_configuration_is_flat_and_without_secrets(pipe: int) -> None:
    """Nested names get dots; scalars of numpy and paths are plain; what names a secret is masked if it is text."""
    report_config(
        {
            "lr": np.float64(0.1), "steps": np.int64(3), "data": Path("/data"), "none": None, "on": True,
            "optimizer": {"name": "sgd", "betas": (0.9, 0.99)}, "layers": [{"size": 3}, {"size": 4}],
            "best": float("inf"), "tokenizer": "gpt2", "max_tokens": 512, "key_dim": 64,
            "hf_token": "x1", "apiKey": "x2", "db": {"password": "x3"}, "AWS_SECRET_ACCESS_KEY": "x4",
            "store": "https://user:x5@host/path",
        }
    )  # fmt: skip
    assert reported(pipe) == {
        "lr": 0.1, "steps": 3, "data": "/data", "none": None, "on": True, "optimizer.name": "sgd",
        "optimizer.betas": "[0.9, 0.99]", "layers.0.size": 3, "layers.1.size": 4, "best": "inf",
        "tokenizer": "gpt2", "max_tokens": 512, "key_dim": 64, "hf_token": "***", "apiKey": "***",
        "db.password": "***", "AWS_SECRET_ACCESS_KEY": "***", "store": "https://user:***@host/path",
    }  # fmt: skip


def test_a_large_configuration_comes_in_parts(pipe: int) -> None:
    """A pipe takes 4 KiB at once."""
    many = {f"layer{index}": "x" * 100 for index in range(200)}
    report_config(many)
    assert reported(pipe) == many


LOOP: dict[str, Any] = {}
LOOP["again"] = LOOP
WRONG = {
    "no-dict": ([1], "expected a dict, got list"),
    "object": ({"a": {"b": object()}}, "a.b is a object; expected a number, string"),
    "array": ({"a": np.zeros(2)}, "a is a ndarray; expected a number, string"),
    "large": ({"a": {str(index): "x" * 300 for index in range(200)}}, "bytes as JSON; expected at most 32768"),
    "loop": (LOOP, "config contains itself"),
}


@pytest.mark.parametrize(("config", "says"), WRONG.values(), ids=WRONG)
def test_what_is_no_configuration(config: Any, says: str, pipe: int) -> None:
    """The error names what is wrong, and where."""
    with pytest.raises(ConfigurationError, match=says):
        report_config(config)


def test_a_command_is_shown_without_secrets() -> None:
    """Secrets are hidden in every form in which a command line can contain them; other words are unchanged."""
    given = "env HF_TOKEN=a train.py --api-key b --token=c --key-file --lr 0.1 --tokenizer gpt2 s3://u:d@h"
    shown = "env HF_TOKEN=*** train.py --api-key *** --token=*** --key-file --lr 0.1 --tokenizer gpt2 s3://u:***@h"
    assert " ".join(shown_command(given.split())) == shown
    counts = "--max_tokens=512 --num-tokens 1024 keys=3"
    assert " ".join(shown_command(counts.split())) == counts
    assert (
        " ".join(shown_command(["--token", "512", "--tokens", "a1", "--api-keys=x"]))
        == "--token *** --tokens *** --api-keys=***"
    )
    assert list(shown_command(["sh", "-c", "PASSWORD='a b' run"])) == ["sh", "-c", "PASSWORD=*** run"]


def test_the_commit_is_read_from_gits_files(tmp_path: Path) -> None:
    """The commit is found for a branch, packed or not, for a detached HEAD, and in a linked worktree; otherwise it is
    empty."""

    def git(*words: str) -> str:
        own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = completed(["git", *who, *words], cwd=tmp_path, env={**os.environ, **own}, check=True)
        return done.stdout.strip()

    assert agent_commit_of(tmp_path) == ""
    git("init", "-q")
    assert agent_commit_of(tmp_path) == ""
    git("commit", "-q", "--allow-empty", "-m", "one")
    head = git("rev-parse", "HEAD")
    git("worktree", "add", "-q", "linked")
    (tmp_path / "inner").mkdir()
    assert {agent_commit_of(tmp_path / "inner"), agent_commit_of(tmp_path / "linked")} == {head}
    git("pack-refs", "--all")
    assert {agent_commit_of(tmp_path), agent_commit_of(tmp_path / "linked")} == {head}
    git("checkout", "-q", "--detach")
    assert agent_commit_of(tmp_path) == head


def test_of_several_ranks_the_lowest_counts(tmp_path: Path) -> None:
    """Entries of the lowest rank count, no matter which rank is first, and later entries are added; the document
    survives a restart of the launcher."""
    files = AttemptFiles(tmp_path)
    about = AboutFile(files, {"image": "train:1"})
    about.add(3, {"config": {"lr": 3}})
    about.add(1, {"config": {"lr": 1}})
    about.add(2, {"config": {"lr": 2}})
    about.add(1, {"config": {"seed": 7}})
    assert read_run_description(files) == {"image": "train:1", "config": {"lr": 1, "seed": 7}}
    assert AboutFile(files, {}).document == about.document


def test_no_rank_knows_the_image_better_than_the_kubelet(tmp_path: Path) -> None:
    """Entries of the operator override those of ranks, whether earlier or later, and survive a restart of the
    launcher."""
    files = AttemptFiles(tmp_path)
    about = AboutFile(files, {"image": "train:1"})
    about.add(0, {"imageID": "train@sha256:aa", "commit": "c"})
    about.override({"image": "reg/train:1", "imageID": "reg/train@sha256:bb"})
    about.add(0, {"imageID": "train@sha256:cc"})
    expected = {"image": "reg/train:1", "imageID": "reg/train@sha256:bb", "commit": "c"}
    assert read_run_description(files) == about.document == expected


@pytest.mark.parametrize("wrong", [None, 3, {}, {"command": "x"}, {"config": [1]}, {"directory": 4}])
def test_what_says_nothing(wrong: object) -> None:
    """Ranks may write anything to their pipe."""
    assert read_about(wrong) is None
