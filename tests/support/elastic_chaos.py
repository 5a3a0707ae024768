"""Elastic jobs of this machine whose processes are killed and stopped at points that follow from a seed.

    python -m support.elastic_chaos 1000          # seeds 0 to 999
    python -m support.elastic_chaos --seed 417    # one of them again, alone

Launcher, agents and ranks are real processes, struck by real signals. A job takes the faults of ten seeds, one
seed after the other. The points are the same for the same seed; what the processes are doing there depends on
the machine too.
"""

import functools
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ringtrain.optim.mirror import assign_replicas
from support.elastic_faults import BLOCK, Fault, Shape, faults_of, shape_of
from support.elastic_pods import Played, play
from support.elastic_training import WINDOW, ledger_of
from support.seeds import given_seeds


@functools.cache
def undisturbed(windows: int) -> list[str]:
    """The digests of the weights at the ends of windows of a training that nobody disturbs, on one rank.

    Gradients are sums of integers, so neither the number of ranks nor how they exchange changes a bit.
    """
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        played = play(Shape(1, 1, "grpc", "Replace", False, True), [()] * windows, Path(directory))
    assert not played.problem, f"{played.problem}\n{played.log}"
    return [played.closed(window)[0]["digest"] for window in range(windows)]


def wrong(shape: Shape, plans: Sequence[Sequence[Fault]], played: Played) -> list[list[str]]:
    """Return the violations in each window, up to the first window that did not end."""
    found: list[list[str]] = []
    digests, ledger = undisturbed(BLOCK), ledger_of(len(plans) * WINDOW)
    for window, faults in enumerate(plans):
        if set(played.closed(window)) != set(range(shape.ranks)):
            return [*found, [played.problem or "not all ranks have come to the end of it"]]
        found.append(_wrong_in(shape, faults, played, window, digests[window]))
    if played.problem:
        found[-1].append(played.problem)
    for slot in range(shape.ranks):
        if played.ledgers.get(slot) != ledger:
            found[-1].append(f"slot {slot} ends with other steps or samples: {played.ledgers.get(slot)}")
    return found


def _wrong_in(shape: Shape, faults: Iterable[Fault], played: Played, window: int, digest: str) -> list[str]:
    found = []
    closed, entered = played.closed(window), played.entered(window)
    digests = {one["digest"] for one in closed.values()}
    if digests != {digest}:
        found.append(f"the weights are {sorted(digests)}, and {digest} where nobody disturbs the training")
    before = played.closed(window - 1) if window else _first(played)
    struck = _struck(shape, faults)
    others = [slot for slot in closed if slot not in struck and closed[slot]["pid"] != before[slot]["pid"]]
    formations = {one["formation"] for one in before.values()} | {one["entered"] for one in entered}
    if not shape.patient and played.was_kept_waiting(window):
        others = []  # who had no processor for seconds may have counted as lost
    if others and not any(_takes_state(shape, struck, played.ranks_of(number)) for number in formations):
        found.append(f"slots {sorted(others)}, to which nothing has happened, have other processes than before")
    # Less than nothing: others have gone on without this process.
    lost = [one["lost"] for one in entered if one["lost"] is not None and one["lost"] > 1]
    if lost:
        found.append(f"steps lost at a change: {lost}")
    return found


def _first(played: Played) -> dict[int, dict[str, int]]:
    """The processes that have begun the training."""
    found: dict[int, dict[str, int]] = {}
    for one in played.events:
        if "entered" in one:
            found.setdefault(one["slot"], {"pid": one["pid"], "formation": one["entered"]})
    return found


def _struck(shape: Shape, faults: Iterable[Fault]) -> set[int]:
    """The slots whose processes may end."""
    struck: set[int] = set()
    for fault in faults:
        if fault.act in ("pod", "freeze", "leave"):
            first = fault.slot // shape.slots * shape.slots
            struck |= set(range(first, first + shape.slots))
        elif fault.act not in ("launcher", "pulse"):
            struck.add(fault.slot)
    return struck


def _takes_state(shape: Shape, struck: set[int], slots: dict[int, int]) -> bool:
    """Whether a part of the state is gone when `struck` are lost of a world with these slots by rank."""
    if set(slots.values()) <= struck:
        return True
    copies = assign_replicas([slots[rank] // shape.slots for rank in sorted(slots)], shape.copies)
    homes = [{slots[home] for home in (rank, *(copy[rank] for copy in copies))} for rank in sorted(slots)]
    return shape.sharded and any(shard <= struck for shard in homes)


@dataclass(frozen=True)
class Verdict:
    """Result of several seeds: by seed, the violations and the command that replays them.

    `faults`: number of planned faults; `missed`: number of those whose point was not reached.
    """

    wrong: dict[int, str]
    faults: int
    missed: int


def judge(seeds: Sequence[int]) -> Verdict:
    """Play seeds of one block in one job."""
    shape = shape_of(seeds[0] // BLOCK)
    plans = [faults_of(seed, shape) for seed in seeds]
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        played = play(shape, plans, Path(directory))
    found = {}
    for seed, plan, texts in zip(seeds, plans, wrong(shape, plans, played), strict=False):
        if texts:
            again = f"again: make elastic-chaos SEED={seed}, and as it was: make elastic-chaos SEEDS={_span(seeds)}"
            found[seed] = "\n".join([f"{shape}", *map(str, plan), *texts, again, played.log])
    return Verdict(found, sum(map(len, plans)), played.missed)


def _span(seeds: Sequence[int]) -> str:
    return f"{seeds[0]}-{seeds[-1]}"


def main() -> None:
    seeds, jobs = given_seeds("50")
    blocks: dict[int, list[int]] = {}
    for seed in seeds:
        blocks.setdefault(seed // BLOCK, []).append(seed)
    bad = 0
    with ThreadPoolExecutor(jobs) as pool:
        for own, verdict, seconds in pool.map(_timed, blocks.values()):
            bad += len(verdict.wrong)
            faults = f"{verdict.faults} faults, {verdict.missed} not reached"
            print(f"seeds {_span(own)}: {shape_of(own[0] // BLOCK)}, {faults}, {seconds:.0f} s", flush=True)
            for seed, text in verdict.wrong.items():
                print(f"seed {seed}: {text}", flush=True)
    print(f"{len(seeds)} seeds, {bad} of them bad")
    sys.exit(min(bad, 1))


def _timed(seeds: Sequence[int]) -> tuple[Sequence[int], Verdict, float]:
    began = time.monotonic()
    return seeds, judge(seeds), time.monotonic() - began


if __name__ == "__main__":
    main()
