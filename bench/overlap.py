"""One picture of a step that reduces during the backward pass, and of one that begins when the pass has ended.

    python -m bench.overlap docs/images/overlap.png

Two hosts at 1 Gbit/s, ResNet-50's gradients, AdamW, a paced backward pass as long as the wire needs. What is drawn
is what RINGTRAIN_TIMELINE wrote.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import matplotlib

from bench.cases import GRPC, LINE_BYTES_PER_S, STEP_BYTES
from bench.contest import Gang, Samples
from bench.hosts import namespaces
from bench.steps import PACED

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# A lane for each kind of span, from the top.
LANES = {PACED: "backward", "reduce": "reduce", "update": "update", "gather": "gather"}
COLOURS = {PACED: "#999999", "reduce": "#e4572e", "update": "#29335c", "gather": "#08a045"}
STEPS = 3  # the last one is drawn
_LEAST_MS = 2.5  # updates take less than a millisecond, and would not be seen

Event = dict[str, Any]


def record_and_draw(path: Path) -> None:
    """Run both kinds of step and draw them to `path`; where namespaces can't be made, say so and draw nothing."""
    try:
        traces = {title: last_step(record(overlap)) for title, overlap in (("overlap", True), ("no overlap", False))}
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        print(f"the picture of overlap is left out: {error}", file=sys.stderr)
        return
    draw(traces, path)


def record(overlap: bool) -> list[Event]:
    """Return what rank 0 writes to its timeline in a few steps."""
    print(f"overlap: {overlap}", file=sys.stderr)
    what = {"kind": "step", "backward_s": STEP_BYTES / LINE_BYTES_PER_S, "overlap": overlap}
    with tempfile.TemporaryDirectory() as directory, namespaces(2, "1gbit") as hosts:
        trace = Path(directory) / "timeline.json"
        gang = Gang("ringtrain-grpc", hosts, GRPC | {"RINGTRAIN_TIMELINE": str(trace)})
        try:
            gang.run(STEPS, 1, what, Samples())
        finally:
            gang.close()
        events = json.loads(trace.read_text())
    return [event for event in events if event["pid"] == 0 and event["ph"] == "X"]


def last_step(events: list[Event]) -> list[Event]:
    """The spans of the last step, in ms from the beginning of its backward pass."""
    began = max(event["ts"] for event in events if event["cat"] == PACED)
    return [
        {"lane": lane, "at": (e["ts"] - began) / 1e3, "for": e["dur"] / 1e3}
        for e in events
        if (lane := _lane(e)) is not None and e["ts"] >= began
    ]


def _lane(event: Event) -> str | None:
    if event["cat"] in (PACED, "update"):
        return str(event["cat"])
    if event["cat"] != "collective":
        return None
    return event["name"] if event["name"] in LANES else None


def draw(traces: dict[str, list[Event]], path: Path) -> None:
    figure, panels = plt.subplots(len(traces), 1, figsize=(11, 5.2), sharex=True)
    order = list(LANES)
    for axes, (title, spans) in zip(panels, traces.items(), strict=True):
        for span in spans:
            height = len(order) - 1 - order.index(span["lane"])
            width = max(span["for"], _LEAST_MS)
            axes.barh(height, width, left=span["at"], height=0.72, color=COLOURS[span["lane"]], linewidth=0)
        end = max(span["at"] + span["for"] for span in spans)
        axes.axvline(end, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(f"{end:.0f} ms", (end, len(order) - 0.6), ha="right", va="bottom", xytext=(-4, 0),
                      textcoords="offset points")  # fmt: skip
        axes.set_yticks(range(len(order)), [LANES[lane] for lane in reversed(order)])
        axes.set(title=title, ylim=(-0.6, len(order) - 0.1))
        axes.grid(axis="x", alpha=0.3)
    panels[-1].set_xlim(0, None)
    panels[-1].set_xlabel("ms from the beginning of the backward pass")
    wire_ms = STEP_BYTES / LINE_BYTES_PER_S * 1e3
    figure.suptitle(
        f"rank 0 of 2 at 1 Gbit/s, 25.6 M parameters: backward {wire_ms:.0f} ms, wire {wire_ms:.0f} ms",
        fontsize=11,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
def main(path: Path) -> None:
    """Draw to PATH."""
    record_and_draw(path)


if __name__ == "__main__":
    main()
