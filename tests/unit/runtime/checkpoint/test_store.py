"""Checkpoints are whole or absent, and a job resumes from the newest whole one."""

import errno
import io
import multiprocessing
import os
import random
import signal
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.memory_group import MemoryGroup, Table, run_threads
from support.ranks import ranks_ended

import ringtrain
from ringtrain.checkpoint import Checkpoints, Saved, ShardedCheckpoints, owner
from ringtrain.checkpoint.format import read_state
from ringtrain.checkpoint.owner import LOCK
from ringtrain.checkpoint.store import Stage
from ringtrain.errors import CheckpointError, ConfigurationError

STATE = {
    "weights": {"dense/kernel": np.arange(600, dtype=np.float32).reshape(20, 30), "scale": np.array(2.5)},
    "half": [np.ones(3, ml_dtypes.bfloat16), np.zeros((0, 4), np.float16)],
    "fortran": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
    "epoch": 3,
    "rate": 0.1,
    "name": "digits",
    "flags": [True, None],
}


def _alone(directory: Path, **settings: Any) -> Checkpoints:
    return Checkpoints(directory, group=MemoryGroup(Table(1), 0), **settings)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
    return bool(left == right)


def _names(directory: Path) -> list[str]:
    """Of what is in it, but for the lock of who writes there."""
    return sorted(path.name for path in directory.iterdir() if path.name != LOCK)


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    """Arrays of every kind, numbers, strings, booleans and None come back as they were."""
    _alone(tmp_path).save(7, STATE)
    saved = _alone(tmp_path).latest()
    assert saved.step == 7
    assert _same(saved.state, STATE)
    assert _names(tmp_path) == ["ckpt-0000000007.npz"]


@pytest.mark.parametrize(
    "state",
    [
        {0: "a", True: 1, 2.5: (1, (2,)), None: None, (1, 2): {3, 4}, "s": frozenset({"x"})},
        {"$array": 2, "$x": {"$dict": []}},
        {"c": 1 + 2j, "nan": [float("inf")], "b": b"raw\x00", "big": 2**100, "empty": ((), [], {})},
        {"scalar": [np.float32(1.5), np.complex64(1j), np.bool_(True), ml_dtypes.bfloat16(2)]},
        {"numpy": np.random.RandomState(3).get_state(), "pcg": np.random.default_rng(3).bit_generator.state},
        {"python": random.Random(3).getstate()},
        OrderedDict(b=1, a=OrderedDict()),
    ],
    ids=["keys", "reserved-keys", "values", "scalars", "generators-numpy", "generators-python", "ordered"],
)
def test_whatever_is_nested_comes_back_as_it_was(tmp_path: Path, state: Any) -> None:
    """With its types: keys that are no texts, tuples, sets, numbers of every kind."""
    _alone(tmp_path).save(7, {"state": state})
    saved = _alone(tmp_path).latest()
    assert repr(saved.state["state"]) == repr(state)


def test_foreign_byte_order_is_stored_as_native(tmp_path: Path) -> None:
    """The values are what counts."""
    _alone(tmp_path).save(1, {"a": np.arange(3, dtype=">f4")})
    saved = _alone(tmp_path).latest()
    assert _same(saved.state, {"a": np.arange(3, dtype=np.float32)})


def test_the_file_is_plain_numpy(tmp_path: Path) -> None:
    """`numpy.load` without pickle reads the arrays."""
    _alone(tmp_path).save(7, STATE)
    with np.load(tmp_path / "ckpt-0000000007.npz", allow_pickle=False) as arrays:
        assert arrays["00000-weights.dense:kernel"].tolist() == STATE["weights"]["dense/kernel"].tolist()


def test_equal_states_give_equal_files(tmp_path: Path) -> None:
    """No time and no address is in the file."""
    for name in ("a", "b"):
        _alone(tmp_path / name).save(7, STATE)
    first, second = ((tmp_path / name / "ckpt-0000000007.npz").read_bytes() for name in ("a", "b"))
    assert first == second


def test_without_checkpoints_there_is_nothing_to_resume(tmp_path: Path) -> None:
    """An empty directory, and one that does not exist yet."""
    assert _alone(tmp_path).latest() is None
    assert _alone(tmp_path / "new").latest() is None


def test_only_the_latest_are_kept(tmp_path: Path) -> None:
    """`keep` checkpoints stay, by step; other files in the directory are left alone."""
    (tmp_path / "notes.txt").touch()
    checkpoints = _alone(tmp_path, keep=2)
    for step in (5, 10, 15, 20):
        checkpoints.save(step, {"step": step})
    assert _names(tmp_path) == ["ckpt-0000000015.npz", "ckpt-0000000020.npz", "notes.txt"]


