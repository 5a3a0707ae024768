"""`make bench`: every case beside its peers; a table on the terminal, JSON and plots under bench/results/.

python -m bench.run [--quick] [--only WORD]
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from bench.cases import CASES, Case
from bench.contest import REPOSITORY, contest, gangs
from bench.report import plot, print_tables
from bench.verdicts import verdicts

RESULTS = Path(__file__).parent / "results"


@click.command()
@click.option("--only", default="", help="Run only cases whose name contains this.")
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(only: str, output: Path) -> None:
    """Run the benchmarks."""
    started = time.monotonic()
    points = [point for case in CASES if only in case.name for point in run_case(case)]
    kernels = run_kernels() if only in "kernels" else {}
    results = {"machine": machine(), "points": points, "kernels": kernels}
    results["verdicts"] = verdicts(results)
    results["machine"]["seconds"] = round(time.monotonic() - started)
    output.mkdir(parents=True, exist_ok=True)
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print_tables(results)
    plot(results, output)


def run_case(case: Case) -> Iterator[dict[str, Any]]:
    """Yield one point for each thing that the case does. A case that can't run here says so and yields nothing."""
    try:
        with case.hosts() as hosts, gangs(case.contenders, hosts) as running:
            for what, rounds in case.work:
                print(f"{case.name}, {hosts.ranks} ranks: {what}", file=sys.stderr)
                found = contest([g for g in running if case.takes_part(g.contender, what)], rounds, what)
                yield {"case": case.name, "ranks": hosts.ranks, "what": what, "contenders": found}
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{case.name} is left out: {error}", file=sys.stderr)


def run_kernels() -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.kernels"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def machine() -> dict[str, Any]:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": model[0].partition(": ")[2] if model else platform.processor(),
        "load_before": os.getloadavg()[0],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    main()
