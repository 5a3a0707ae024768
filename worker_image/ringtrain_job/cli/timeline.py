"""The command `ringtrain timeline FILE`, which prints the parts of each rank's step time."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from ringtrain_job.logs.fields import (
    Check,
    complete_fields,
    number_to,
    plain_text,
    rank_number,
    read_json,
    whole_number,
)

# Categories of spans in which all ranks participate, so that ranks can be compared.
_COLLECTIVES = ("collective", "shared memory")

# Fields of a span. Times are in microseconds.
_SPAN: Final[Mapping[str, Check]] = {
    "ph": lambda value: "X" if value == "X" else None,
    "pid": rank_number,
    "ts": partial(number_to, 2**53),
    "dur": partial(number_to, 2**53),
    "cat": plain_text,
    "name": plain_text,
    "args": lambda value: value if isinstance(value, dict) else None,
}

Interval = tuple[float, float]
Collective = tuple[str, int, int]


@dataclass
class RankTimes:
    """Time spans of one rank, in microseconds of a clock that all ranks share."""

    steps: list[Interval] = field(default_factory=list)
    spans: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))  # by category
    collectives: dict[Collective, Interval] = field(default_factory=dict)  # by name, process set and number


@dataclass(frozen=True)
class TimelineShares:
    """Parts of the time of one rank's steps, in microseconds.

    `parts`: parts of the time, by name. `waits`: for each rank, the time spent waiting for it after the backward pass,
    because it began a collective later.
    """

    steps: int
    total: float
    parts: Mapping[str, float]
    waits: Mapping[int, float]


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def timeline(file: Path) -> None:
    """Print the parts of each rank's step time. FILE was written by a run with RINGTRAIN_TIMELINE."""
    ranks = _read_timeline(file)
    last = last_starts(ranks)
    for rank, times in sorted(ranks.items()):
        found = rank_shares(times, last)
        click.echo(f"rank {rank}: {describe_timeline(found) if found else 'no complete step'}")


def _read_timeline(file: Path) -> dict[int, RankTimes]:
    """Return the valid spans in `file`, by rank."""
    events = read_json(file)
    if not isinstance(events, list):
        raise click.ClickException(f"{file} is not a timeline; pass the file that RINGTRAIN_TIMELINE named in a run")
    ranks: dict[int, RankTimes] = defaultdict(RankTimes)
    for event in events:
        if (span := complete_fields(event, _SPAN)) is not None:
            _add_span(ranks[span["pid"]], span)
    if not any(times.steps for times in ranks.values()):
        raise click.ClickException(
            f"{file} contains no step; call step() of a HostOptimizer or DistributedOptimizer in the run"
        )
    return ranks


def _add_span(times: RankTimes, span: dict[str, Any]) -> None:
    interval = span["ts"], span["ts"] + span["dur"]
    if span["cat"] == "step":
        times.steps.append(interval)
    elif span["cat"] in _COLLECTIVES and "sequence" in span["args"]:
        of, number = (whole_number(span["args"].get(name)) for name in ("set", "sequence"))
        if of is not None and number is not None:
            times.collectives[span["name"], of, number] = interval
    else:
        times.spans[span["cat"]].append(interval)


def last_starts(ranks: Mapping[int, RankTimes]) -> dict[Collective, tuple[float, int]]:
    """Return, for each collective, the time at which its last rank began it, and that rank."""
    last: dict[Collective, tuple[float, int]] = {}
    for rank, times in ranks.items():
        for key, (began, _) in times.collectives.items():
            last[key] = max(last.get(key, (began, rank)), (began, rank))
    return last


def rank_shares(times: RankTimes, last: Mapping[Collective, tuple[float, int]]) -> TimelineShares | None:
    """Return the parts of a rank's step time; None if it has no step. The first of several steps is omitted."""
    every = _disjoint(times.steps)
    steps = every[1:] or every
    batches, backward, forward = (_clipped(times.spans[name], steps) for name in ("batch", "backward", "forward"))
    total = _total_length(steps)
    if not total:
        return None
    if batches:  # a compiled graph runs the whole batch: passes and collectives overlap
        return TimelineShares(
            len(steps),
            total,
            {"input": total - _total_length(batches), "batch": _total_length(batches)},
            {},
        )
    ends = [end for _, end in backward]
    # The rest of a step after its last backward pass is the part of the update that was not overlapped.
    lasts = [(begin, bisect_right(ends, end), end) for begin, end in steps]
    exposed = [(ends[count - 1], end) for begin, count, end in lasts if count and ends[count - 1] > begin]
    waits: dict[int, float] = defaultdict(float)
    counted = -math.inf
    for (began, ended), (late_began, late) in sorted((times.collectives[key], last[key]) for key in times.collectives):
        until = min(ended, late_began)
        if until > counted:
            waits[late] += _total_length(_clipped([(max(began, counted), until)], exposed))
            counted = until
    # Parts below 0.5 % are noise.
    waits = {late: part for late, part in sorted(waits.items()) if part >= 0.005 * total}
    busy, update = _total_length(_disjoint([*forward, *backward, *exposed])), _total_length(exposed)
    early = "input" if forward else "input and forward"
    parts = {early: total - busy} | ({"forward": busy - _total_length(backward) - update} if forward else {})
    parts |= {"backward": _total_length(backward), "update": update - sum(waits.values())}
    return TimelineShares(len(steps), total, parts, waits)


def _clipped(intervals: Sequence[Interval], limits: Sequence[Interval]) -> list[Interval]:
    """Return the parts of `intervals` that lie within `limits`, which are sorted and disjoint."""
    begins = [begin for begin, _ in limits]
    found = []
    for a, b in _disjoint(intervals):
        for begin, end in limits[max(bisect_right(begins, a) - 1, 0) :]:
            if begin >= b:
                break
            if a < end:
                found.append((max(a, begin), min(b, end)))
    return found


def _disjoint(intervals: Sequence[Interval]) -> list[Interval]:
    """Return `intervals` in order of time, without the parts that earlier ones cover."""
    found, covered = [], -math.inf
    for begin, end in sorted(intervals):
        if end > covered:
            found.append((max(begin, covered), end))
            covered = end
    return found


def _total_length(intervals: Sequence[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def describe_timeline(found: TimelineShares) -> str:
    """Return a rank's shares of the step time as one line of text."""
    waits = {f"waiting for rank {late}": part for late, part in found.waits.items()}
    shown = ", ".join(f"{name} {round(100 * part / found.total)} %" for name, part in {**found.parts, **waits}.items())
    steps = f"{found.steps} step{'s' * (found.steps != 1)}"
    return f"{steps} of {found.total / found.steps / 1000:.3g} ms: {shown}"
