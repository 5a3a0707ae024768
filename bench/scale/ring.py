"""The ring's own protocol code in simulated time: worlds of 8 to 8,192 ranks on one core.

    python -m bench.scale.ring check        # beside the measured rows of bench/README.md
    python -m bench.scale.ring slopes 1024  # up to so many ranks, into ring.jsonl: half an hour
    python -m bench.scale.ring slopes 1024 "one rank a host"  # those of these words alone
    python -m bench.scale.ring crossover 32 # chain and tree of up to so many pods
    python -m bench.scale.ring crossover 128 hosts  # direct exchange and tree of up to so many ranks, one a host
    python -m bench.scale.ring gathers 128  # all-gathers between up to so many pods, from all and passed on
    python -m bench.scale.ring broadcasts 128  # broadcasts between up to so many pods of 8, and ranks, one a host
    python -m bench.scale.ring plot         # ring.png of ring.jsonl

WorldMembership, handshake, offers, calls, exchanges, chain and tree of pods are the runtime's own; threads are
greenlets (`clock.py`), and the transport is a network of hosts with links and cores (`network.py`). What is not
run: sockets, the arithmetic of a fold, and memory that ranks of a pod share, of which each has a price instead.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.scale.clock import Clock, Condition
from bench.scale.network import Costs, Host, Link, Network, SimulatedTransport
from ringtrain._core.communicators import exchange, hierarchical, pod_tree
from ringtrain._core.communicators.exchange import ExchangeCommunicator
from ringtrain._core.communicators.hierarchical import CHAIN_PODS_MOST, HierarchicalCommunicator
from ringtrain._core.communicators.shm.group import ShmLoneRank
from ringtrain._core.communicators.shm.join import ShmHostGroups
from ringtrain._core.reduction.cuts import even_bounds
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.wire.failure import WorldFailure
from ringtrain._core.wire.signature import WireSignature
from ringtrain._core.world import (
    call,
    failure_state,
    handshake,
    lateness,
    membership,
    membership_table,
    monitor,
    offers,
    spread,
    watches,
)
from ringtrain._core.world.membership import WorldMembership
from ringtrain._core.world.neighbours import is_mesh
from ringtrain._core.world.ring_config import RingConfig

_WORLD: Final = (
    call,
    failure_state,
    handshake,
    lateness,
    membership,
    monitor,
    offers,
    membership_table,
    spread,
    watches,
)
# Chosen so that the two loopback rows of `MEASURED` come out; near what bench/README.md says of them: 0.1 ms of
# Python a request on either side, 50 µs a frame on both together, 0.75 s of processor time a GB of two ranks. A
# question to another rank goes through gRPC's library, see ring.md. Headers take 4.4 % of a line.
COSTS: Final = Costs(request_s=78e-6, frame_s=25e-6, byte_s=0.27e-9, question_s=0.5e-3)
GIGABIT: Final = Link(bytes_per_s=0.956 * 125e6, latency_s=30e-6)
LOOPBACK: Final = Link(bytes_per_s=5e9, latency_s=15e-6)
# Of a data centre: 25 Gbit/s, 50 µs from host to host.
FABRIC: Final = Link(bytes_per_s=0.956 * 25e9 / 8, latency_s=50e-6)
# What the ranks of a pod add up together in shared memory, each its part.
_POD_BYTES_PER_S: Final = 4e9
_POD_MEETING_S: Final = 20e-6
KIB, MIB = 1 << 10, 1 << 20
_GATHERED: Final = (16 * MIB, 64 * MIB, 256 * MIB)
# What simulated rows may differ from measured ones before anything else that is simulated counts.
MARGIN: Final = 0.05
_FOUND: Final = Path(__file__).parent / "ring.jsonl"


class _Drained:
    """In the place of `ReductionFold`: takes contributions, and leaves the sum."""

    keeps_all = False

    def __init__(self, *_: object) -> None:
        return None

    def fold(self, contributions: Iterable[Flat], out: Flat) -> None:
        for _ in contributions:
            pass


class _Pod:
    """In the place of a `ShmRankGroup`: its ranks meet, and the memory takes its time."""

    def __init__(self, clock: Clock, size: int) -> None:
        self.size, self.clock = size, clock
        self._changed = Condition(clock)
        self._came = 0

    def meet(self, nbytes: int) -> None:
        self._came += 1
        if self._came % self.size == 0:
            self._changed.notify_all()
        else:
            round_ = (self._came - 1) // self.size
            self._changed.wait_for(lambda: self._came // self.size > round_)
        self.clock.sleep_until(self.clock.now + _POD_MEETING_S + nbytes / _POD_BYTES_PER_S)


class _Member:
    """One rank's view of its pod."""

    def __init__(self, pod: _Pod, ranks: tuple[int, ...], position: int) -> None:
        self.ranks, self.position, self._pod = ranks, position, pod

    def run(self, what: WireSignature, work: Any) -> None:
        self._pod.meet(sum(end - start for start, end in work.chunks) * work.source.itemsize)


