"""`make bench-operator`: measure the operator on a real API server on this machine; writes JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

import scenarios  # noqa: E402
from plane import cpu_s, operator_process, plane_cpu_s, rss_mib, start_plane, writes_so_far  # noqa: E402
from support.apiserver import ControlPlane, why_unavailable  # noqa: E402

from ringtrain_operator.cluster.api import ApiClient  # noqa: E402

RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    """Run everything and write bench/operator/results.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--finished", type=int, default=1000)
    parser.add_argument("--soak-rounds", type=int, default=5)
    parser.add_argument("--only-burst", action="store_true", help="leave out soak, restart and idleness")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if reason := why_unavailable():
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="bench-operator-") as folder:
        plane = start_plane(Path(folder))
        try:
            results = {"machine": _machine(), **_measure(plane, Path(folder), options)}
        finally:
            plane.stop()
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def _measure(plane: ControlPlane, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        results[name] = value
        print(f"{name}: {json.dumps(value)}", file=sys.stderr, flush=True)

    async def with_jobs(process: Any) -> None:
        async with ApiClient(plane.connection(), connections=16, timeout_s=120) as api:
            ns = await scenarios.fresh_namespace(api, "burst")
            note("started", {"rss_mib": rss_mib(process)})
            used, plane_used = cpu_s(process), plane_cpu_s(plane)
            burst = await scenarios.burst(api, ns, options.jobs, options.workers)
            spent = {name: round(now - plane_used[name], 2) for name, now in plane_cpu_s(plane).items()}
            note("burst", {**burst, "cpu_s": {"operator": round(cpu_s(process) - used, 2), **spent}})
            note("load_at_burst", round(os.getloadavg()[0], 2))
            note("after_burst", {"rss_mib": rss_mib(process)})
            await scenarios.quiet(process)
            note("change_to_status", await scenarios.change_to_status(api, ns, options.jobs, 10))
            if options.only_burst:
                return
            note("idle_with_jobs", await scenarios.idle(process, 20))
            await scenarios.remove_all(api, ns)
            soak = await scenarios.fresh_namespace(api, "soak")
            note("soak", await scenarios.soak(api, soak, process, (200, 4, options.soak_rounds)))

    async def prepare_finished() -> None:
        async with ApiClient(plane.connection(), connections=16, timeout_s=120) as api:
            note("ceiling", await scenarios.ceiling(api, 400))
            ns = await scenarios.fresh_namespace(api, "finished")
            await scenarios.finished_jobs(api, ns, options.finished)

    async def after_restart(process: Any, before: dict[str, float]) -> None:
        restart = await scenarios.restart_writes(plane, process, before)
        note("restart", {"finished_jobs": options.finished, **restart})
        note("idle_with_finished_jobs", await scenarios.idle(process, 20))

    with operator_process(plane, folder) as process:
        asyncio.run(with_jobs(process))
    if options.only_burst:
        return results
    asyncio.run(prepare_finished())
    before = writes_so_far(plane)
    with operator_process(plane, folder) as process:
        asyncio.run(after_restart(process, before))
    return results


def _machine() -> dict[str, Any]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "nice": os.nice(0),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


if __name__ == "__main__":
    main()
