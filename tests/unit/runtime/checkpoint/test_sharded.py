"""Checkpoints below a URI are whole or absent, are read in parts, and survive what happens to a store."""

import contextlib
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.commands import completed
from support.deadlines import patient
from support.memory_group import MemoryGroup, Table, run_threads
from support.objectstore import BUCKET, Proxy, Server, environment

from ringtrain.checkpoint import Checkpoints, Saved, ShardedCheckpoints
from ringtrain.errors import CheckpointError, ConfigurationError, MismatchError
from ringtrain.optim import HostOptimizer
from ringtrain.optim.rules import AdamW
from ringtrain.shared.storage import ObjectStore

STATE = {
    "weights": {"dense/kernel": np.arange(60_000, dtype=np.float32).reshape(200, 300), "scale": np.array(2.5)},
    "half": [np.ones(40_001, ml_dtypes.bfloat16), np.zeros((0, 4), np.float16)],
    "epoch": 3,
    "name": "digits",
}


@pytest.fixture
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of an empty place, of files unless the test's parameter names another kind."""
    name = tmp_path.name
    if getattr(request, "param", "file") == "s3":
        for variable, value in environment(request.getfixturevalue("s3").url).items():
            monkeypatch.setenv(variable, value)
    found = {"file": f"file://{tmp_path}", "memory": f"memory://{name}", "s3": f"s3://{BUCKET}/{name}"}
    return found[getattr(request, "param", "file")]


def _ranks(uri: str, size: int, work: Any, **settings: Any) -> list[Any]:
    def one(group: MemoryGroup) -> Any:
        with ShardedCheckpoints(uri, group=group, **settings) as checkpoints:
            return work(checkpoints, group)

    return run_threads(one, size)


def _save(uri: str, size: int, steps: range | list[int], **settings: Any) -> None:
    def work(checkpoints: ShardedCheckpoints, group: MemoryGroup) -> None:
        for step in steps:
            checkpoints.save(step, {**STATE, "step": step})

    _ranks(uri, size, work, **settings)


def _load(uri: str, size: int = 1, **settings: Any) -> Saved | None:
    found = _ranks(uri, size, lambda checkpoints, _: checkpoints.latest(), **settings)
    assert len({saved and saved.step for saved in found}) == 1
    result: Saved | None = found[-1]
    return result


def _objects(uri: str, part: str) -> list[str]:
    store = ObjectStore(uri)
    with contextlib.closing(store):
        return [name for name in store.names() if part in name]


def _change(uri: str, name: str, data: bytes | None) -> None:
    store = ObjectStore(uri)
    with contextlib.closing(store):
        if data is None:
            store.remove(name)
        else:
            store.write(name, data)


@pytest.mark.parametrize(
    ("uri", "writers", "readers"),
    [("file", 1, 3), ("file", 3, 1), ("memory", 3, 2), ("s3", 3, 2)],
    indirect=["uri"],
)
def test_any_number_of_ranks_reads_what_any_number_wrote(uri: str, writers: int, readers: int) -> None:
    """Arrays of every kind, numbers and strings come back as they were, and every rank has written a part."""
    _save(uri, writers, [7])
    saved = _load(uri, readers)
    assert saved is not None
    assert saved.step == 7
    assert (saved.state["epoch"], saved.state["name"]) == (3, "digits")
    for key, array in STATE["weights"].items():  # type: ignore[attr-defined]
        assert saved.state["weights"][key].dtype == array.dtype
        assert np.array_equal(saved.state["weights"][key], array)
    assert [half.dtype for half in saved.state["half"]] == [half.dtype for half in STATE["half"]]  # type: ignore
    assert len(_objects(uri, ".safetensors")) == writers


@pytest.mark.parametrize("uri", ["file", "s3"], indirect=True)
def test_the_latest_few_stay(uri: str) -> None:
    """Of five saves two are left, with nothing of the others."""
    _save(uri, 2, range(5), keep=2)
    assert {name.partition("-")[2][:10] for name in _objects(uri, "ckpt-")} == {"0000000003", "0000000004"}
    assert _load(uri).step == 4  # type: ignore[union-attr]
    if uri.startswith("file://"):
        assert len(list(Path(uri.removeprefix("file://")).iterdir())) == 2