class SimulatedWorld:
    """`size` ranks, `ranks_each` a host of `cores`, which have not met."""

    def __init__(self, size: int, link: Link, *, ranks_each: int = 1, cores: int = 8, costs: Costs = COSTS) -> None:
        self.clock = Clock()
        for module in _WORLD:
            for name in ("threading", "time", "queue"):
                if hasattr(module, name):
                    setattr(module, name, getattr(self.clock, name))
        exchange.ReductionFold = _Drained  # type: ignore[assignment,misc]
        pod_tree.add_up_pod_sums = lambda op, lower, upper, out: None
        ShmLoneRank.run = self._copy  # type: ignore[assignment]
        self.size, self._ranks_each = size, ranks_each
        self.network = Network(
            self.clock, [Host(cores) for _ in range(-(-size // ranks_each))], ranks_each, link, costs
        )
        addresses = tuple(f"h{rank}:1" for rank in range(size))
        self.members = [
            WorldMembership(RingConfig(rank, size, addresses), SimulatedTransport(self.network, rank))
            for rank in range(size)
        ]

    def _copy(self, what: WireSignature, work: Any) -> None:
        if work.partial is not None:
            self.clock.sleep_until(self.clock.now + work.partial.nbytes / _POD_BYTES_PER_S)

    def meet(self) -> float:
        """Seconds until all have met, from the moment in which all are there."""
        return self._took(lambda rank: self.members[rank]._run_handshake())

    def acquainted(self) -> "SimulatedWorld":
        """This world as if all had met."""
        for rank, member in enumerate(self.members):
            member._handshake.check_session = lambda rank, session: None  # type: ignore[method-assign]
            self.network.services[rank] = member
            member._watches.are_sparse = not is_mesh(self.size)
        return self

    def verdict(self) -> float:
        """Seconds until all ranks have heard what rank 0 found."""
        began = self.clock.now
        self.clock.spawn(lambda: self.members[0].monitor.announce(WorldFailure("lost", "rank 1 was lost", 1)))
        states = [member.failure_state for member in self.members[1:]]
        self.clock.run(lambda: all(state.failure is not None for state in states))
        return self.clock.now - began

    def exchanges(self) -> list[Any]:
        """A communicator of each rank, all flat."""
        return [ExchangeCommunicator(member, 1, tuple(range(self.size))) for member in self.members]

    def hierarchies(self, chain_pods_most: int = CHAIN_PODS_MOST) -> list[Any]:
        """A communicator of each rank, where a host is a pod."""
        pods = [tuple(range(first, first + self._ranks_each)) for first in range(0, self.size, self._ranks_each)]
        if self._ranks_each == 1:
            return [HierarchicalCommunicator(network, None) for network in self.exchanges()]
        groups = [_Pod(self.clock, self._ranks_each) for _ in pods]
        made = []
        for rank, network in enumerate(self.exchanges()):
            pod, local = divmod(rank, self._ranks_each)
            group: Any = _Member(groups[pod], pods[pod], local)
            made.append(HierarchicalCommunicator(network, ShmHostGroups(tuple(pods), group), chain_pods_most))
        return made

    def collective(self, communicators: list[Any], work: Callable[[Any], object]) -> float:
        """Seconds of `work(communicator)` on all ranks: the second time, when all begin together."""
        self._took(lambda rank: work(communicators[rank]))
        return self._took(lambda rank: work(communicators[rank]))

    def _took(self, work: Callable[[int], object]) -> float:
        ended = 0

        def run(rank: int) -> None:
            nonlocal ended
            work(rank)
            ended += 1

        began = self.clock.now
        for rank in range(self.size):
            self.clock.spawn(lambda rank=rank: run(rank))
        self.clock.run(lambda: ended == self.size)
        return self.clock.now - began


def all_reduce(nbytes: int) -> Callable[[Any], object]:
    """An allreduce in place, of memory that all ranks have in common: nobody looks at it."""
    buffer = np.zeros(nbytes // 4, np.float32)
    what = WireSignature("all_reduce")
    return lambda ring: ring.all_reduce(what, buffer, buffer, ReduceOp.Sum)


def all_gather(nbytes: int) -> Callable[[Any], object]:
    """An all-gather of even chunks, `nbytes` in all."""
    buffer = np.zeros(nbytes // 4, np.float32)
    what = WireSignature("all_gather")
    return lambda ring: ring.all_gather(what, buffer, even_bounds(len(buffer), len(ring.ranks)))


def broadcast(nbytes: int) -> Callable[[Any], object]:
    buffer = np.zeros(nbytes // 4, np.float32)
    what = WireSignature("broadcast")
    return lambda ring: ring.broadcast(what, buffer, 0)


def gather(nbytes: int) -> Callable[[Any], object]:
    """The exchange of the named queue's agreement: an all-gather of `nbytes` from each rank."""
    part = np.zeros(nbytes, np.uint8)
    what = WireSignature("agreement")
    return lambda ring: ring.all_gather_parts(what, part)


# What bench/results/results.json has: name, ranks, ranks a host, cores a host, link, bytes, seconds.
MEASURED: Final = (
    ("4 KiB on loopback, 2 ranks", 2, 2, 2, LOOPBACK, 4 * KIB, 0.000246),
    ("64 MiB on loopback, 2 ranks", 2, 2, 2, LOOPBACK, 64 * MIB, 0.0383),
    ("16 MiB at 1 Gbit/s, 2 hosts", 2, 1, 2, GIGABIT, 16 * MIB, 0.1398),
    ("64 MiB at 1 Gbit/s, 2 hosts", 2, 1, 2, GIGABIT, 64 * MIB, 0.5611),
    ("16 MiB at 1 Gbit/s, 4 hosts", 4, 1, 2, GIGABIT, 16 * MIB, 0.2100),
    ("64 MiB at 1 Gbit/s, 4 hosts", 4, 1, 2, GIGABIT, 64 * MIB, 0.8421),
    ("64 MiB at 1 Gbit/s, 2 pods of 2", 4, 2, 2, GIGABIT, 64 * MIB, 0.6188),
)


def check() -> float:
    """Each measured row, simulated. Returns the largest relative difference."""
    print("| row | measured | simulated | simulated / measured |\n| --- | --- | --- | --- |")
    worst = 0.0
    for name, size, ranks_each, cores, link, nbytes, measured in MEASURED:
        world = SimulatedWorld(size, link, ranks_each=ranks_each, cores=cores).acquainted()
        rings = world.hierarchies() if "pods" in name else world.exchanges()
        took = world.collective(rings, all_reduce(nbytes))
        worst = max(worst, abs(took / measured - 1))
        print(f"| {name} | {measured * 1e3:.3g} ms | {took * 1e3:.3g} ms | {took / measured:.2f} |", flush=True)
    return worst


@dataclass(frozen=True)
class Slope:
    """One line of the plot: seconds by number of ranks."""

    name: str
    sizes: tuple[int, ...]
    seconds: Callable[[int], float]


def _flat(work: Callable[[Any], object]) -> Callable[[int], float]:
    def seconds(size: int) -> float:
        world = SimulatedWorld(size, FABRIC, ranks_each=8, cores=8).acquainted()
        return world.collective(world.exchanges(), work)

    return seconds


def _hosts(nbytes: int, by_tree: bool) -> Callable[[int], float]:
    def seconds(size: int) -> float:
        world = SimulatedWorld(size, FABRIC, ranks_each=1, cores=8).acquainted()
        return world.collective(world.hierarchies() if by_tree else world.exchanges(), all_reduce(nbytes))

    return seconds


def _pods(nbytes: int, chain_pods_most: int) -> Callable[[int], float]:
    def seconds(size: int) -> float:
        world = SimulatedWorld(size, FABRIC, ranks_each=8, cores=8).acquainted()
        return world.collective(world.hierarchies(chain_pods_most), all_reduce(nbytes))

    return seconds


def _meeting(size: int) -> float:
    return SimulatedWorld(size, FABRIC, ranks_each=8, cores=8).meet()


def _verdict(size: int) -> float:
    return SimulatedWorld(size, FABRIC, ranks_each=8, cores=8).acquainted().verdict()


ALWAYS_CHAIN, ALWAYS_TREE = 1 << 20, 1
ALL: Final = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SLOPES: Final = (
    Slope("all ranks meet", ALL[:8], _meeting),
    Slope("all hear a verdict", ALL, _verdict),
    Slope("allreduce of 4 KiB, flat", ALL[:8], _flat(all_reduce(4 * KIB))),
    Slope("agreement: 4 KiB of each rank to all", ALL[:8], _flat(gather(4 * KIB))),
    Slope("allreduce of 64 MiB, one rank a host, direct", ALL[:6], _hosts(64 * MIB, False)),
    Slope("allreduce of 64 MiB, one rank a host, tree", ALL[:8], _hosts(64 * MIB, True)),
    Slope("allreduce of 1 MiB, one rank a host, direct", ALL[:6], _hosts(1 * MIB, False)),
    Slope("allreduce of 1 MiB, one rank a host, tree", ALL[:8], _hosts(1 * MIB, True)),
    Slope("allreduce of 64 MiB, chain of pods of 8", ALL[1:], _pods(64 * MIB, ALWAYS_CHAIN)),
    Slope("allreduce of 64 MiB, tree of pods of 8", ALL[1:8], _pods(64 * MIB, ALWAYS_TREE)),
    Slope("allreduce of 1 MiB, chain of pods of 8", ALL[1:], _pods(1 * MIB, ALWAYS_CHAIN)),
    Slope("allreduce of 1 MiB, tree of pods of 8", ALL[1:], _pods(1 * MIB, ALWAYS_TREE)),
    Slope("allreduce of 4 KiB, tree of pods of 8", ALL[1:8], _pods(4 * KIB, ALWAYS_TREE)),
)


def crossover(most: int, hosts: bool) -> None:
    """Two ways of an allreduce beside each other: chain and tree of up to `most` pods of 8, for `CHAIN_PODS_MOST`;
    `hosts`: direct exchange and tree of up to `most` ranks, one a host, for `DIRECT_RANKS_MOST`."""
    lengths = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
    print(f"| {'ranks' if hosts else 'pods'} | 4 KiB | 64 KiB | 1 MiB | 16 MiB | 64 MiB |\n" + 6 * "| --- " + "|")
    for number in (4, 6, 8, 9, 12, 13, 16, 24, 32, 33, 48, 64, 65, 96, 127, 128, 256, 512, 1024):
        if number <= most:
            cells = (
                f"{one * 1e3:.3g}, {tree * 1e3:.3g}" for one, tree in (_two_ways(number, n, hosts) for n in lengths)
            )
            print(f"| {number} | " + " | ".join(cells) + " |", flush=True)


def _two_ways(number: int, nbytes: int, hosts: bool) -> tuple[float, float]:
    if hosts:
        return _hosts(nbytes, False)(number), _hosts(nbytes, True)(number)
    return _pods(nbytes, ALWAYS_CHAIN)(8 * number), _pods(nbytes, ALWAYS_TREE)(8 * number)


def gathers(most: int) -> None:
    """All-gathers of up to `most` pods of 8, from all pods and passed on, for `GATHER_PODS_MOST_DIRECT`."""
    print("| pods | 16 MiB | 64 MiB | 256 MiB |\n" + 4 * "| --- " + "|")
    for number in (2, 3, 4, 5, 6, 8, 12, 13, 16, 24, 32, 64, 128):
        if number <= most:
            cells = (f"{_gather(number, n, most) * 1e3:.3g}, {_gather(number, n, 1) * 1e3:.3g}" for n in _GATHERED)
            print(f"| {number} | " + " | ".join(cells) + " |", flush=True)


def _gather(pods: int, nbytes: int, pods_most_direct: int) -> float:
    hierarchical.GATHER_PODS_MOST_DIRECT = pods_most_direct  # type: ignore[misc]
    world = SimulatedWorld(8 * pods, FABRIC, ranks_each=8, cores=8).acquainted()
    return world.collective(world.hierarchies(), all_gather(nbytes))


def broadcasts(most: int) -> None:
    """Broadcasts to up to `most` pods of 8, and to up to `most` ranks, one a host."""
    lengths = (64 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB)
    print("| | 64 KiB | 256 KiB | 1 MiB | 16 MiB | 64 MiB |\n" + 6 * "| --- " + "|")
    for each, number in itertools.product((8, 1), (2, 3, 4, 5, 6, 7, 8, 12, 16, 64, 128)):
        if number <= most:
            cells = (f"{_broadcast(number, each, n) * 1e3:.3g}" for n in lengths)
            print(f"| {number} {'ranks' if each == 1 else 'pods'} | " + " | ".join(cells) + " |", flush=True)


def _broadcast(hosts: int, ranks_each: int, nbytes: int) -> float:
    world = SimulatedWorld(hosts * ranks_each, FABRIC, ranks_each=ranks_each, cores=8).acquainted()
    return world.collective(world.exchanges() if ranks_each == 1 else world.hierarchies(), broadcast(nbytes))


def slopes(most: int, words: str = "") -> None:
    """Every slope up to `most` ranks, as JSON lines into `_FOUND`. With `words` those alone that have them in the
    name; what there is of others stays."""
    before = [line for line in _FOUND.read_text().splitlines() if words not in json.loads(line)["what"]]
    with _FOUND.open("w") as file:
        file.writelines(f"{line}\n" for line in before)
        for slope in SLOPES:
            if words not in slope.name:
                continue
            for size in slope.sizes:
                if size <= most:
                    began = time.monotonic()
                    found = {"what": slope.name, "ranks": size, "seconds": slope.seconds(size)}
                    file.write(json.dumps({**found, "took": round(time.monotonic() - began, 1)}) + "\n")
                    file.flush()


def plot() -> None:
    """Draw `_FOUND`, both axes logarithmic: what grows with the ranks is a line of slope 1."""
    from matplotlib import pyplot  # only here: the simulation itself needs greenlet alone

    found = [json.loads(line) for line in _FOUND.read_text().splitlines()]
    figure, axes = pyplot.subplots(figsize=(10, 5))
    for name in dict.fromkeys(row["what"] for row in found):
        rows = [row for row in found if row["what"] == name]
        style = "s--" if "tree" in name else "o-"
        axes.loglog([r["ranks"] for r in rows], [r["seconds"] * 1e3 for r in rows], style, label=name)
    axes.set_xlabel("ranks")
    axes.set_ylabel("ms, simulated: 25 Gbit/s, 50 µs between hosts, 8 cores each")
    axes.set_xticks(ALL, [str(size) for size in ALL])
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(_FOUND.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    what = sys.argv[1]
    if what == "check":
        sys.exit(check() > MARGIN)
    elif what == "slopes":
        slopes(int(sys.argv[2]) if len(sys.argv) > 2 else ALL[-1], *sys.argv[3:4])
    elif what == "crossover":
        crossover(int(sys.argv[2]), hosts=sys.argv[3:] == ["hosts"])
    elif what == "gathers":
        gathers(int(sys.argv[2]))
    elif what == "broadcasts":
        broadcasts(int(sys.argv[2]))
    else:
        plot()
