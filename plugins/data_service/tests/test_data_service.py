"""Batches that data workers load: in order, each once, over death, hang and replacement; errors that name all."""

import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.certificates import JobAuthority
from support.data_worker import DataWorkers
from support.deadlines import patient

from ringtrain.data import shard
from ringtrain.data.service import LoadedBatch, distribute, distribute_splits
from ringtrain.errors import ConfigurationError, DataError

TESTS = Path(__file__).parents[3] / "tests"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataWorkers]:
    """Three data workers for all tests that leave them as they are, and a file that some loaders look for."""
    directory = tmp_path_factory.mktemp("data")
    os.environ["DIES_ONCE"] = str(directory / "dies-once")
    workers = DataWorkers(directory, 3)
    yield workers
    workers.close()


@pytest.fixture
def service(warm: DataWorkers, monkeypatch: pytest.MonkeyPatch) -> DataWorkers:
    """The warm data workers, known to this rank."""
    for name, value in warm.environment.items():
        monkeypatch.setenv(name, value)
    return warm


@pytest.fixture
def own_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DataWorkers]]:
    """Makes data workers of the test's own, known to this rank."""
    made = []

    def make(count: int, **more: Any) -> DataWorkers:
        workers = DataWorkers(tmp_path, count, **more)
        made.append(workers)
        for name, value in workers.environment.items():
            monkeypatch.setenv(name, value)
        return workers

    yield make
    for workers in made:
        workers.close()


def one_rank(samples: int = 100, batch_size: int = 4, **more: Any) -> Any:
    return shard(samples, batch_size, rank=0, size=1, **more)


def check(batch: LoadedBatch) -> None:
    """The arrays are those of the batch's own indices."""
    assert batch["square"].dtype == np.float32
    assert batch["square"].tolist() == [float(index**2) for index in batch.indices]
    assert batch["image"].shape == (batch.indices.size, 5)
    assert batch["even"].tolist() == [index % 2 == 0 for index in batch.indices]
    batch["square"][:] = 0  # writable


def test_batches_come_in_the_order_of_the_shard(service: DataWorkers) -> None:
    """Batches contain arrays, mask, weight and position, and all three data workers load some."""
    order = one_rank(101, last="weighted", seed=3)
    found = list(distribute("support.loaders:slow", order, epoch=2))
    expected = list(order.epoch(2))
    assert [batch.indices.tolist() for batch in found] == [batch.indices.tolist() for batch in expected]
    assert [(b.consumed, b.weight, b.count) for b in found] == [(b.consumed, b.weight, b.count) for b in expected]
    assert len({int(batch["pid"]) for batch in found}) == 3
    for batch in found:
        check(batch)


def test_an_epoch_goes_on_behind_what_was_consumed(service: DataWorkers) -> None:
    """A world of another size takes exactly what is left."""
    stream = iter(distribute("support.loaders:squares", shard(90, 5, rank=0, size=2, seed=1), epoch=0))
    first = [next(stream) for _ in range(4)]
    stream.close()
    rest = []
    for rank in range(3):
        own = shard(90, 5, rank=rank, size=3, seed=1, last="weighted")
        left = distribute("support.loaders:squares", own, epoch=0, consumed=first[-1].consumed)
        rest += [index for batch in left for index in batch.indices[batch.mask]]
    begun = shard(90, 5, rank=1, size=2, seed=1).epoch(0)
    used = [i for b in first for i in b.indices] + [i for _, b in zip(first, begun, strict=False) for i in b.indices]
    assert sorted([*used, *rest]) == list(range(90))


