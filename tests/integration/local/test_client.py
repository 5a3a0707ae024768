"""ringtrain_sdk on this machine: real launchers, agents and ranks, several pods a job."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread

import psutil
import pytest
from support.gang import until_ended

from ringtrain_client.local.detached import driver_of
from ringtrain_client.local.past_runs import newest_run
from ringtrain_sdk import (
    AlreadyExists,
    AsyncClient,
    Client,
    DriverLost,
    Invalid,
    JobEnded,
    JobFailed,
    LocalBackend,
    NotFound,
    Timeout,
)

# Generous: the machine may be busy.
SOON_S = 100.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Its runs are in the test's folder; whatever the test leaves has ended behind it."""
    with Client(LocalBackend(tmp_path / "runs")) as made:
        yield made


def steps(count: int, *, word: str) -> None:
    import ringtrain as rt

    rt.init()
    for step in range(count):
        rt.report(step=step + 1, total_steps=count, loss=1.0 / (step + 1))
    print(word, rt.rank(), "of", rt.size())
    rt.shutdown()


def fails() -> None:
    import os
    import sys

    print("no such data set", flush=True)
    sys.exit(7 * (os.environ["RANK"] == "1"))


def stays() -> None:
    import time

    print("began", flush=True)
    time.sleep(1000)


def test_a_function_trains_on_several_nodes(client: Client) -> None:
    """Three workers of two ranks: the log as it comes, the end, and what was reported."""
    run = client.train(steps, args=[5], kwargs={"word": "hello"}, workers=3, slots=2)
    assert sorted(run.logs(follow=True)) == [f"[{rank}] hello {rank} of 6" for rank in range(6)]
    assert run.wait(SOON_S).state == "Succeeded"
    metrics = run.metrics()
    assert (metrics.step, metrics.total_steps, metrics.loss) == (5, 5, 0.2)
    assert list(run.logs(rank=4)) == ["hello 4 of 6"]
    assert "5/5" in run._repr_html_()
    assert [found.name for found in client.list()] == [run.name]
    with pytest.raises(JobEnded, match="has ended"):
        run.scale(2)


def test_a_file_trains_where_it_is(client: Client, tmp_path: Path) -> None:
    """With its arguments and its environment to the letter, and the files beside it."""
    (tmp_path / "beside.py").write_text("import os, sys\nprint(os.environ['WORD'], sys.argv[1:])\n")
    (tmp_path / "train.py").write_text("import beside\n")
    run = client.train(
        tmp_path / "train.py", args=["--fast", "a b", "$(HOME) $$"], env={"WORD": "$(RANK)$$é"}, name="mine"
    )
    run.wait(SOON_S)
    assert list(client.get("mine").logs(rank=0)) == ["$(RANK)$$é ['--fast', 'a b', '$(HOME) $$']"]


def test_a_template_says_the_rest(tmp_path: Path) -> None:
    """Its variables and policy are the job's, and what the call says comes first."""
    container = {"name": "train", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}
    part = {"runPolicy": {"backoffLimit": 0}, "worker": {"template": {"spec": {"containers": [container]}}}}
    meta = {
        "apiVersion": "ringtrain.dev/v1alpha1",
        "kind": "ClusterTrainingTemplate",
        "metadata": {"name": "small"},
    }
    (tmp_path / "t.yaml").write_text(json.dumps({**meta, "spec": {"job": part}}))
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['A'], os.environ['B'])\n")
    with Client(LocalBackend(tmp_path / "runs", templates=[tmp_path / "t.yaml"])) as client:
        run = client.train(tmp_path / "train.py", template="small", env={"B": "2"})
        run.wait(SOON_S)
        assert list(run.logs(rank=0)) == ["1 2"]
        assert run.job()["spec"]["runPolicy"]["backoffLimit"] == 0
        with pytest.raises(Invalid, match=r"spec.templateRef.name: TrainingTemplate small is in none"):
            client.train(tmp_path / "train.py", template={"kind": "TrainingTemplate", "name": "small"})


class Lasting(LocalBackend):
    """Its jobs outlive their client, as on a cluster."""

    async def close(self) -> None:
        pass