def test_a_save_before_the_latest_step_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a training that begins anew in a folder that has another one's checkpoints; the latest stays the latest."""
    _alone(tmp_path).save(10, {"training": "first"})
    second = _alone(tmp_path, keep=2)
    for step in (1, 2):
        second.save(step, {"training": "second"})
    told = f"step 1 is saved into {tmp_path}, which already has step 10: latest() returns the higher step"
    assert [text.startswith(told) for text in caplog.messages] == [True]
    assert (found := _alone(tmp_path).latest()) is not None
    assert found.state == {"training": "first"}
    caplog.clear()
    for step in (10, 11):
        _alone(tmp_path).save(step, {"training": "first"})
    assert caplog.messages == []


def _cuts(size: int) -> list[int]:
    """Around the beginning and end of the file, and evenly through it."""
    return sorted({*range(0, 80, 9), *range(0, size, size // 40), *range(size - 80, size)})


def test_a_truncated_newest_falls_back_to_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the newest file is cut at any byte, the checkpoint before it is used, and the log says so."""
    checkpoints = _alone(tmp_path)
    checkpoints.save(1, STATE | {"epoch": 1})
    checkpoints.save(2, STATE | {"epoch": 2})
    newest = tmp_path / "ckpt-0000000002.npz"
    whole = newest.read_bytes()
    for cut in _cuts(len(whole)):
        newest.write_bytes(whole[:cut])
        caplog.clear()
        saved = checkpoints.latest()
        assert saved.step == 1, f"cut at {cut}"
        assert saved.state["epoch"] == 1
        assert f"{newest} is damaged" in caplog.text
        assert "resuming from" in caplog.text
        assert _names(tmp_path) == ["ckpt-0000000001.npz", "ckpt-0000000002.npz.damaged"]


class _RefusedPath(type(Path())):  # type: ignore[misc]
    """A file whose bytes from `refused_from` on its disk refuses, as a file server does that is away."""

    refused_from = 0

    def open(self, *_: Any, **__: Any) -> Any:
        return io.BufferedReader(_Refused(io.FileIO(str(self)), self.refused_from), 16)


class _Refused(io.RawIOBase):
    def __init__(self, file: io.FileIO, refused_from: int) -> None:
        self._file = file
        self._refused_from = refused_from

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        left = self._refused_from - self._file.tell()
        if left <= 0:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self._file.readinto(memoryview(buffer)[:left])


def test_a_disk_that_refuses_is_no_damage(tmp_path: Path) -> None:
    """A read error at any byte raises OSError; the whole checkpoint is neither set aside nor called damaged."""
    _alone(tmp_path).save(7, STATE)
    path = _RefusedPath(tmp_path / "ckpt-0000000007.npz")
    for cut in _cuts(path.stat().st_size):
        path.refused_from = cut
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            read_state(path)


@pytest.mark.slow
def test_a_flipped_bit_is_never_believed(tmp_path: Path) -> None:
    """After a change of any byte, the state that is read is the one that was written, or the checkpoint before."""
    checkpoints = _alone(tmp_path)
    checkpoints.save(1, {"x": np.zeros(4)})
    checkpoints.save(2, {"x": np.arange(40.0), "epoch": 5})
    newest = tmp_path / "ckpt-0000000002.npz"
    whole = newest.read_bytes()
    fell_back = 0
    for place in range(0, len(whole), 3):
        newest.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        saved = checkpoints.latest()
        fell_back += saved.step == 1
        assert saved.step == 1 or _same(saved.state, {"x": np.arange(40.0), "epoch": 5}), f"byte {place}"
    assert fell_back > len(whole) // 6


def test_a_damaged_newest_does_not_push_out_a_whole_one(tmp_path: Path) -> None:
    """After the fallback, keeping 1 keeps what was saved last, though the damaged one had a higher step."""
    checkpoints = _alone(tmp_path, keep=1)
    checkpoints.save(10, {"x": 1})
    (tmp_path / "ckpt-0000000020.npz").write_bytes(b"half")
    assert checkpoints.latest() is not None
    checkpoints.save(15, {"x": 2})
    assert _names(tmp_path) == ["ckpt-0000000015.npz", "ckpt-0000000020.npz.damaged"]
    (tmp_path / "ckpt-0000000025.npz.damaged").touch()
    checkpoints.save(25, {"x": 3})
    assert _names(tmp_path) == ["ckpt-0000000025.npz", "ckpt-0000000025.npz.damaged"]


def test_if_all_are_damaged_the_job_does_not_start_over_in_silence(tmp_path: Path) -> None:
    """The error names every file and stays until somebody acts."""
    for step in (1, 2):
        (tmp_path / f"ckpt-000000000{step}.npz").write_bytes(b"half")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged: .*02\.npz.*01\.npz.*start over"):
            _alone(tmp_path).latest()


def test_a_save_in_the_background_lets_training_go_on(tmp_path: Path) -> None:
    """save() returns while the file is being written; the next call waits for it, and sees it."""
    allowed = threading.Event()
    checkpoints = _alone(tmp_path, on_stage=lambda stage: allowed.wait(60) and None)
    checkpoints.save(1, STATE, background=True)
    assert _names(tmp_path) in ([], [f"ckpt-0000000001.npz.{os.getpid()}.tmp"])
    allowed.set()
    saved = checkpoints.latest()
    assert _same(saved.state, STATE)
    assert not any(thread.name == "ringtrain-checkpoint" for thread in threading.enumerate())


def test_a_failed_save_in_the_background_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged at once and raised by the next call; after that saving goes on."""
    (tmp_path / "below").touch()
    checkpoints = _alone(tmp_path / "below")
    checkpoints.save(1, STATE, background=True)
    with pytest.raises(CheckpointError, match=r"ckpt-0000000001.npz cannot be written"):
        checkpoints.finish()
    assert "ckpt-0000000001.npz cannot be written" in caplog.text
    (tmp_path / "below").unlink()
    checkpoints.save(2, STATE, background=True)
    checkpoints.finish()
    assert _names(tmp_path / "below") == ["ckpt-0000000002.npz"]


class Stopped(Exception):
    """The scripted fault."""


@pytest.mark.parametrize("stage", ["written", "synced", "renamed"])
def test_a_failure_while_saving_leaves_a_whole_checkpoint(tmp_path: Path, stage: Stage) -> None:
    """Before the rename the old one counts, after it the new one; nothing half-written stays."""

    def stop(reached: Stage) -> None:
        if reached == stage:
            raise Stopped

    _alone(tmp_path).save(1, {"x": 1})
    with pytest.raises(Stopped):
        _alone(tmp_path, on_stage=stop).save(2, {"x": 2})
    saved = _alone(tmp_path).latest()
    assert saved.state == {"x": 2 if stage == "renamed" else 1}
    assert not list(tmp_path.glob("*.tmp"))


def _die_at(directory: str, stage: Stage) -> None:
    def die(reached: Stage) -> None:
        if reached == stage:
            os.kill(os.getpid(), signal.SIGKILL)

    _alone(Path(directory), on_stage=die).save(2, {"x": 2})


@pytest.mark.parametrize("stage", ["written", "synced", "renamed"])
def test_a_process_killed_while_saving_leaves_a_whole_checkpoint(tmp_path: Path, stage: Stage) -> None:
    """SIGKILL between write, rename and directory sync; the next save cleans up."""
    _alone(tmp_path).save(1, {"x": 1})
    (outcome,) = ranks_ended(_die_at, 1, str(tmp_path), stage)
    assert outcome.exit_code == -signal.SIGKILL
    saved = _alone(tmp_path).latest()
    assert saved.state == {"x": 2 if stage == "renamed" else 1}
    _alone(tmp_path).save(3, {"x": 3})
    assert not list(tmp_path.glob("*.tmp"))


def test_all_ranks_resume_from_what_rank_0_read(tmp_path: Path) -> None:
    """Ranks that see an empty directory get rank 0's state; only rank 0 writes."""

    def save_and_resume(group: MemoryGroup) -> Saved | None:
        checkpoints = Checkpoints(tmp_path / str(group.rank), group=group)
        checkpoints.save(4, STATE if group.rank == 0 else {})
        return checkpoints.latest()

    for saved in run_threads(save_and_resume, 3):
        assert saved.step == 4
        assert _same(saved.state, STATE)
    assert _names(tmp_path) == ["0"]


def test_all_ranks_learn_that_no_checkpoint_can_be_read(tmp_path: Path) -> None:
    """Rank 0's error is every rank's error: nobody starts over alone."""
    (tmp_path / "ckpt-0000000001.npz").write_bytes(b"half")

    def resume(group: MemoryGroup) -> str:
        with pytest.raises(CheckpointError) as error:
            Checkpoints(tmp_path, group=group).latest()
        return str(error.value)

    first, second = run_threads(resume, 2)
    assert first == second
    assert "is damaged" in first


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error names the file and the way out."""
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"checkpoint .*ckpt-0000000001.npz cannot be written: .*; check the"):
        _alone(tmp_path / "file" / "below").save(1, {})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b": object}}, "checkpoint: a.b is type <class 'object'>; expected dicts"),
        ({"a": [np.datetime64("2020-01-01")]}, "checkpoint: a.0 is datetime64 "),
        ({"a": np.array([{}])}, "checkpoint: a is ndarray array([{}], dtype=object); expected"),
        ({"a": np.array(["b"])}, "checkpoint: a is ndarray array(['b'], dtype='<U1'); expected"),
        ({"a": np.ma.array([1, 2], mask=[0, 1])}, "checkpoint: a is MaskedArray "),
        ({"a": np.zeros(1, "i4,f4")}, "checkpoint: a is ndarray array([(0, 0.)], dtype="),
        ({"a": np.zeros(1, ml_dtypes.float8_e4m3)}, "checkpoint: a is ndarray array([0], dtype="),
        ({"a": np.zeros(1, ml_dtypes.float8_e5m2)}, "checkpoint: a is ndarray array([0], dtype="),
        ({"a": ml_dtypes.float8_e5m2(0)}, "checkpoint: a is float8_e5m2 "),
    ],
    ids=[
        "class",
        "date",
        "object-array",
        "string-array",
        "masked-array",
        "structured-array",
        "float8",
        "float8-of-a-floats-kind",
        "scalar-float8",
    ],
)
def test_what_cannot_be_read_back_safely_is_not_written(tmp_path: Path, state: dict[str, Any], message: str) -> None:
    """The error names the place in the state; no file is left."""
    with pytest.raises(ConfigurationError) as error:
        _alone(tmp_path).save(1, state)
    assert message in str(error.value)
    assert _names(tmp_path) == []


def test_a_step_may_be_numpys(tmp_path: Path) -> None:
    """On a claim and below a URI."""
    group = MemoryGroup(Table(1), 0)
    for checkpoints in (Checkpoints(tmp_path, group=group), ShardedCheckpoints(f"file://{tmp_path}", group=group)):
        checkpoints.save(np.int64(7), STATE)
        saved = checkpoints.latest()
        assert saved.step == 7


def test_keeping_none_and_negative_steps_are_refused(tmp_path: Path) -> None:
    """The error names the argument and its value."""
    with pytest.raises(ConfigurationError, match="keep is 0; expected at least 1"):
        _alone(tmp_path, keep=0)
    for step in (-1, 1.5, True, "3", None):
        with pytest.raises(ConfigurationError, match=f"step is {step!r} .*; expected a whole number of at least 0"):
            _alone(tmp_path).save(step, {})
    assert _names(tmp_path) == []


def _writes_until_told(folder: str, ready: Any, told: Any) -> None:
    checkpoints = _alone(Path(folder))
    checkpoints.save(1, {"x": 1})
    ready.set()
    told.wait(60)
    del checkpoints  # until now it has the folder


def test_who_comes_second_into_a_folder_is_told_who_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the first one's is touched, and when it has ended the folder is free."""
    monkeypatch.setattr(owner, "_WAITS_S", 0.2)
    context = multiprocessing.get_context("fork")
    ready, told = context.Event(), context.Event()
    first = context.Process(target=_writes_until_told, args=(str(tmp_path), ready, told))
    first.start()
    assert ready.wait(60)
    before = (tmp_path / "ckpt-0000000001.npz").read_bytes()
    second = _alone(tmp_path, keep=1)
    told_who = f"^process {first.pid} on .* writes its checkpoints into .*, or end that process$"
    with pytest.raises(CheckpointError, match=told_who):
        second.save(9, {"x": 9})
    assert _names(tmp_path) == ["ckpt-0000000001.npz"]
    assert (tmp_path / "ckpt-0000000001.npz").read_bytes() == before
    told.set()
    first.join(60)
    second.save(9, {"x": 9})
    assert _names(tmp_path) == ["ckpt-0000000009.npz"]


def test_who_leaves_the_world_gives_the_folder_up(tmp_path: Path) -> None:
    """In an elastic world that goes on another process may be rank 0."""
    ringtrain.init()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": 1})
    ringtrain.shutdown()
    context = multiprocessing.get_context("fork")
    ready, told = context.Event(), context.Event()
    told.set()
    other = context.Process(target=_writes_until_told, args=(str(tmp_path), ready, told))
    other.start()
    other.join(60)
    assert other.exitcode == 0


def test_a_checkpoint_under_another_steps_name_is_damaged(tmp_path: Path) -> None:
    checkpoints = _alone(tmp_path)
    checkpoints.save(1, {"x": 1})
    (tmp_path / "ckpt-0000000001.npz").rename(tmp_path / "ckpt-0000000007.npz")
    with pytest.raises(CheckpointError, match="its name is that of step 7, but it contains step 1"):
        checkpoints.latest()


@pytest.mark.parametrize("below", [".", "folder"])
def test_a_place_that_is_a_file_is_no_fresh_start(tmp_path: Path, below: str) -> None:
    file = tmp_path / "results"
    file.touch()
    with pytest.raises(CheckpointError, match=r"is not a directory: .*results is a file"):
        _alone(file / below).latest()


def test_a_state_that_has_no_end_gets_words(tmp_path: Path) -> None:
    itself: dict[str, Any] = {}
    itself["again"] = itself
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for state in (itself, {"deep": deep}):
        with pytest.raises(ConfigurationError, match="contains itself, or is nested"):
            _alone(tmp_path).save(1, state)