def test_micro_batches_have_their_part_of_each_array(service: DataWorkers) -> None:
    """A part without samples repeats one, with weight 0."""
    from ringtrain.data.shard import Batch
    from ringtrain_data_service.batches import loaded

    batch = loaded(Batch(np.arange(3), np.array([True, False, True]), 1.0, 3, passes=3), {"x": np.array([10, 11, 12])})
    assert [(part["x"].tolist(), part.weight) for part in batch.micro_batches] == [
        ([10], 1.5),
        ([12], 1.5),
        ([10], 0),
    ]
    with pytest.raises(DataError, match=r"'x' is of shape \(2,\) for 3 samples"):
        _ = loaded(batch, {"x": np.zeros(2)}).micro_batches


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", r'"support\.loaders:raises" raised LookupError\n(.|\n)*raise LookupError\("no picture 7"\)'),
        ("a_list", r"returned a list; expected a dict of arrays"),
        ("objects", r"'text' is an array of dtype object; expected numbers"),
        ("float8", r"'x' is an array of dtype float8_e5m2; expected numbers"),
        ("masked", r"'text' is a masked array, but masks are not sent"),
        ("a_text", r"'text' is a str; expected a numpy array"),
        ("numbered", r"a dict with the key 0; expected strings as keys"),
        ("not_a_function", r"is an int; expected a function"),
        ("absent", r"module support\.loaders \(.*loaders\.py\) has no absent"),
        ("dies", r"its loader process was killed by SIGKILL, 3 times over the same request"),
        ("quits", r"its loader process ended with exit code 3, 3 times"),
    ],
)
def test_a_loader_that_fails(service: DataWorkers, function: str, said: str) -> None:
    """The error is raised at the failed batch, and names the requesting rank, the indices and the data worker."""
    seen = []

    def train() -> None:
        for batch in distribute(f"support.loaders:{function}", one_rank(shuffle=False), epoch=0):
            seen.append(batch.consumed)

    with pytest.raises(DataError, match=said) as error:
        train()
    assert seen == ([4] if function in ("raises", "dies") else [])
    shown = "4, 5, 6, 7" if seen else "0, 1, 2, 3"
    assert str(error.value).startswith("rank 0: ")
    assert re.search(rf"\(data worker [012], 127\.0\.0\.1:\d+; indices {shown}\)$", str(error.value))


def test_a_module_that_is_not_there(service: DataWorkers) -> None:
    """Says where the data worker has looked."""
    with pytest.raises(DataError, match=r"the data worker cannot find the module nowhere in /.*PYTHONPATH"):
        next(iter(distribute("nowhere:load", one_rank(), epoch=0)))


@pytest.mark.parametrize("function", ["dies_once", "is_stopped"])
def test_a_loader_process_that_ends_is_made_anew(service: DataWorkers, function: str) -> None:
    """The request is repeated, and training is not affected."""
    marker = Path(os.environ["DIES_ONCE"])
    marker.touch()
    found = list(distribute(f"support.loaders:{function}", one_rank(40, shuffle=False), epoch=0))
    assert [batch.consumed for batch in found] == list(range(4, 41, 4))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("load", one_rank(), {"epoch": 0}), '"module:function"'),
        (("__main__:load", one_rank(), {"epoch": 0}), "define the function in a module"),
        (("m:load", one_rank(), {}), "epoch is missing"),
        (("m:load", one_rank(), {"epoch": 0, "prefetch": 0}), "prefetch=0; expected 1 to 1024"),
        (("m:load", [1, 2], {"epoch": 0}), "shard is a list"),
    ],
)
def test_wrong_arguments(service: DataWorkers, arguments: tuple[str, Any, dict[str, Any]], said: str) -> None:
    """Errors are raised before any request is sent."""
    function, order, more = arguments
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        distribute(function, order, **more)


