"""The command `ringtrain timeline FILE`, which prints the parts of each rank's step time."""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

# Categories of spans in which all ranks participate, so that ranks can be compared.
_COLLECTIVES = ("collective", "shared memory")

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
    try:
        events = json.loads(file.read_bytes())
        ranks: dict[int, RankTimes] = defaultdict(RankTimes)
        for event in events:
            if event["ph"] == "X":
                _add_span(ranks[int(event["pid"])], event)
    except (ValueError, KeyError, TypeError) as exc:
        raise click.ClickException(f"{file} is not a timeline of ringtrain ({type(exc).__name__}: {exc})") from exc
    if not any(times.steps for times in ranks.values()):
        raise click.ClickException(
            f"{file} contains no step; call step() of a HostOptimizer or DistributedOptimizer in the run"
        )
    return ranks


def _add_span(times: RankTimes, event: dict[str, Any]) -> None:
    interval = event["ts"], event["ts"] + event["dur"]
    if event["cat"] == "step":
        times.steps.append(interval)
    elif event["cat"] in _COLLECTIVES and "sequence" in event["args"]:
        args = event["args"]
        times.collectives[event["name"], args["set"], args["sequence"]] = interval
    else:
        times.spans[event["cat"]].append(interval)


def last_starts(ranks: Mapping[int, RankTimes]) -> dict[Collective, tuple[float, int]]:
    """Return, for each collective, the time at which its last rank began it, and that rank."""
    last: dict[Collective, tuple[float, int]] = {}
    for rank, times in ranks.items():
        for key, (began, _) in times.collectives.items():
            last[key] = max(last.get(key, (began, rank)), (began, rank))
    return last


def rank_shares(times: RankTimes, last: Mapping[Collective, tuple[float, int]]) -> TimelineShares | None:
    """Return the parts of a rank's step time; None if it has no step. The first of several steps is omitted."""
    steps = times.steps[1:] or times.steps
    if not steps:
        return None
    batches, backward, forward = (_clipped(times.spans[name], steps) for name in ("batch", "backward", "forward"))
    total = _total_length(steps)
    if batches:  # a compiled graph runs the whole batch: passes and collectives overlap
        return TimelineShares(
            len(steps),
            total,
            {"input": total - _total_length(batches), "batch": _total_length(batches)},
            {},
        )
    ends = [end for _, end in backward]
    # The rest of a step after its last backward pass is the part of the update that was not overlapped.
    exposed = [(ends[index - 1], end) for _, end in steps if (index := bisect_right(ends, end))]
    waits: dict[int, float] = defaultdict(float)
    for key, (began, ended) in times.collectives.items():
        late_began, late = last[key]
        waits[late] += _total_length(_clipped([(began, min(ended, late_began))], exposed))
    # Parts below 0.5 % are noise.
    waits = {late: part for late, part in sorted(waits.items()) if part >= 0.005 * total}
    passes, update = _total_length(forward) + _total_length(backward), _total_length(exposed)
    early = "input" if forward else "input and forward"
    parts = {early: total - passes - update} | ({"forward": _total_length(forward)} if forward else {})
    parts |= {"backward": _total_length(backward), "update": update - sum(waits.values())}
    return TimelineShares(len(steps), total, parts, waits)


def _clipped(intervals: Sequence[Interval], limits: Sequence[Interval]) -> list[Interval]:
    """Return the parts of `intervals` that lie within `limits`, which are sorted and disjoint."""
    begins = [begin for begin, _ in limits]
    found = []
    for a, b in sorted(intervals):
        for begin, end in limits[max(bisect_right(begins, a) - 1, 0) :]:
            if begin >= b:
                break
            if a < end:
                found.append((max(a, begin), min(b, end)))
    return found


def _total_length(intervals: Sequence[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def describe_timeline(found: TimelineShares) -> str:
    """Return a rank's shares of the step time as one line of text."""
    waits = {f"waiting for rank {late}": part for late, part in found.waits.items()}
    shown = ", ".join(f"{name} {100 * part / found.total:.0f} %" for name, part in {**found.parts, **waits}.items())
    steps = f"{found.steps} step{'s' * (found.steps != 1)}"
    return f"{steps} of {found.total / found.steps / 1000:.3g} ms: {shown}"
