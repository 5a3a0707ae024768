"""An elastic job on this machine, with the real launcher, agents and ranks."""

import re
import signal
from pathlib import Path

import psutil
import pytest
import yaml
from support.local import Local, Start, until

TRAIN = Path(__file__).parents[2] / "support" / "elastic_counting.py"
ENTERED = re.compile(r"slot (\d+) in process (\d+) is in a world of (\d+) at step (\d+)")


def worlds(local: Local) -> list[tuple[int, int, int]]:
    """Slot, process and size of each entry into a world, in the order of the log; empty before there is one."""
    if not list(local.directory.glob("runs/*/logs/default/*/1/job.log")):
        return []
    return [(int(m[1]), int(m[2]), int(m[3])) for m in ENTERED.finditer(local.log(1))]


def entered(local: Local, size: int, after: int = 0) -> bool:
    """Whether slot 0 has entered a world of `size`, in the entries behind the first `after`."""
    return any(slot == 0 and ranks == size for slot, _, ranks in worlds(local)[after:])


def scale(local: Local, workers: int) -> None:
    """Save the manifest with another number of workers."""
    local.save(worker={**yaml.safe_load(local.manifest.read_text())["spec"]["worker"], "replicas": workers})


def pod(local: Local, command: str, index: str = "") -> psutil.Process:
    """The first process of the launcher's or of an agent's pod."""

    def found() -> psutil.Process | None:
        for process in local.processes():
            words, environment = process.cmdline(), process.environ()
            if command in words and environment.get("RINGTRAIN_WORKER_INDEX", "") == index:
                return process
        return None

    return until(found) or pytest.fail("unreachable")


def test_workers_come_and_go_and_survivors_live_on(start: Start, tmp_path: Path) -> None:
    """A killed worker, a third, a killed launcher, two fewer: one attempt, and slot 0 is one process in it all."""
    stop = tmp_path / "stop"
    local = start(
        "python",
        str(TRAIN),
        str(stop),
        elastic={"maxReplicas": 4, "onLoss": "Shrink", "joinDelaySeconds": 0},
        networking={"timeoutSeconds": 30},  # agents wait so long for a launcher that comes back
    )
    until(lambda: entered(local, 2))
    pod(local, "agent", "1").send_signal(signal.SIGKILL)
    until(lambda: entered(local, 1))
    alone = len(worlds(local))
    until(lambda: entered(local, 2, alone))
    scale(local, 3)
    until(lambda: entered(local, 3))
    pod(local, "launcher").send_signal(signal.SIGKILL)
    scale(local, 1)
    grown = len(worlds(local))
    until(lambda: entered(local, 1, grown))
    assert len({process for slot, process, _ in worlds(local) if slot == 0}) == 1
    stop.touch()
    output = local.finish(0)
    assert "1 attempt\n" in output
    assert "t-worker-1" in output, "the loss is told"