def test_a_process_without_data_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error describes how to start data workers."""
    monkeypatch.delenv("RINGTRAIN_DATA_WORKERS_FILE", raising=False)
    with pytest.raises(ConfigurationError, match=r"no data workers: .*--data-workers N.*spec\.dataWorkers"):
        distribute("m:load", one_rank(), epoch=0)


def test_death_and_replacement(own_service: Callable[..., DataWorkers]) -> None:
    """One data worker after another is killed and replaced; every batch comes, once, in order."""
    workers = own_service(2)
    found = []
    for batch in distribute("support.loaders:slow", one_rank(200), epoch=0):
        check(batch)
        found.append(batch.consumed)
        if len(found) in (5, 20, 35):
            workers.kill(len(found) % 2)
        if len(found) in (12, 27, 42):
            workers.replace((len(found) + 1) % 2)
    assert found == list(range(4, 201, 4))


def test_a_hang_is_noticed(own_service: Callable[..., DataWorkers]) -> None:
    """The requests of a stopped data worker are sent to others; when it continues, it gets requests again."""
    workers = own_service(2)
    stream = iter(distribute("support.loaders:slow", one_rank(400), epoch=0))
    found = [next(stream).consumed for _ in range(5)]
    workers.stop(0)
    found += [next(stream).consumed for _ in range(20)]
    workers.resume(0)
    found += [batch.consumed for batch in stream]
    assert found == list(range(4, 401, 4))


def test_all_lost(
    own_service: Callable[..., DataWorkers], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rank waits for its stall timeout and names the missing data workers; one that appears in time gets
    requests."""
    workers = own_service(1)
    monkeypatch.setenv("RINGTRAIN_STALL_TIMEOUT", "3")
    stream = iter(distribute("support.loaders:squares", one_rank(), epoch=0, prefetch=1))
    next(stream)
    workers.kill(0)
    with caplog.at_level(logging.WARNING), pytest.raises(DataError) as error:
        next(stream)
    assert re.search(r"rank 0: no input for 3 s \(indices .*\): 0 of 1 data worker can be reached", str(error.value))
    assert re.search(r"rank 0 has waited [12] s for input: 0 of 1 data worker can be reached \(last: ", caplog.text)
    monkeypatch.setenv("RINGTRAIN_STALL_TIMEOUT", "60")
    workers.replace(0)
    assert len(list(distribute("support.loaders:squares", one_rank(), epoch=0))) == 25


def test_who_is_not_in_the_file_any_more_is_asked_as_long_as_it_answers(
    own_service: Callable[..., DataWorkers],
) -> None:
    """A restarted launcher may know no data workers at first."""
    workers = own_service(1)
    stream = iter(distribute("support.loaders:squares", one_rank(), epoch=0, prefetch=2))
    next(stream)
    workers.only([])
    time.sleep(0.6)  # the file is read twice in this time
    assert len(list(stream)) == 24


