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

from plane import start_plane  # noqa: E402
from scenarios import SCENARIOS  # noqa: E402
from setting import Setting, warm_up  # noqa: E402
from support.apiserver import ControlPlane, why_unavailable  # noqa: E402
from thousands import thousands  # noqa: E402

from ringtrain_operator.cluster.api.client import ApiClient  # noqa: E402
from ringtrain_operator.cluster.api.transport import ApiLimits  # noqa: E402

RESULTS = Path(__file__).parent / "results.json"
MEASURED = {**SCENARIOS, thousands.__name__: thousands}
# Jobs and workers each: the slope of `thousands`.
SLOPE = ((1, 99), (1, 1000), (1, 4096), (3, 1000), (10, 1000))


def main() -> None:
    """Run the scenarios, each on a control plane of its own, and write or renew them in the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(MEASURED), help="leave out the others")
    parser.add_argument("--jobs", type=int, help="100; of `thousands` several, see SLOPE")
    parser.add_argument("--workers", type=int, help="8; of `thousands` several, see SLOPE")
    parser.add_argument("--finished", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if reason := why_unavailable():
        sys.exit(reason)
    for name in options.only or MEASURED:
        if name != thousands.__name__:
            _keep(options.output, (name,), _run(name, _sized(options, 100, 8)))
            continue
        for jobs, workers in SLOPE if options.jobs is None else ((options.jobs, options.workers or 1000),):
            found = _run(name, _sized(options, jobs, workers))
            _keep(options.output, (name, f"{jobs} x {workers}"), found)


def _sized(options: argparse.Namespace, jobs: int, workers: int) -> argparse.Namespace:
    """The options with these amounts where none were given."""
    given = {"jobs": options.jobs or jobs, "workers": options.workers or workers}
    return argparse.Namespace(**{**vars(options), **given})


def _keep(output: Path, place: tuple[str, ...], found: dict[str, Any]) -> None:
    """Write or renew what was found at that place of the results."""
    known = json.loads(output.read_text()) if output.exists() else {}
    below = known
    for name in place[:-1]:
        below = below.setdefault(name, {})
    below[place[-1]] = found
    output.write_text(json.dumps(known, indent=2) + "\n")


def _run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    load_before = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="bench-operator-") as folder:
        plane = start_plane(Path(folder))
        try:
            found = asyncio.run(_in_setting(name, plane, Path(folder), options))
        finally:
            plane.stop()
    found = {**found, "load_average": [load_before, round(os.getloadavg()[0], 2)], **_machine()}
    print(f"{name}: {json.dumps(found)}", flush=True)
    return found


async def _in_setting(name: str, plane: ControlPlane, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    async with ApiClient(plane.connection(), limits=ApiLimits(connections=16, timeout_s=120)) as api:
        await warm_up(api)
        amounts = (options.jobs, options.workers, options.finished, options.rounds)
        return await MEASURED[name](Setting(plane, api, folder, *amounts))


def _machine() -> dict[str, Any]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


if __name__ == "__main__":
    main()
