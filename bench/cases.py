"""What is measured: who takes part, where, what they do, and how often."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from bench.contest import Rounds
from bench.hosts import Hosts, Loopback, namespaces

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
GRPC = {"RINGTRAIN_TRANSPORT": "grpc"}
# Bytes of the gradients of the step: its wire time at 1 Gbit/s is the backward pass that it is compared with.
STEP_BYTES = 25_557_032 * 4
LINE_BYTES_PER_S = 125e6

What = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`contenders`: with what each has in its environment. `work`: one after the other."""

    name: str
    hosts: Callable[[], AbstractContextManager[Hosts]]
    contenders: dict[str, dict[str, str]]
    work: list[tuple[What, Rounds]]

    def takes_part(self, contender: str, what: What) -> bool:
        """Not everyone can do everything."""
        if what["kind"] == "allreduce":
            return True
        if what["kind"] == "step" and "compression" not in what:
            return contender.startswith(("ringtrain", "gloo")) and contender != "ringtrain-neighbour"
        return contender in ("ringtrain-grpc", "ringtrain-shm", "ringtrain")


def _rounds(nbytes: int) -> Rounds:
    if nbytes <= MIB:
        return Rounds(turns=5, repetitions=40, warm_up=20)
    return Rounds(turns=5, repetitions=4, warm_up=2) if nbytes <= 64 * MIB else Rounds(3, 2, 1)


def _allreduces(sizes: list[int]) -> list[tuple[What, Rounds]]:
    return [({"kind": "allreduce", "nbytes": nbytes}, _rounds(nbytes)) for nbytes in sizes]


def _loopback(ranks: int) -> Case:
    contenders = {"ringtrain-shm": {}, "ringtrain-grpc": GRPC, "ringtrain-neighbour": GRPC}
    contenders |= {"gloo": {}, "mpi-shm": {}, "mpi-tcp": {}, "copy": {}}
    work = _allreduces(SIZES)
    work += [({"kind": "allreduce_many", "fused": fused}, Rounds(5, 3)) for fused in (True, False)]
    work += [({"kind": "step"}, Rounds(6, 3, 3))]
    return Case("one machine", lambda: nullcontext(Loopback(ranks)), contenders, work)


def _gigabit(hosts: int) -> Case:
    contenders = {"ringtrain-grpc": GRPC, "ringtrain-neighbour": GRPC, "gloo": {}, "mpi-tcp": {}}
    nbytes = 64 * MIB
    work: list[tuple[What, Rounds]] = [
        ({"kind": "allreduce", "nbytes": size}, Rounds(3, 2, 1)) for size in (16 * MIB, nbytes)
    ]
    work += [({"kind": "compressed", "nbytes": nbytes, "compression": "bf16"}, Rounds(3, 2, 1))]
    if hosts == 2:
        backward_s = STEP_BYTES / LINE_BYTES_PER_S
        work += [({"kind": "step", "backward_s": backward_s}, Rounds(3, 2, 1))]
        work += [({"kind": "step", "backward_s": 0.0}, Rounds(3, 1, 1))]
        work += [({"kind": "step", "backward_s": 0.0, "compression": "bf16"}, Rounds(3, 1, 1))]
    return Case("1 Gbit/s between hosts", lambda: namespaces(hosts, "1gbit"), contenders, work)


def _pods() -> Case:
    contenders = {"ringtrain": {}, "ringtrain-grpc": GRPC, "gloo": {}, "mpi-tcp": {}}
    work: list[tuple[What, Rounds]] = [({"kind": "allreduce", "nbytes": 64 * MIB}, Rounds(3, 1, 1))]
    work += [({"kind": "step"}, Rounds(3, 1, 1))]
    return Case("1 Gbit/s between pods of 2", lambda: namespaces(2, "1gbit", ranks_each=2), contenders, work)


CASES = [_loopback(2), _loopback(4), _gigabit(2), _gigabit(4), _pods()]
