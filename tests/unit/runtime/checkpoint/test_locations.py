"""Jobs that share a claim, and attempts of a job, have folders of their own and say what they begin with."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.memory_group import MemoryGroup, Table

from ringtrain.checkpoint import Checkpoints, Saved, attempt_directory, readable_directories
from ringtrain.errors import CheckpointError

OLD = "11111111-1111-1111-1111-111111111111"
NEW = "22222222-2222-2222-2222-222222222222"


class Attempt:
    """An attempt of job `name` with `uid`, whose rank 0 (the only one) trains on `claim`."""

    def __init__(self, claim: Path, name: str, number: int, uid: str = OLD, restore_from: str = "") -> None:
        self.directory = claim / f"{name}-{uid}"
        self._number, self._restore_from = number, restore_from

    def save(self, *steps: int, keep: int = 3, below: str = "", background: bool = False) -> None:
        """Save the checkpoints of `steps`."""
        with self._entered():
            checkpoints = self._checkpoints(keep, below)
            for step in steps:
                checkpoints.save(step, {"by": self._number}, background=background)
            checkpoints.finish()

    def latest(self, below: str = "") -> Saved | None:
        """Return the checkpoint that this attempt would continue from."""
        with self._entered():
            return self._checkpoints(3, below).latest()

    def locations(self) -> tuple[Path | None, tuple[Path, ...]]:
        """Return the directory in which a script may write its own files, and those in which it may read."""
        with self._entered():
            return attempt_directory(), readable_directories()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as variables:
            variables.setenv("RINGTRAIN_CHECKPOINT_DIR", str(self.directory))
            variables.setenv("RINGTRAIN_ATTEMPT", str(self._number))
            variables.setenv("RINGTRAIN_RESTORE_FROM", self._restore_from)
            yield

    def _checkpoints(self, keep: int, below: str) -> Checkpoints:
        return Checkpoints(self.directory / below, keep=keep, group=MemoryGroup(Table(1), 0))


def files(directory: Path) -> list[str]:
    """Checkpoints in `directory`, as attempt/step."""
    return sorted(f"{path.parent.name}/{int(path.stem[5:])}" for path in directory.glob("attempt-*/ckpt-*.npz"))


def test_a_job_does_not_see_what_another_left_on_the_claim(tmp_path: Path) -> None:
    """Nor a job that was deleted and made anew under the same name: both begin at 0."""
    Attempt(tmp_path, "a", 1).save(140)
    assert Attempt(tmp_path, "b", 1).latest() is None
    assert Attempt(tmp_path, "a", 1, uid=NEW).latest() is None
    assert Attempt(tmp_path, "a", 2).latest() is not None


@pytest.mark.parametrize("named", ["a", f"a-{OLD}"], ids=["job", "folder"])
def test_a_job_begins_with_anothers_when_it_says_so(tmp_path: Path, named: str) -> None:
    """With its newest attempt's, until it has one of its own; the other's files stay as they are."""
    Attempt(tmp_path, "a", 1).save(100, 140)
    Attempt(tmp_path, "a", 2).save(120)
    Attempt(tmp_path, "a-b", 1).save(7)  # whose name begins alike
    damaged = tmp_path / f"a-{OLD}" / "attempt-0002" / "ckpt-0000000130.npz"
    damaged.write_bytes(b"half")
    before = sorted(tmp_path.rglob("*"))
    b = Attempt(tmp_path, "b", 1, restore_from=named)
    saved = b.latest()
    assert (saved.step, saved.state) == (120, {"by": 2})
    assert sorted(tmp_path.rglob("*")) == before
    b.save(3, keep=1)
    again = Attempt(tmp_path, "b", 2, restore_from=named).latest()
    assert again.step == 3
    assert damaged.exists()


def test_a_folder_made_by_hand_can_be_begun_with(tmp_path: Path) -> None:
    """Checkpoints that lie in it without an attempt are read, too, and so is a folder below."""
    Attempt(tmp_path, "a", 1).save(5, below="model")
    (tmp_path / f"a-{OLD}/model/attempt-0001").rename(tmp_path / "moved")
    (tmp_path / f"a-{OLD}/model").rmdir()
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "moved").rename(tmp_path / "pretrained" / "model")
    saved = Attempt(tmp_path, "b", 1, restore_from="pretrained").latest(below="model")
    assert saved.step == 5


def test_whom_nobody_knows(tmp_path: Path) -> None:
    """The error names what is there."""
    Attempt(tmp_path, "a", 1).save(1)
    with pytest.raises(CheckpointError, match=rf"restoreFrom is 'x': 0 jobs .* there are a-{OLD}"):
        Attempt(tmp_path, "b", 1, restore_from="x").latest()


def test_several_of_one_name(tmp_path: Path) -> None:
    """None is guessed; the error names the folders."""
    for uid in (OLD, NEW):
        Attempt(tmp_path, "a", 1, uid=uid).save(1)
    with pytest.raises(CheckpointError, match=rf"2 jobs .*a-{OLD}, a-{NEW}.*set checkpoint.restoreFrom to one of them"):
        Attempt(tmp_path, "b", 1, restore_from="a").latest()
    mine = Attempt(tmp_path, "a", 1, uid=NEW, restore_from="a").latest()
    assert mine is not None  # its own


def test_whoever_has_left_none(tmp_path: Path) -> None:
    """A job that is to begin with another's checkpoint does not begin without one in silence."""
    (tmp_path / f"a-{OLD}").mkdir()
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        Attempt(tmp_path, "b", 1, restore_from="a").latest()


