"""Tables on the terminal, and plots."""

from pathlib import Path
from typing import Any

import matplotlib
from rich.console import Console
from rich.table import Table

from bench.cases import title_of

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Patch

Results = dict[str, Any]
COLOURS = {
    "ringtrain-shm": "#0b6e4f",
    "ringtrain-grpc": "#08a045",
    "ringtrain": "#0b6e4f",
    "ringtrain-pods": "#c58b00",
    "ringtrain-encrypted": "#7b2d8b",
    "ringtrain-neighbour": "#9bc53d",
    "gloo": "#e4572e",
    "mpi-shm": "#29335c",
    "mpi-tcp": "#669bbc",
    "copy": "#999999",
}


_BEGIN, _END = "<!-- figures, written by make bench -->", "<!-- end of figures -->"
STYLES = {"aim reached": "bold green", "pass": "green", "not measured": "dim"}


def print_tables(results: Results, points: list[dict[str, Any]]) -> None:
    """A table for each of `points`, and what is promised."""
    console = Console(width=130)
    for point in points:
        if "contenders" in point:
            console.print(_point_table(point))
    table = Table("case", "asked", "aim", "ratio", "", title="What is promised")
    for row in results["verdicts"]:
        table.add_row(*_cells(row), style=STYLES.get(row["verdict"], "red"))
    console.print(table)


def markdown(results: Results) -> str:
    """Return Markdown: a line on the machine, and a table of aims and results."""
    about = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        f"{about['processor']}, {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}, "
        f"{versions}; load {about['load_before']} before and {about['load_after']} after; {about['time']}, commit "
        f"{about['commit']}; {about['seconds']} s.",
        "",
        "| case | asked | aim | ratio | |",
        "| --- | --- | --- | --- | --- |",
        *(f"| {' | '.join(_cells(row))} |" for row in results["verdicts"]),
    ]
    return "\n".join(lines) + "\n"


def insert_figures(readme: Path, table: str) -> None:
    """Replace what `readme` has between its two markers."""
    before, _, rest = readme.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    if not after:
        raise ValueError(f"{readme} has no line {_BEGIN} with a line {_END} after it")
    readme.write_text(f"{before}{_BEGIN}\n\n{table}\n{_END}{after}")


def _cells(row: dict[str, Any]) -> list[str]:
    sign = "≥" if row["higher"] else "≤"
    bounds = ["" if row[kind] is None else f"{kind} {sign} {row[kind]:g}" for kind in ("asked", "aim")]
    return [row["name"], *bounds, "" if row["figure"] is None else f"ratio {row['figure']:.2f}", row["verdict"]]


def _point_table(point: dict[str, Any]) -> Table:
    title = f"{title_of(point['case'], point['ranks'], point['what'])}; load {point['load']}"
    table = Table("contender", "median ms", "quartiles ms", "CPU s/GB", "sent / tensor / rank", title=title)
    nbytes = point["what"].get("nbytes", 25_557_032 * 4)
    for name, found in point["contenders"].items():
        table.add_row(
            name,
            f"{found['median_s'] * 1e3:.3f}",
            f"{found['quartile1_s'] * 1e3:.3f} … {found['quartile3_s'] * 1e3:.3f}",
            f"{found['cpu_s'] / nbytes * 1e9:.2f}",
            f"{found['wire_bytes'] / nbytes / point['ranks']:.3f}",
        )
    return table


def plot(results: Results, directory: Path) -> None:
    """Latency and bus bandwidth over size, and steps, as PNG files."""
    for ranks in (2, 4):
        points = [
            p for p in results["points"]
            if p["case"] == "one machine" and p["ranks"] == ranks and p["what"]["kind"] == "allreduce"
        ]  # fmt: skip
        points.sort(key=lambda p: p["what"]["nbytes"])
        if points:
            _plot_sizes(points, ranks, directory / f"allreduce-{ranks}-ranks.png")
    steps = [p for p in results["points"] if p["what"] == {"kind": "step"} and p["case"] == "one machine"]
    if steps:
        _plot_steps(steps, directory / "step.png")


def _plot_sizes(points: list[dict[str, Any]], ranks: int, path: Path) -> None:
    figure, (latency, bandwidth) = plt.subplots(1, 2, figsize=(13, 5))
    for name in points[0]["contenders"]:
        known = [p for p in points if name in p["contenders"]]
        sizes = [p["what"]["nbytes"] / 1024 for p in known]
        found = [p["contenders"][name] for p in known]
        seconds = [f["median_s"] for f in found]
        style = {"color": COLOURS[name], "marker": "o", "markersize": 3, "label": name}
        latency.plot(sizes, [s * 1e3 for s in seconds], **style)
        low, high = ([f[q] * 1e3 for f in found] for q in ("quartile1_s", "quartile3_s"))
        latency.fill_between(sizes, low, high, color=COLOURS[name], alpha=0.15)
        factor = 1 if name == "copy" else 2 * (ranks - 1) / ranks
        bandwidth.plot(sizes, [factor * k * 1024 / s / 1e9 for k, s in zip(sizes, seconds, strict=True)], **style)
    for axes, label in ((latency, "time, ms"), (bandwidth, "bus bandwidth, GB/s")):
        axes.set(xscale="log", yscale="log", xlabel="tensor, KiB", ylabel=label)
        axes.grid(alpha=0.3)
    latency.legend()
    figure.suptitle(f"allreduce of float32 between {ranks} ranks on one machine; band: quartiles")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _plot_steps(points: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 4))
    names = list(dict.fromkeys(name for point in points for name in point["contenders"]))
    for column, point in enumerate(points):
        for place, (name, found) in enumerate(point["contenders"].items()):
            axes.bar(column + place * 0.22, found["median_s"] * 1e3, 0.19, color=COLOURS[name])
    middles = [column + 0.11 * (len(point["contenders"]) - 1) for column, point in enumerate(points)]
    axes.set_xticks(middles, [f"{p['ranks']} ranks" for p in points])
    axes.set(ylabel="ms", title="step of 25.6 M parameters with AdamW, gradients ready to new weights (gloo: DDP)")
    axes.legend(handles=[Patch(color=COLOURS[name], label=name) for name in names])
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
