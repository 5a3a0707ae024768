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
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from support.apiserver import ControlPlane, why_unavailable  # noqa: E402
from support.rounds import Round, open_arena, scheduling_plane  # noqa: E402

RESULTS = Path(__file__).parent / "gangs.json"
# Jobs, workers of each, devices of each worker; two nodes have four devices each.
SETTINGS = {"two of 75 %": (2, 3, 2), "four of 100 %": (4, 4, 2)}


def main() -> None:
    """Play the rounds, and write what each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if reason := why_unavailable("kube-scheduler"):
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="bench-gangs-") as folder, scheduling_plane(Path(folder)) as plane:
        found: dict[str, Any] = {}
        for name, (jobs, workers, devices) in SETTINGS.items():
            rounds = asyncio.run(_play(plane, Path(folder) / "nodes", options.rounds, (jobs, workers, devices)))
            found[name] = _summary(rounds)
            print(f"{name}: {json.dumps({k: v for k, v in found[name].items() if k != 'each'})}", flush=True)
    found["time"] = datetime.now(UTC).isoformat(timespec="seconds")
    found["cores"] = os.cpu_count()
    options.output.write_text(json.dumps(found, indent=2) + "\n")


async def _play(plane: ControlPlane, nodes: Path, rounds: int, setting: tuple[int, int, int]) -> list[Round]:
    async with open_arena(plane, nodes) as arena:
        return [await arena.round(*setting) for _ in range(rounds)]


def _summary(rounds: list[Round]) -> dict[str, Any]:
    firsts, idle = [r.first_whole_s for r in rounds], [r.idle_device_s for r in rounds]
    return {
        "rounds": len(rounds),
        "first_whole_s": {"median": round(statistics.median(firsts), 1), "longest": round(max(firsts), 1)},
        "idle_device_s": {"median": round(statistics.median(idle), 1), "most": round(max(idle), 1)},
        "counted": sum(r.restarts + r.disruptions for r in rounds),
        "each": [{name: round(value, 1) for name, value in asdict(r).items()} for r in rounds],
    }


if __name__ == "__main__":
    main()