def test_prefetch_bounds_memory(own_service: Callable[..., DataWorkers]) -> None:
    """With a slow loop over batches of 32 MiB, rank and data worker store no more than the requested batches."""
    workers = own_service(1, slots=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stream = iter(distribute("support.loaders:large", one_rank(80, shuffle=False), epoch=0, prefetch=3))
    for _ in range(10):
        batch = next(stream)
        assert int(batch["large"][-1]) == int(batch.indices[0] % 251)
        time.sleep(0.02)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 32 * 6  # three ahead, one in use, one that is being received
    status = Path(f"/proc/{workers.processes[0].pid}/status").read_text()
    peak = int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024
    assert peak < 32 * 4 + 150


def test_a_rank_that_does_not_read_is_given_no_more(own_service: Callable[..., DataWorkers], tmp_path: Path) -> None:
    """A stopped rank costs a data worker two batches for each slot, and no other rank its turn."""
    workers = own_service(1, slots=1)
    script = (
        "import os, signal\nfrom ringtrain.data import shard\nfrom ringtrain.data.service import distribute as give\n"
        "stream = iter(give('support.loaders:large', shard(4000, 4, rank=0, size=1), epoch=0, prefetch=64))\n"
        "next(stream)\nprint('read', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
    )
    assert rank.stdout.readline() == b"read\n"
    found = list(distribute("support.loaders:squares", one_rank(), epoch=0))
    assert len(found) == 25
    held = [size for size in _held(workers.processes[0].pid) if size >= 32 << 20]  # not those of the other rank
    rank.kill()
    rank.wait()
    rank.stdout.close()
    assert len(held) <= 2


def _held(pid: int) -> Iterator[int]:
    """The sizes of the memory files that a process has open."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "memfd:ringtrain-batch" in os.readlink(link):
                yield link.stat().st_size
        except OSError:
            continue


def test_splits_are_read_item_by_item(service: DataWorkers, tmp_path: Path) -> None:
    """Each of a rank's files in turn, each line once; positions resume it, at any world size."""
    expected = set()
    for number in range(5):
        text = [f"file {number} line {line}" for line in range(number * 3)]
        expected |= set(text)
        (tmp_path / f"{number}.txt").write_text("".join(f"{line}\n" for line in text))
    uris = [str(path) for path in sorted(tmp_path.glob("*.txt"))]
    streams = [distribute_splits(uris, "support.loaders:lines", rank=rank, size=2, prefetch=2) for rank in range(2)]
    found, positions = [], {}
    for stream in streams:
        items = iter(stream)
        found += [next(items)["line"].tobytes().decode() for _ in range(5)]
        positions |= stream.positions
    rest = distribute_splits(uris, "support.loaders:lines", rank=0, size=1, positions=positions)
    found += [item["line"].tobytes().decode() for item in rest]
    assert sorted(found) == sorted(expected)
    assert set(rest.positions.values()) <= {None}


def test_a_split_that_is_done_stays_done(service: DataWorkers, tmp_path: Path) -> None:
    """However often reading goes on: positions of a stream that went on have what was done before it."""
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{line}\n" for line in range(3)))
    uris = [str(tmp_path / f"{name}.txt") for name in "abc"]
    found, positions = [], {}
    for items in (4, 3, 2):
        stream = distribute_splits(uris, "support.loaders:lines", rank=0, size=1, positions=positions, prefetch=1)
        reading = iter(stream)
        found += [next(reading)["line"].tobytes().decode() for _ in range(items)]
        positions = stream.positions
    assert found == [f"{name}{line}" for name in "abc" for line in range(3)]


def test_positions_of_one_rank_alone_are_refused(service: DataWorkers, tmp_path: Path) -> None:
    """Each rank would leave to the others what it does not know of, and read theirs again."""
    uris = [str(tmp_path / f"{name}.txt") for name in "abc"]
    own = distribute_splits(uris, "support.loaders:lines", rank=1, size=2).positions
    with pytest.raises(
        ConfigurationError, match=r"no entry for 2 of 3 uris, such as .*a\.txt'; merge the positions of all ranks"
    ):
        distribute_splits(uris, "support.loaders:lines", rank=1, size=2, positions=own)
    distribute_splits(uris, "support.loaders:lines", rank=1, size=2, positions=dict.fromkeys(uris, 0) | own)


def test_positions_of_what_is_no_split_are_refused(service: DataWorkers, tmp_path: Path) -> None:
    """Another spelling of a URI would restart the split, or its rest would not be read."""
    saved = {str(tmp_path / "a.txt"): 3, f"file://{tmp_path}/b.txt": 7}
    with pytest.raises(
        ConfigurationError, match=r"positions has 1 URIs that are not in uris, such as 'file://.*b\.txt'"
    ):
        distribute_splits([str(tmp_path / "a.txt")], "support.loaders:lines", rank=0, size=1, positions=saved)


def test_a_split_goes_on_at_another_data_worker(own_service: Callable[..., DataWorkers], tmp_path: Path) -> None:
    """The other data worker continues at the last offset."""
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"{line}\n" for line in range(200)))
    workers = own_service(2)
    found = []
    for item in distribute_splits([str(file)], "support.loaders:lines", rank=0, size=1):
        found.append(int(item["line"].tobytes()))
        if len(found) in (30, 90):
            workers.kill(0 if len(found) == 30 else 1)
            workers.replace(0 if len(found) == 30 else 1)
    assert found == list(range(200))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("lines", r"raised FileNotFoundError(.|\n)*; split /nowhere from offset 0\)"),
        ("goes_nowhere", r"the offset 0 after offset 0 in /nowhere; expected a larger"),
        ("no_offset", r"yielded a dict; expected a tuple \(offset of the next read, dict of arrays by name\)"),
        ("none", r"yielded a NoneType; expected a tuple \(offset of the next read, dict of arrays by name\)"),
    ],
)
def test_a_reader_that_fails(service: DataWorkers, function: str, said: str) -> None:
    """Names the split and the offset."""
    with pytest.raises(DataError, match=said):
        list(distribute_splits(["/nowhere"], f"support.loaders:{function}", rank=0, size=1))


