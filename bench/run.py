"""`make bench`: every case beside its peers; a table on the terminal, JSON and plots under bench/results/.

python -m bench.run [--only WORD] [--keep] [--output DIR]
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bench import overlap
from bench.cases import CASES, Case, title_of
from bench.contest import REPOSITORY, contest, gangs
from bench.machine import load, machine
from bench.report import insert_figures, markdown, plot, print_tables
from bench.verdicts import verdicts

RESULTS = Path(__file__).parent / "results"
KERNELS = "kernels: one AdamW step in one thread"
OVERLAP = "overlap: traces of a step with its backward pass"


@click.command()
@click.option("--only", default="", help='Only points with this in their title, as "4 ranks" or "step".')
@click.option("--keep", is_flag=True, help="Keep the other points that results.json has.")
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(only: str, keep: bool, output: Path) -> None:
    """Run the benchmarks."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / "results.json"
    before = json.loads(path.read_text()) if keep and path.exists() else {}
    about, started = machine(), time.monotonic()
    points: list[dict[str, Any]] = []
    for case in CASES:
        for point in run_case(case.only(only)):
            points.append(point)
            # So that what was measured is there if the rest is not to come.
            save(path, {"machine": about, "points": merged(before.get("points", []), points), "kernels": {}})
    kernels = run_kernels() if only in KERNELS else before.get("kernels", {})
    if only in OVERLAP:
        overlap.record_and_draw(output / "overlap.png")
    about["seconds"] = round(time.monotonic() - started) + before.get("machine", {}).get("seconds", 0)
    about["load_after"] = load()
    results = {"machine": about, "points": merged(before.get("points", []), points), "kernels": kernels}
    results["verdicts"] = verdicts(results)
    save(path, results)
    (output / "verdicts.md").write_text(markdown(results))
    if output == RESULTS:
        insert_figures(RESULTS.parent / "README.md", markdown(results))
    print_tables(results, points)
    plot(results, output)


def save(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n")


def run_case(case: Case) -> Iterator[dict[str, Any]]:
    """Yield one point for each thing that the case does. A case that can't run here says so and yields nothing."""
    if not case.work and not case.questions:
        return
    try:
        with case.hosts() as hosts, gangs(case.contenders, hosts) as running:
            for what, rounds in case.work:
                print(case.title(what), file=sys.stderr)
                about = {"case": case.name, "ranks": case.ranks, "what": what, "load": load()}
                found = contest([g for g in running if case.takes_part(g.contender, what)], rounds, what)
                yield about | {"contenders": found}
            for what in case.questions:
                answers = {g.contender: g.ask(what) for g in running if case.takes_part(g.contender, what)}
                yield {"case": case.name, "ranks": case.ranks, "what": what, "answers": answers}
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{case.name} is left out: {error}", file=sys.stderr)


def merged(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points of `now`, and those of `before` that were not measured again."""
    points = {_title(point): point for point in [*before, *now]}
    return list(points.values())


def _title(point: dict[str, Any]) -> str:
    return title_of(point["case"], point["ranks"], point["what"])


def run_kernels() -> dict[str, Any]:
    print(KERNELS, file=sys.stderr)
    command = [sys.executable, "-m", "bench.kernels"]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    main()
