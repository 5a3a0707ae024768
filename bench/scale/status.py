"""Cost of an answer of the launcher's /status, in one process and without a network.

    python -m bench.scale.status 8 1000 8000

Workers have 8 ranks each. All ranks run and have reported 20 steps with their times. For each number of ranks, prints
the size of the whole and of the brief answer in bytes, and the milliseconds of processor time to make it in the
launcher and to read it in the operator.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from ringtrain_job.control.model import AgentState, RankPhase, RankState, Registration
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.status import LauncherReports, StatusSnapshot
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.store import LogStore
from ringtrain_operator.observe.pods import read_report

_SLOTS: Final = 8
_STEPS: Final = 20
_TIMES: Final = 9


def snapshot_of(folder: Path, ranks: int) -> StatusSnapshot:
    """A job of `ranks` ranks in the middle of its training."""
    workers = -(-ranks // _SLOTS)
    config = LauncherConfig.from_env(
        {
            "RINGTRAIN_JOB_NAME": "digits",
            "RINGTRAIN_JOB_NAMESPACE": "default",
            "RINGTRAIN_JOB_UID": "uid-1",
            "RINGTRAIN_ATTEMPT": "1",
            "RINGTRAIN_NUM_WORKERS": str(workers),
            "RINGTRAIN_SLOTS_PER_WORKER": str(_SLOTS),
        }
    )
    gang = Gang(config, time.monotonic)
    for index in range(workers):
        gang.register(_registration(index))
        states = tuple(RankState(rank, RankPhase.RUNNING) for rank in range(_SLOTS * index, _SLOTS * (index + 1)))
        gang.sync(index, f"instance-{index}", AgentState(states))
    store = LogStore(AttemptFiles.of(folder, "default", "digits", 1), "uid-1", 1)
    snapshot = StatusSnapshot(config, gang, store, LauncherReports(config.world_size))
    snapshot.running_since = snapshot.last_progress = time.time()
    with snapshot.reports as reports:
        for step in range(_STEPS):
            for rank in range(config.world_size):
                reports.add(rank, _report(step, rank))
    return snapshot


def _registration(index: int) -> Registration:
    return Registration(
        job_uid="uid-1",
        attempt=1,
        worker_index=index,
        slots=_SLOTS,
        instance=f"instance-{index}",
        pod=f"digits-worker-{index}",
        node=f"node-{index // 8}",
        address=f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}",
        agent_port=7360,
        ring_ports=tuple(range(7400, 7400 + _SLOTS)),
        tf_ports=tuple(range(7500, 7500 + _SLOTS)),
        master_port=7390,
    )


def _report(step: int, rank: int) -> dict[str, Any]:
    began = 1730000000.0 + step + 1e-5 * rank
    waits = {"inputWait": 0.01, "reductionWait": 0.1 + 1e-6 * rank, "updateTime": 0.02}
    return {"step": step, "totalSteps": 300, "samples": 32, "loss": 0.5, "time": began, **waits}


def _cost_ms(work: Callable[[], object]) -> float:
    """Median of processor time."""
    found = []
    for _ in range(_TIMES):
        began = time.process_time()
        work()
        found.append(1e3 * (time.process_time() - began))
    return median(found)


def _costs(ask: Callable[[], dict[str, Any]]) -> str:
    body = json.dumps(ask()).encode()
    made, read = _cost_ms(lambda: json.dumps(ask())), _cost_ms(lambda: read_report(json.loads(body)))
    return f"{len(body):,} | {made:.2f} | {read:.2f}"


def main() -> None:
    """Print the table."""
    print("| ranks | answer | bytes | made, ms | read, ms |\n| --- | --- | --- | --- | --- |")
    for ranks in map(int, sys.argv[1:] or ("8", "1000", "8000")):
        with tempfile.TemporaryDirectory() as folder:
            snapshot = snapshot_of(Path(folder), ranks)
            for name, ask in (("whole", snapshot.status), ("brief", snapshot.brief_status)):
                print(f"| {ranks} | {name} | {_costs(ask)} |", flush=True)
            snapshot.store.close()


if __name__ == "__main__":
    main()