def test_certificates_prove_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank shows a worker's and accepts a data worker's; one of another job, or another token, is refused."""
    authority = JobAuthority("u")
    data, rank, other, guess = (
        authority.secret_dir(tmp_path / name, role, uid=uid, token=token)
        for name, role, uid, token in (
            ("data", "data", "", "token-1"),
            ("rank", "worker", "", "token-1"),
            ("other", "worker", "v", "token-1"),
            ("guess", "worker", "", "token-2"),
        )
    )
    worker, port = command_line(RINGTRAIN_SECRET_DIR=str(data), RINGTRAIN_JOB_UID="u", PYTHONPATH=str(TESTS))
    entry = {"index": 0, "instance": "a", "address": f"127.0.0.1:{port}"}
    file = tmp_path / "workers.json"
    file.write_text(json.dumps({"version": 1, "kind": "ringtrain", "workers": [entry], "dispatchers": []}))
    monkeypatch.setenv("RINGTRAIN_DATA_WORKERS_FILE", str(file))
    monkeypatch.setenv("RINGTRAIN_SECRET_DIR", str(rank))
    monkeypatch.setenv("RINGTRAIN_JOB_UID", "u")
    assert len(list(distribute("support.loaders:squares", one_rank(), epoch=0))) == 25
    monkeypatch.setenv("RINGTRAIN_STALL_TIMEOUT", "8")
    streams = []
    for directory in (other, guess):
        monkeypatch.setenv("RINGTRAIN_SECRET_DIR", str(directory))
        streams.append(distribute("support.loaders:squares", one_rank(), epoch=0))
    with ThreadPoolExecutor(2) as pool:
        refused = [str(one.exception()) for one in [pool.submit(next, iter(stream)) for stream in streams]]
    assert "the certificate is for worker.v.ringtrain, expected worker.u.ringtrain" in refused[0]
    assert "the job's token is missing or wrong" in refused[1]
    end(worker)


def test_the_wait_is_measured(service: DataWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next report contains the time for which the loop waited for input."""
    import ringtrain

    read, write = os.pipe()
    monkeypatch.setenv("RINGTRAIN_REPORT_FD", str(write))
    ringtrain.report(0)
    os.read(read, 1 << 16)  # what was waited for before
    began = time.monotonic()
    for _ in distribute("support.loaders:slow", one_rank(40), epoch=0, prefetch=1):
        pass
    ringtrain.report(1)
    waited = json.loads(os.read(read, 1 << 16))["inputWait"]
    os.close(read)
    os.close(write)
    assert 0.1 <= waited <= time.monotonic() - began


def command_line(**variables: str) -> tuple["subprocess.Popen[bytes]", int]:
    """`ringtrain data-worker` with two loader processes, and its port."""
    environment = {**os.environ, "RINGTRAIN_DATA_PORT": "0", "RINGTRAIN_DATA_SLOTS": "2", **variables}
    worker = subprocess.Popen(
        [sys.executable, "-m", "ringtrain", "data-worker"], env=environment, stderr=subprocess.PIPE
    )
    line = worker.stderr.readline().decode()
    found = re.search(r"data worker 0 has started 2 loader processes and listens on port (\d+)", line)
    assert found is not None, line
    return worker, int(found[1])


def end(worker: "subprocess.Popen[bytes]") -> None:
    """Stop a data worker by SIGTERM, and return its exit code."""
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    worker.stderr.close()


def test_a_data_worker_of_the_command_line_takes_its_loader_processes_along() -> None:
    """The data worker and its loader processes end on SIGTERM, with 0."""
    worker, _ = command_line()
    children = Path(f"/proc/{worker.pid}/task").glob("*/children")
    loaders = {pid for file in children for pid in file.read_text().split()}
    assert len(loaders) == 2
    end(worker)
    assert [pid for pid in loaders if Path(f"/proc/{pid}").exists()] == []


def test_a_wrong_setting_of_the_command_line() -> None:
    """Exit code 64, and the variable's name."""
    environment = {**os.environ, "RINGTRAIN_DATA_SLOTS": "none"}
    found = subprocess.run(
        [sys.executable, "-m", "ringtrain", "data-worker"],
        env=environment,
        capture_output=True,
        timeout=patient(60),
        check=False,
    )
    assert found.returncode == 64
    assert b"RINGTRAIN_DATA_SLOTS='none': expected an integer from 1 to 1024" in found.stderr
