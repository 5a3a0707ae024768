"""`ringtrain run --data-workers`: launcher, agent, ranks and data workers together, and what becomes of each."""

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.commands import ringtrain_run
from support.gang import DEADLINE_S, GangProcesses, until

TESTS = Path(__file__).parents[3] / "tests"
TRAINING = (sys.executable, str(Path(__file__).parent / "data_training.py"))


class Run:
    """A run of a training that data workers load for."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.directory = directory
        env = {"DIRECTORY": str(directory), "RINGTRAIN_TIMEOUT": "12", "PYTHONPATH": str(TESTS)}
        self.process = ringtrain_run(directory, "--name", "demo", *words, **env)

    def step(self, number: int) -> None:
        """Wait for the end of a step."""
        until(f"step {number}", (self.directory / f"step-{number}").exists)

    def processes(self, word: str) -> list[psutil.Process]:
        """Return the processes of this run that were started as `ringtrain <word>`."""
        return [child for child in self._children() if "ringtrain" in (line := _words(child)) and word in line]

    def ranks(self) -> list[psutil.Process]:
        """The processes that train."""
        return [child for child in self._children() if _words(child)[1:2] == [TRAINING[1]]]

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err

    def ledger(self, slot: int) -> dict[int, list[int]]:
        """The samples of each epoch's committed steps."""
        found: dict[int, list[int]] = {}
        for epoch, samples in json.loads((self.directory / f"end-{slot}.json").read_text())["ledger"]:
            found.setdefault(epoch, []).extend(samples)
        return {epoch: sorted(samples) for epoch, samples in found.items()}


def _words(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture
def made() -> Iterator[list[Run]]:
    """Runs that are ended with the test."""
    runs: list[Run] = []
    yield runs
    for one in runs:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def test_data_workers_beside_two_ranks(tmp_path: Path, made: list[Run]) -> None:
    """Data workers find the loader next to the script; progress reports slow input; no process is left."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/my_data.py").write_text(
        "import time\n\ndef load(indices):\n    time.sleep(0.05)\n    return {'double': indices * 2}\n"
    )
    (tmp_path / "code/train.py").write_text(
        "import ringtrain as rt\nrt.init()\nshard = rt.data.shard(240, 6)\nfor step, batch in "
        "enumerate(rt.data.service.distribute('my_data:load', shard, epoch=0)):\n    assert (batch['double'] == "
        "batch.indices * 2).all()\n    rt.report(step + 1, total_steps=shard.steps, samples=batch.count)\n"
        "print('done', flush=True)\n"
    )
    made.append(run := Run(tmp_path, "-np", "2", "--data-workers", "2", sys.executable, "code/train.py"))
    code, out, err = run.finish()
    assert code == 0, err
    assert sorted(re.findall(r"\[\d\] done", out)) == ["[0] done", "[1] done"]
    assert re.search(r"Step 20/20 .*  input-bound \d+ %", out)
    assert {path.name for path in tmp_path.iterdir()} == {"code", "runs"}


def test_an_elastic_world_loses_ranks_and_data_workers(tmp_path: Path, made: list[Run]) -> None:
    """Every sample is in the committed steps of each epoch once; the world was of several sizes."""
    words = ("-np", "3", "--min-np", "1", "--on-loss", "Shrink", "--data-workers", "2")
    made.append(run := Run(tmp_path, *words, *TRAINING, "240", "3", "0.05"))
    run.step(5)
    run.processes("data-worker")[0].kill()
    run.step(10)
    run.ranks()[0].kill()
    run.step(30)
    run.processes("data-worker")[1].send_signal(signal.SIGSTOP)
    code, _, err = run.finish()
    assert code == 0, err
    slot = next(int(path.stem[4:]) for path in tmp_path.glob("end-*.json"))
    assert run.ledger(slot) == {epoch: list(range(240)) for epoch in range(3)}
    assert len(set(json.loads((tmp_path / f"end-{slot}.json").read_text())["sizes"])) > 1


def test_the_only_data_worker_is_stopped(tmp_path: Path, made: list[Run]) -> None:
    """A signal stops it: another takes its place, and the run ends with every sample seen."""
    made.append(run := Run(tmp_path, "-np", "2", "--data-workers", "1", *TRAINING, "240", "1", "0.02"))
    run.step(5)
    run.processes("data-worker")[0].send_signal(signal.SIGSTOP)
    code, _, err = run.finish()
    assert code == 0, err
    assert "because a signal has stopped it for 5 s" in err
    assert run.ledger(0) == {0: list(range(240))}


def test_a_launcher_that_is_killed_learns_again_who_is_there(
    gang: Callable[..., GangProcesses], tmp_path: Path
) -> None:
    """Ranks train in the meantime with the data workers that they know, and use a replaced one later."""
    settings = {"RINGTRAIN_DATA_WORKERS": "2", "RINGTRAIN_TIMEOUT": "12", "RINGTRAIN_DATA_PORT": "0"}
    pods = gang(1, 2, **settings, DIRECTORY=str(tmp_path), PYTHONPATH=str(TESTS))

    def reached(step: int) -> None:
        until(f"step {step}", (tmp_path / f"step-{step}").exists)

    def registered() -> int:
        return int((pods.status().get("data") or {}).get("registered", 0))

    launcher = pods.launcher()
    workers = [pods.data_worker(index) for index in range(2)]
    agent = pods.agent(0, *TRAINING, "240", "6", "0.1")
    reached(5)
    loaded = tmp_path / "loaded-by-0"
    until("the ranks know both data workers", lambda: registered() == 2 and loaded.exists())
    launcher.kill()
    workers[0].kill()
    reached(len(list(tmp_path.glob("step-*"))) + 10)
    loaded.unlink()
    pods.data_worker(0)
    launcher = pods.launcher()
    until("both data workers", lambda: registered() == 2)
    until("the ranks have heard of the new one", loaded.exists)
    launcher.send(signal.SIGSTOP)
    workers[1].kill()
    reached(len(list(tmp_path.glob("step-*"))) + 15)
    launcher.send(signal.SIGCONT)
    assert 0.0 <= pods.status()["data"]["waitFraction"] <= 1.0
    assert (launcher.wait(), agent.wait()) == (0, 0)
    ledger = json.loads((tmp_path / "end-0.json").read_text())["ledger"]
    assert [sample for epoch in range(6) for sample in sorted(s for e, part in ledger if e == epoch for s in part)] == [
        *range(240)
    ] * 6


def test_several_hosts_have_no_data_workers(tmp_path: Path, made: list[Run]) -> None:
    """The error names the commands that support data workers."""
    made.append(run := Run(tmp_path, "-np", "2", "-H", "a:1,b:1", "--data-workers", "2", "true"))
    code, _, err = run.finish()
    assert code == 2
    assert "spec.dataWorkers" in err
