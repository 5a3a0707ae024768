"""`ringtrain timeline FILE`: where the time of a step goes, rank by rank."""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

# What every rank takes part in: ranks are compared in these.
_COLLECTIVES = ("collective", "shared memory")

Interval = tuple[float, float]
Collective = tuple[str, int, int]


@dataclass
class RankTimes:
    """One rank's spans, in microseconds of a clock that all ranks share."""

    steps: list[Interval] = field(default_factory=list)
    spans: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))  # by category
    collectives: dict[Collective, Interval] = field(default_factory=dict)  # by name, process set and number


@dataclass(frozen=True)
class TimelineShares:
    """Where one rank's steps went, in microseconds: `parts` by name, and `waits` for other ranks, which began a
    collective later, after the backward pass."""

    steps: int
    total: float
    parts: Mapping[str, float]
    waits: Mapping[int, float]


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def timeline(file: Path) -> None:
    """Print where a step's time goes in FILE, which a run with RINGTRAIN_TIMELINE has written."""
    ranks = _read_timeline(file)
    last = last_rank_in_timeline(ranks)
    for rank, times in sorted(ranks.items()):
        found = timeline_shares(times, last)
        click.echo(f"rank {rank}: {describe_timeline(found) if found else 'no whole step'}")


def _read_timeline(file: Path) -> dict[int, RankTimes]:
    try:
        events = json.loads(file.read_bytes())
        ranks: dict[int, RankTimes] = defaultdict(RankTimes)
        for event in events:
            if event["ph"] == "X":
                _note_timeline_span(ranks[int(event["pid"])], event)
    except (ValueError, KeyError, TypeError) as exc:
        raise click.ClickException(f"{file} is not a timeline of ringtrain ({type(exc).__name__}: {exc})") from exc
    if not any(times.steps for times in ranks.values()):
        raise click.ClickException(
            f"{file} has no step; a step ends with step() of a HostOptimizer or DistributedOptimizer"
        )
    return ranks


def _note_timeline_span(times: RankTimes, event: dict[str, Any]) -> None:
    interval = event["ts"], event["ts"] + event["dur"]
    if event["cat"] == "step":
        times.steps.append(interval)
    elif event["cat"] in _COLLECTIVES and "sequence" in event["args"]:
        args = event["args"]
        times.collectives[event["name"], args["set"], args["sequence"]] = interval
    else:
        times.spans[event["cat"]].append(interval)


def last_rank_in_timeline(ranks: Mapping[int, RankTimes]) -> dict[Collective, tuple[float, int]]:
    """When the last rank began each collective, and which rank that was."""
    last: dict[Collective, tuple[float, int]] = {}
    for rank, times in ranks.items():
        for key, (began, _) in times.collectives.items():
            last[key] = max(last.get(key, (began, rank)), (began, rank))
    return last


def timeline_shares(times: RankTimes, last: Mapping[Collective, tuple[float, int]]) -> TimelineShares | None:
    """Where a rank's steps went; None without one. The first only warms up, and counts if it is the only one."""
    steps = times.steps[1:] or times.steps
    if not steps:
        return None
    batches, backward, forward = (
        _intervals_within(times.spans[name], steps) for name in ("batch", "backward", "forward")
    )
    total = _intervals_length(steps)
    if batches:  # a graph runs the whole batch, in which passes and collectives overlap
        return TimelineShares(
            len(steps),
            total,
            {"input": total - _intervals_length(batches), "batch": _intervals_length(batches)},
            {},
        )
    ends = [end for _, end in backward]
    # What is left of a step when its last backward pass has ended is the update that it could not hide.
    exposed = [(ends[index - 1], end) for _, end in steps if (index := bisect_right(ends, end))]
    waits: dict[int, float] = defaultdict(float)
    for key, (began, ended) in times.collectives.items():
        late_began, late = last[key]
        waits[late] += _intervals_length(_intervals_within([(began, min(ended, late_began))], exposed))
    # Less than half a per cent is noise.
    waits = {late: part for late, part in sorted(waits.items()) if part >= 0.005 * total}
    passes, update = _intervals_length(forward) + _intervals_length(backward), _intervals_length(exposed)
    early = "input" if forward else "input and forward"
    parts = {early: total - passes - update} | ({"forward": _intervals_length(forward)} if forward else {})
    parts |= {"backward": _intervals_length(backward), "update": update - sum(waits.values())}
    return TimelineShares(len(steps), total, parts, waits)


def _intervals_within(intervals: Sequence[Interval], limits: Sequence[Interval]) -> list[Interval]:
    """The parts of `intervals` that lie in one of `limits`, which are in order and apart."""
    begins = [begin for begin, _ in limits]
    found = []
    for a, b in sorted(intervals):
        for begin, end in limits[max(bisect_right(begins, a) - 1, 0) :]:
            if begin >= b:
                break
            if a < end:
                found.append((max(a, begin), min(b, end)))
    return found


def _intervals_length(intervals: Sequence[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def describe_timeline(found: TimelineShares) -> str:
    """One line for a person."""
    waits = {f"waiting for rank {late}": part for late, part in found.waits.items()}
    shown = ", ".join(f"{name} {100 * part / found.total:.0f} %" for name, part in {**found.parts, **waits}.items())
    steps = f"{found.steps} step{'s' * (found.steps != 1)}"
    return f"{steps} of {found.total / found.steps / 1000:.3g} ms: {shown}"