def test_the_newest_attempt_counts_not_the_highest_step(tmp_path: Path) -> None:
    """A gang that still runs behind a broken network goes on writing, in vain."""
    first, second, third = (Attempt(tmp_path, "a", number) for number in (1, 2, 3))
    first.save(100)
    second.save(110)
    first.save(200, 210, 220, 230, keep=1)
    saved = third.latest()
    assert (saved.step, saved.state) == (110, {"by": 2})


@pytest.mark.parametrize("background", [False, True], ids=["", "background"])
def test_an_attempt_removes_another_attempts_only_once_it_has_its_own(tmp_path: Path, background: bool) -> None:
    """Until then the earlier attempt's newest stays, and no earlier attempt ever removes a later one's."""
    first, second = Attempt(tmp_path, "a", 1), Attempt(tmp_path, "a", 2)
    first.save(1, 2, 3)
    assert second.latest() is not None
    assert files(first.directory) == ["attempt-0001/1", "attempt-0001/2", "attempt-0001/3"]
    second.save(4, background=background)
    assert files(first.directory) == ["attempt-0001/2", "attempt-0001/3", "attempt-0002/4"]
    first.save(9, keep=1)
    assert files(first.directory) == ["attempt-0001/9", "attempt-0002/4"]
    second.save(5, keep=1)
    assert files(first.directory) == ["attempt-0002/5"]
    assert [path.name for path in first.directory.iterdir()] == ["attempt-0002"]


def test_a_damaged_newest_of_an_earlier_attempt(tmp_path: Path) -> None:
    """The one before it is used, in whatever attempt that is."""
    Attempt(tmp_path, "a", 1).save(1)
    Attempt(tmp_path, "a", 2).save(2)
    (tmp_path / f"a-{OLD}/attempt-0002/ckpt-0000000002.npz").write_bytes(b"half")
    saved = Attempt(tmp_path, "a", 3).latest()
    assert saved.step == 1


def test_files_of_a_scripts_own_format(tmp_path: Path) -> None:
    """It writes into its attempt's folder and looks at the newest attempt's first, then at the named job's."""
    Attempt(tmp_path, "a", 1).locations()
    Attempt(tmp_path, "b", 1).locations()
    own, readable = Attempt(tmp_path, "b", 2, restore_from="a").locations()
    b, a = tmp_path / f"b-{OLD}", tmp_path / f"a-{OLD}"
    assert own == b / "attempt-0002"
    assert own.is_dir()
    assert readable == (b / "attempt-0002", b / "attempt-0001", b, a / "attempt-0001", a)


def test_a_directory_outside_the_jobs_is_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that the user names gets plain files."""
    monkeypatch.setenv("RINGTRAIN_CHECKPOINT_DIR", str(tmp_path / "job"))
    monkeypatch.setenv("RINGTRAIN_ATTEMPT", "2")
    Checkpoints(tmp_path / "mine", group=MemoryGroup(Table(1), 0)).save(1, {})
    assert [path.name for path in (tmp_path / "mine").glob("ckpt-*")] == ["ckpt-0000000001.npz"]


def test_the_launcher_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From which step and file training goes on, and when it begins without one."""
    read, write = os.pipe()
    monkeypatch.setenv("RINGTRAIN_REPORT_FD", str(write))
    job = Attempt(tmp_path, "a", 1)
    assert job.latest() is None
    job.save(7)
    saved = job.latest()
    none, seven = map(json.loads, os.read(read, 1 << 16).splitlines())
    assert (none["step"], none["startedFrom"]) == (0, "")
    assert (seven["step"], seven["startedFrom"]) == (7, str(saved.path)[-300:])
    os.close(read)
    os.close(write)