def test_a_save_before_the_latest_step_is_told_once(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """By rank 0, of a training that begins anew where another one's checkpoints are."""
    _save(uri, 2, [9, 10])
    assert caplog.messages == []
    _save(uri, 2, [1, 2], keep=2)
    told = f"step 1 is saved into {uri}, which already has step 10: "
    assert [text.startswith(told) for text in caplog.messages] == [True]
    assert _load(uri).step == 10  # type: ignore[union-attr]


def test_there_may_be_none(uri: str) -> None:
    assert _load(uri, 2) is None


@pytest.mark.parametrize(
    ("uri", "damage"),
    [*(("file", damage) for damage in ("altered", "missing", "cut", "manifest")), ("s3", "missing")],
    indirect=["uri"],
)
def test_a_damaged_checkpoint_is_told_from_a_whole_one(uri: str, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """All ranks turn to the one before it, and the log names the object."""
    _save(uri, 2, [1, 2])
    part = "manifest.json" if damage == "manifest" else "rank-00001-0000.safetensors"
    name = next(name for name in _objects(uri, part) if "0000000002" in name)
    store = ObjectStore(uri)
    data = bytearray(store.read(name))
    store.close()
    data[-100] ^= 1
    _change(uri, name, {"missing": None, "cut": bytes(data[:-200])}.get(damage, bytes(data)))
    with caplog.at_level(logging.WARNING):
        saved = _load(uri, 2)
    assert saved is not None
    assert saved.step == 1
    assert name in caplog.text
    assert "trying the previous checkpoint" in caplog.text


@pytest.mark.parametrize(("place", "bytes_read"), [(5000, "0 to 4194304"), (-1, "4194304 to ")], ids=["first", "last"])
def test_a_damaged_block_is_named(tmp_path: Path, place: int, bytes_read: str) -> None:
    """Of a file of two blocks, by its first byte and the one after its last."""
    _ranks(f"file://{tmp_path}", 1, lambda checkpoints, _: checkpoints.save(1, {"big": np.zeros(3 << 18)}))
    (file,) = tmp_path.glob("*/rank-*.safetensors")
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"differs from its checksum in bytes {bytes_read}"):
        _load(f"file://{tmp_path}")


def test_a_checkpoint_that_is_removed_while_it_is_read(uri: str) -> None:
    """Another job saves on, and keeps one: its reader goes on with the newer one, and does not give up."""
    _save(uri, 2, [1], keep=1)
    began: list[int] = []

    def load(state: Any) -> None:
        if not began:
            _save(uri, 2, [2], keep=1)
        began.append(state["epoch"])
        np.asarray(state["weights"]["dense/kernel"])

    (saved,) = _ranks(uri, 1, lambda checkpoints, _: checkpoints.latest(load))
    assert (saved.step, len(began)) == (2, 2)


@pytest.mark.parametrize(("before_s", "stays"), [(1, True), (3600, False)])
def test_a_save_that_is_not_whole_may_be_anothers(uri: str, before_s: int, stays: bool) -> None:
    """A save begun a second ago stays, as another process may still write it; one begun an hour ago is removed."""
    began_ms = time.time_ns() // 1_000_000 - 1000 * before_s
    name = f"ckpt-{7:010d}-{began_ms:012x}/rank-00000-0000.safetensors"
    store = ObjectStore(uri)
    store.write(name, b"half")
    _save(uri, 2, [8], keep=1)
    assert (name in store.names()) is stays


@pytest.mark.parametrize("below", ["", "/folder"])
def test_a_place_that_is_a_file_is_no_fresh_start(tmp_path: Path, below: str) -> None:
    (tmp_path / "results").touch()
    with pytest.raises(CheckpointError, match="results"):
        _load(f"file://{tmp_path}/results{below}")


def test_no_whole_checkpoint_is_no_fresh_start(uri: str) -> None:
    """Every rank raises if all checkpoints are damaged."""
    _save(uri, 2, [1])
    _change(uri, _objects(uri, "rank-00000-0000")[0], None)
    with pytest.raises(CheckpointError, match=r"every checkpoint below .* is damaged"):
        _load(uri, 2)


def test_one_without_a_manifest_is_none(uri: str) -> None:
    """A save that was cut off is not read."""
    _save(uri, 2, [1, 2])
    _change(uri, next(name for name in _objects(uri, "manifest") if "0000000002" in name), None)
    assert _load(uri).step == 1  # type: ignore[union-attr]


def test_states_that_differ_are_refused(tmp_path: Path) -> None:
    """Every rank raises, and none has written."""

    def work(checkpoints: ShardedCheckpoints, group: MemoryGroup) -> None:
        checkpoints.save(1, {"a": np.zeros(3 + group.rank)})

    words = r"rank 1 saves other arrays \('00000-a' is float64 \[4\] on rank 1, but float64 \[3\] on rank 0\)"
    with pytest.raises(MismatchError, match=words):
        _ranks(f"file://{tmp_path}", 2, work)


def test_parts_that_ranks_took_with_different_arguments_are_refused(tmp_path: Path) -> None:
    """Of `shard_dict`: what one rank leaves out, and the others save, is named."""

    def work(checkpoints: ShardedCheckpoints, group: MemoryGroup) -> None:
        opt = HostOptimizer({"w": np.zeros(40, np.float32)}, AdamW(lr=0.1), group=group, compression="bf16")
        opt.submit("w", np.ones(40, np.float32))
        opt.step()
        checkpoints.save(1, {"optimizer": opt.shard_dict(error_feedback=group.rank == 0)})

    with pytest.raises(MismatchError, match=r"error_feedback.*is absent on rank \d, but float32 .*same arguments"):
        _ranks(f"file://{tmp_path}", 2, work)


def test_an_attempt_does_not_touch_what_the_next_one_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that was cut off saves on, in a folder of its own; readers take the newest attempt's."""
    job = f"file://{tmp_path}/digits-1"
    monkeypatch.setenv("RINGTRAIN_CHECKPOINT_URI", job)
    for attempt, step in (("1", 10), ("2", 4), ("1", 90)):
        monkeypatch.setenv("RINGTRAIN_ATTEMPT", attempt)
        _save(job, 2, [step], keep=1)
    monkeypatch.setenv("RINGTRAIN_ATTEMPT", "3")
    assert _load(job).step == 4  # type: ignore[union-attr]
    _save(job, 2, [5], keep=1)
    assert {name.partition("/")[0] for name in _objects(job, "ckpt-")} == {"attempt-0003"}


def test_a_job_begins_with_what_another_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """restoreFrom names the job; a name that no job had is an error that lists those there are."""
    former = f"file://{tmp_path}/digits-0a0a0a0a-1111-2222-3333-0a0a0a0a0a0a"
    monkeypatch.setenv("RINGTRAIN_CHECKPOINT_URI", former)
    _save(former, 2, [8])
    job = f"file://{tmp_path}/next-1"
    monkeypatch.setenv("RINGTRAIN_CHECKPOINT_URI", job)
    assert _load(job) is None
    monkeypatch.setenv("RINGTRAIN_RESTORE_FROM", "digits")
    assert _load(job, 2).step == 8  # type: ignore[union-attr]
    monkeypatch.setenv("RINGTRAIN_RESTORE_FROM", "other")
    with pytest.raises(CheckpointError, match=r"restoreFrom is 'other'.*there are digits-0a0a"):
        _load(job, 2)


def _optimizer(group: MemoryGroup) -> HostOptimizer:
    parameters = {"a": np.arange(300, dtype=np.float32), "b": np.ones((40, 9), np.float32), "c": np.zeros(1, "f4")}
    return HostOptimizer(parameters, AdamW(lr=0.1), group=group, bucket_bytes=512)


def _train(optimizer: HostOptimizer, steps: int) -> None:
    for step in range(steps):
        for name, weights in optimizer.weights.items():
            optimizer.submit(name, np.full(weights.shape, step + 1, weights.dtype))
        optimizer.step()


@pytest.mark.parametrize("readers", [1, 2, 5])
def test_an_optimizer_goes_on_at_another_size(tmp_path: Path, readers: int) -> None:
    """Three ranks save a shard each; weights and moments of any number of ranks are then those of one
    `state_dict`.
    """
    uri = f"file://{tmp_path}"

    def save(checkpoints: ShardedCheckpoints, group: MemoryGroup) -> Any:
        optimizer = _optimizer(group)
        _train(optimizer, 3)
        checkpoints.save(3, {"optimizer": optimizer.shard_dict()})
        return optimizer.state_dict()

    def load(checkpoints: ShardedCheckpoints, group: MemoryGroup) -> Any:
        optimizer = _optimizer(group)
        assert checkpoints.latest(lambda state: optimizer.load_state_dict(state["optimizer"]))
        return optimizer.state_dict()

    saved, loaded = _ranks(uri, 3, save)[0], _ranks(uri, readers, load)[-1]
    assert loaded["updates"] == 3
    for slot, arrays in saved["arrays"].items():
        for name, array in arrays.items():
            assert np.array_equal(loaded["arrays"][slot][name], array), (slot, name)


def test_a_rank_reads_only_what_it_asks_for(tmp_path: Path) -> None:
    """Of 40 MiB one block is read for a few elements."""
    big = np.arange(10 << 20, dtype=np.float32)
    uri = f"file://{tmp_path}"
    _ranks(uri, 2, lambda checkpoints, _: checkpoints.save(1, {"big": big}))

    def load(checkpoints: ShardedCheckpoints, _: MemoryGroup) -> int:
        read: list[int] = []

        def few(state: Any) -> None:
            assert np.array_equal(state["big"].read(9_000_000, 9_000_010), big[9_000_000:9_000_010])
            read.append(state["big"]._files.bytes_read)

        checkpoints.latest(few)
        return read[0]

    assert _ranks(uri, 1, load) == [4 << 20]


@pytest.mark.parametrize(("start", "stop"), [(6, 11), (-3, 2), (4, 2)], ids=["beyond", "negative", "backwards"])
def test_elements_that_an_array_does_not_have(tmp_path: Path, start: int, stop: int) -> None:
    """They are refused: what memory holds by chance must not become weights."""
    uri = f"file://{tmp_path}"
    _ranks(uri, 1, lambda checkpoints, _: checkpoints.save(1, {"ten": np.arange(10.0)}))

    def load(checkpoints: ShardedCheckpoints, _: MemoryGroup) -> None:
        with pytest.raises(ConfigurationError, match=f"elements {start}:{stop} of array .* has elements 0:10"):
            checkpoints.latest(lambda state: state["ten"].read(start, stop))

    _ranks(uri, 1, load)


def test_any_tool_reads_a_shard(tmp_path: Path) -> None:
    """The files are of safetensors, each tensor named by the elements that it is."""
    safetensors = pytest.importorskip("safetensors.numpy")
    _ranks(f"file://{tmp_path}", 2, lambda checkpoints, _: checkpoints.save(1, {"a": np.arange(50_000)}))
    found = safetensors.load_file(next(tmp_path.glob("*/rank-00001-0000.safetensors")))
    assert {name: array.tolist() for name, array in found.items()} == {
        "00000-a[25000:50000]": list(range(25_000, 50_000))
    }


def test_a_save_in_the_background_is_whole_at_the_next(s3_proxy: Proxy) -> None:
    """Ranks wait for each other through the store alone; the second save finds the first one done."""
    uri = f"s3://{BUCKET}/background"

    def work(checkpoints: ShardedCheckpoints, group: MemoryGroup) -> None:
        for step in (1, 2):
            checkpoints.save(step, STATE, background=True)
        checkpoints.finish()

    _ranks(uri, 2, work)
    assert [name.partition("-")[2][:10] for name in _objects(uri, "manifest")] == ["0000000001", "0000000002"]


def test_a_save_in_the_background_asks_the_store_nothing_before_it_returns(
    s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on while the store is away, in a job as well as outside of one; `finish` says what became."""
    job = f"s3://{BUCKET}/away"
    monkeypatch.setenv("RINGTRAIN_CHECKPOINT_URI", job)
    s3_proxy.refuses = True

    def work(checkpoints: ShardedCheckpoints, group: MemoryGroup) -> None:
        checkpoints.save(1, STATE, background=True)
        with pytest.raises(CheckpointError, match="cannot be written"):
            checkpoints.finish()

    _ranks(job, 1, work, deadline_s=1.0)


@pytest.mark.slow
def test_a_program_that_ends_at_once_ends_with_its_checkpoint(s3: Server, tmp_path: Path) -> None:
    """The store's name is looked up on threads that the interpreter ends before it waits for others."""
    uri = f"s3://{BUCKET}/{tmp_path.name}"
    named = s3.url.replace("127.0.0.1", "localhost")
    program = (
        "import numpy, time, ringtrain as rt; from ringtrain.checkpoint import ShardedCheckpoints; rt.init(); "
        f"ShardedCheckpoints({uri!r}).save(1, {{'a': numpy.zeros(9)}}, background=True)"
    )
    done = completed([sys.executable, "-c", program], env=os.environ | environment(named), timeout=patient(120))
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(s3.url).items():
            patch.setenv(name, value)
        assert _objects(uri, "manifest")


@pytest.mark.slow
def test_a_connection_that_is_cut_is_made_again(s3_proxy: Proxy) -> None:
    """Requests that were cut in the middle are sent anew, and what is read is what was written."""
    uri = f"s3://{BUCKET}/cut"
    s3_proxy.cut_after, s3_proxy.cuts = 20_000, 2
    _save(uri, 2, [1])
    assert s3_proxy.cuts == 0
    s3_proxy.cut_after, s3_proxy.cuts = 20_000, 2
    saved = _load(uri)
    assert s3_proxy.cuts == 0
    assert saved is not None
    assert np.array_equal(saved.state["weights"]["dense/kernel"], STATE["weights"]["dense/kernel"])  # type: ignore


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refused", "silent"])
def test_a_store_that_does_not_answer_ends_in_an_error(s3_proxy: Proxy, fault: str) -> None:
    """Within the deadline every rank raises, and the error names the URI and the rank; the next save is fine."""
    uri = f"s3://{BUCKET}/{fault}"

    def work(checkpoints: ShardedCheckpoints, group: MemoryGroup) -> None:
        s3_proxy.refuses, s3_proxy.pause_s = (True, 0.0) if fault == "refused" else (False, 60.0)
        with pytest.raises(
            CheckpointError, match=rf"rank 0: s3://{BUCKET}/{fault}/.* cannot be written: .*tried for 2 s"
        ):
            checkpoints.save(1, {"a": np.zeros(3)})
        s3_proxy.refuses, s3_proxy.pause_s = False, 0.0
        s3_proxy.drop()

    _ranks(uri, 2, work, deadline_s=2.0)
    _save(uri, 2, [2])
    assert _load(uri).step == 2  # type: ignore[union-attr]


def test_a_failure_in_the_background_is_raised_by_the_next_save(s3: Server, s3_proxy: Proxy) -> None:
    """On all ranks alike, with the cause; the step that is saved after that is whole."""
    uri = f"s3://{BUCKET}/later"
    ready = threading.Barrier(2, timeout=60)
    s3.check_credentials(True)

    def work(checkpoints: ShardedCheckpoints, group: MemoryGroup) -> None:
        checkpoints.save(1, {"a": np.zeros(100_000)}, background=True)
        with pytest.raises(CheckpointError, match="cannot be written"):
            checkpoints.save(2, {"a": np.zeros(3)})
        ready.wait()
        s3.check_credentials(False)
        ready.wait()
        checkpoints.save(3, {"a": np.zeros(3)})

    try:
        _ranks(uri, 2, work)
    finally:
        s3.check_credentials(False)
    saved = _load(uri)
    assert saved is not None
    assert saved.step == 3


def test_wrong_credentials_are_named(s3: Server, s3_proxy: Proxy) -> None:
    """At once, without trying again; the error says where credentials come from.

    No checkpoint is not what it says.
    """
    s3.check_credentials(True)
    try:
        with pytest.raises(CheckpointError, match="does not accept these credentials: check the Secret"):
            _save(f"s3://{BUCKET}/denied", 1, [1])
        with pytest.raises(CheckpointError, match="does not accept these credentials"):
            _load(f"s3://{BUCKET}/denied")
    finally:
        s3.check_credentials(False)


def test_a_bucket_that_is_not_there_is_not_an_empty_one(s3_proxy: Proxy) -> None:
    """Reading from a mistyped bucket is an error, not a start from nothing."""
    with pytest.raises(CheckpointError, match="create the bucket, or correct the URI"):
        _load("s3://mistyped/digits")


def test_a_bucket_may_be_called_so(s3: Server, s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job begins below `my-bucket`, where nothing is yet: what is not there is no missing bucket."""
    s3.make_bucket("my-bucket")
    job = "s3://my-bucket/digits-1"
    monkeypatch.setenv("RINGTRAIN_CHECKPOINT_URI", job)
    assert _load(job) is None
    _save(job, 1, [1, 2])
    _change(job, next(name for name in _objects(job, ".safetensors") if "0000000002" in name), None)
    saved = _load(job)
    assert saved is not None
    assert saved.step == 1


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s4://bucket/path", "not the URI of a known store"),
        ("s3://", "has no path"),
    ],
)
def test_a_wrong_uri_is_refused(uri: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ShardedCheckpoints(uri, group=MemoryGroup(Table(1), 0))


def test_a_uri_is_no_directory() -> None:
    """It would have made a folder `s3:`."""
    with pytest.raises(ConfigurationError, match="ShardedCheckpoints"):
        Checkpoints("s3://bucket/path", group=MemoryGroup(Table(1), 0))


def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it."""
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "obstore" else found(name))
    with pytest.raises(ConfigurationError, match=r"pip install 'ringtrain\[gcs\]'"):
        ShardedCheckpoints("gs://bucket/path", group=MemoryGroup(Table(1), 0))