def test_whoever_waits_when_a_client_is_closed_is_told(tmp_path: Path) -> None:
    """Another thread that follows a log hears of it, and waits no longer."""
    backend, heard = Lasting(tmp_path / "runs"), Queue[object]()
    client = Client(backend)
    run = client.train(stays)

    def follow() -> None:
        try:
            for line in run.logs(follow=True):
                heard.put(line)
        except RuntimeError as exc:
            heard.put(exc)

    thread = Thread(target=follow, daemon=True)
    thread.start()
    try:
        assert heard.get(timeout=SOON_S) == "[0] began"
        client.close()
        assert "another thread closed this client" in str(heard.get(timeout=SOON_S))
        thread.join(SOON_S)
        assert not thread.is_alive()
    finally:
        asyncio.run(LocalBackend.close(backend))


def test_a_failure_has_its_first_cause(client: Client) -> None:
    """The rank, its last words, and the chain that `dtj why` tells."""
    run = client.train(fails, workers=2, spec={"runPolicy": {"backoffLimit": 0}})
    with pytest.raises(JobFailed, match="rank 1 exited with 7") as failed:
        run.wait(SOON_S)
    assert (failed.value.failure.rank, failed.value.failure.exit_code) == (1, 7)
    assert tuple(failed.value.causes) == run.why().lines
    assert "no such data set" in str(run.why())


def test_a_run_is_suspended_scaled_resumed_and_deleted(client: Client) -> None:
    """As on a cluster; a wait that is too short says where the job is."""
    run = client.train(stays, name="stays")
    run.wait(SOON_S, until="Running")
    with pytest.raises(Timeout, match=r"stays is Running and not at its end after 0.1 s"):
        run.wait(0.1)
    with pytest.raises(AlreadyExists, match="stays runs on this machine already"):
        client.train(stays, name="stays")
    with pytest.raises(Invalid, match=r"spec.worker.replicas.*at least 1"):
        run.scale(0)
    run.suspend()
    run.wait(SOON_S, until="Suspended")
    run.scale(2)
    run.resume()
    assert run.wait(SOON_S, until="Running").workers == "2/2"
    run.delete()
    with pytest.raises(NotFound, match="no run of stays"):
        run.status()
    assert not client.list()


def test_whoever_waits_learns_that_the_driver_is_gone(client: Client, tmp_path: Path) -> None:
    """It was killed: nobody would ever write that the job has ended. Its processes went with it."""
    run = client.train(stays, name="stays")
    run.wait(SOON_S, until="Running")
    driver = driver_of(newest_run(tmp_path / "runs", "stays").directory)
    assert driver is not None
    family = psutil.Process(driver).children(recursive=True)
    os.kill(driver, signal.SIGKILL)
    with pytest.raises(DriverLost, match="stays has no driver process any more"):
        run.wait(SOON_S)
    until_ended(family)  # the machine's first process may not collect them at once


async def test_closing_ends_what_was_started(tmp_path: Path) -> None:
    """Two at a time, asynchronously; another client finds their jobs, which nobody drives any more."""
    runs = tmp_path / "runs"
    async with AsyncClient(LocalBackend(runs)) as client:
        first, second = await asyncio.gather(client.train(stays, name="a"), client.train(stays, name="b"))
        await asyncio.gather(first.wait(SOON_S, until="Running"), second.wait(SOON_S, until="Running"))
        lines = first.logs(follow=True)
        assert await anext(lines) == "[0] began"
        await lines.aclose()
    assert driver_of(newest_run(runs, "a").directory) is None
    async with AsyncClient(LocalBackend(runs)) as other:
        with pytest.raises(DriverLost):
            await (await other.get("b")).wait(SOON_S)


def test_unknown_arguments_are_named(client: Client) -> None:
    """With the one that was meant; nothing is started."""
    with pytest.raises(TypeError, match=r"no argument 'worker'; did you mean workers"):
        client.train(stays, worker=2)  # type: ignore[call-arg]
    with pytest.raises(Invalid, match=r"spec.worker.replicas"):
        client.train(stays, workers=0)
    assert not client.list()


def test_a_closed_client_says_so(tmp_path: Path) -> None:
    """Instead of waiting for a thread that is no more."""
    client = Client(LocalBackend(tmp_path / "runs"))
    client.close()
    client.close()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="this client is closed"):
        client.list()
    assert time.monotonic() - began < SOON_S
