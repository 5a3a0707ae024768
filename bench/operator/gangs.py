"""`make bench-gangs`: rounds of jobs that compete for devices, on the real scheduler; writes gangs.json.

In each round jobs are submitted at once. Each fits alone, and no two fit together. A job that is whole then ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from support.apiserver import ControlPlane, why_unavailable  # noqa: E402
from support.kueue import Kueue, why_no_kueue  # noqa: E402
from support.rounds import KUEUE, Round, open_arena, scheduling_plane  # noqa: E402

RESULTS = Path(__file__).parent / "gangs.json"


@dataclass(frozen=True)
class Setting:
    """Scheduler of the jobs' pods, number of jobs, and number of workers per job, with two devices each.

    `misplaced`: number of jobs ahead of them that fit on no node.
    """

    gang: str
    jobs: int
    workers: int
    devices_of_node: int
    misplaced: int = 0


SETTINGS = {
    "two of 60 %, gangs of Kubernetes": Setting("Kubernetes", 2, 3, 5),
    "two of 60 %, pod by pod": Setting("None", 2, 3, 5),
    "two of 60 %, in a queue of Kueue": Setting(KUEUE, 2, 3, 5),
    "four of 100 %, pod by pod": Setting("None", 4, 4, 4),
    "four of 100 %, in a queue of Kueue": Setting(KUEUE, 4, 4, 4),
    "two of 60 % behind two that fit nowhere, pod by pod": Setting("None", 2, 3, 5, misplaced=2),
    "two of 60 % behind two that fit nowhere, in a queue of Kueue": Setting(KUEUE, 2, 3, 5, misplaced=2),
}


def main() -> None:
    """Play the rounds, and write what they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of each setting")
    parser.add_argument("--lanes", type=int, default=4, help="rounds at a time, on nodes of their own")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if reason := why_unavailable("kube-scheduler"):
        sys.exit(reason)
    if reason := why_no_kueue():
        print(f"without Kueue: {reason}", flush=True)
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gangs-"))
        kueue = None if reason else Kueue.prepare(Path(folder) / "kueue")
        plane = stack.enter_context(scheduling_plane(Path(folder), kueue))
        settings = {name: one for name, one in SETTINGS.items() if kueue is not None or one.gang != KUEUE}
        for name, setting in settings.items():
            rounds = asyncio.run(_play(plane, Path(folder), setting, _shares(options.rounds, options.lanes)))
            found[name] = _summary(rounds)
            print(f"{name}: {json.dumps(found[name])}", flush=True)
    found |= {"time": datetime.now(UTC).isoformat(timespec="seconds"), "cores": os.cpu_count()}
    options.output.write_text(json.dumps({**found, "lanes": options.lanes}, indent=2) + "\n")


def _shares(rounds: int, lanes: int) -> list[int]:
    return [len(range(lane, rounds, lanes)) for lane in range(min(lanes, rounds))]


async def _play(plane: ControlPlane, folder: Path, setting: Setting, shares: list[int]) -> list[Round]:
    async def lane(number: int, rounds: int) -> list[Round]:
        nodes = folder / f"nodes-{number}"
        async with open_arena(plane, nodes, devices=setting.devices_of_node, gang=setting.gang) as arena:
            return [await arena.round(setting.jobs, setting.workers, 2, setting.misplaced) for _ in range(rounds)]

    played = await asyncio.gather(*(lane(number, rounds) for number, rounds in enumerate(shares)))
    return [one for rounds in played for one in rounds]


def _summary(rounds: list[Round]) -> dict[str, Any]:
    each = [asdict(one) for one in rounds]
    measures = {name: _spread([one[name] for one in each]) for name in each[0] if name.endswith("_s")}
    return {
        "rounds": len(rounds),
        **measures,
        "counted": sum(one.restarts + one.disruptions for one in rounds),
        "groups_left": sum(one.groups for one in rounds),
    }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    p90 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
    return {"median": round(statistics.median(values), 1), "p90": round(p90, 1), "most": round(ordered[-1], 1)}


if __name__ == "__main__":
    main()
