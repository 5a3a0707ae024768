"""Comparison of values for constants of the collectives: `python -m bench.constants [--only WORD]`.

Gangs of ringtrain that differ in one constant take turns in one run, as contenders do in `make bench`. Prints
medians by length and value.
"""

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import click

from bench.cases import GRPC, KIB, MIB, SHM
from bench.contest import Rounds, contest, gangs
from bench.hosts import Hosts, Loopback, namespaces
from bench.machine import load

CONSTANT = "BENCH_CONSTANT"  # module:name=value, of one rank's process


@dataclass(frozen=True)
class Sweep:
    """`constant` is `module:name` below ringtrain._core.communicators, its values in bytes."""

    name: str
    constant: str
    values: tuple[int, ...]
    ranks: int
    hosts: Callable[[], AbstractContextManager[Hosts]]
    environment: dict[str, str]
    work: tuple[dict[str, Any], ...]


def _lengths(*nbytes: int) -> tuple[dict[str, Any], ...]:
    return tuple({"kind": "allreduce", "nbytes": n} for n in nbytes)


_MANY = ({"kind": "allreduce_many", "fused": False},)


def _loopback(ranks: int) -> Callable[[], AbstractContextManager[Hosts]]:
    return lambda: nullcontext(Loopback(ranks))


def _sweeps() -> list[Sweep]:
    direct = "exchange:_DIRECT_BYTES_TO_ALL", (0, 64 * KIB, 256 * KIB, MIB)
    fused = "exchange:ExchangeCommunicator.fusion_bytes", (64 * KIB, 256 * KIB, MIB, 4 * MIB)
    alone = "shm.native:_SMALL_BYTES", (16 * KIB, 64 * KIB, 256 * KIB)
    fused_shm = "shm.communicator:SharedMemoryCommunicator.fusion_bytes", (256 * KIB, MIB, 4 * MIB)
    found = []
    for ranks in (2, 4):
        where, short = _loopback(ranks), _lengths(8 * KIB, 32 * KIB, 128 * KIB)
        found.append(Sweep("everyone sends to everyone, bytes to all up to", *direct, ranks, where, GRPC, short))
        found.append(Sweep("short tensors are fused to, gRPC", *fused, ranks, where, GRPC, _MANY))
        found.append(Sweep("everyone folds alone up to, all ranks", *alone, ranks, where, SHM, short))
        found.append(Sweep("short tensors are fused to, shared memory", *fused_shm, ranks, where, SHM, _MANY))
    flat = "hierarchical:_FLAT_BYTES", (16 * KIB, 64 * KIB, 256 * KIB)
    hosts = lambda: namespaces(4, "1gbit")  # noqa: E731
    lengths = _lengths(32 * KIB, 64 * KIB, 128 * KIB)
    found.append(Sweep("everyone sends to everyone at 1 Gbit/s, bytes to all up to", *direct, 4, hosts, GRPC, lengths))
    pods = lambda: namespaces(2, "1gbit", ranks_each=2)  # noqa: E731
    between = _lengths(8 * KIB, 32 * KIB, 128 * KIB)
    return [*found, Sweep("a flat exchange between pods up to", *flat, 4, pods, SHM, between)]


@click.command()
@click.option("--only", default="", help="Only sweeps with this in their name, as gRPC.")
def main(only: str) -> None:
    """Compare values of constants in turns."""
    for sweep in _sweeps():
        if only in sweep.name:
            _measure(sweep)


def _measure(sweep: Sweep) -> None:
    wanted = {
        f"ringtrain-{value}": sweep.environment | {CONSTANT: f"{sweep.constant}={value}"} for value in sweep.values
    }
    print(f"\n{sweep.name}, {sweep.ranks} ranks (load {load()})")
    try:
        with sweep.hosts() as hosts, gangs(wanted, hosts) as running:
            for what in sweep.work:
                rounds = Rounds(12, repetitions=60 if what["kind"] == "allreduce" else 3, warm_up=10, turns=20)
                found = contest(running, rounds, what)
                print(_shown(what, found), flush=True)
    except OSError as error:
        print(f"{sweep.name} is left out: {error}", file=sys.stderr)


def _shown(what: dict[str, Any], found: dict[str, dict[str, float]]) -> str:
    about = f"{what['nbytes'] // KIB} KiB" if "nbytes" in what else "161 tensors"
    times = [
        f"{int(name.partition('-')[2]) // KIB} KiB: {summary['median_s'] * 1e3:.3f} ms"
        for name, summary in found.items()
    ]
    return f"  {about:12} " + ", ".join(times)


def apply(constant: str) -> None:
    """Set `module:name=value`, module below ringtrain._core.communicators, name perhaps of a class in it."""
    where, value = constant.split("=")
    module, names = where.split(":")
    holder: Any = importlib.import_module(f"ringtrain._core.communicators.{module}")
    *classes, name = names.split(".")
    for part in classes:
        holder = getattr(holder, part)
    getattr(holder, name)  # it is there, and is not made by a word that is wrong
    setattr(holder, name, int(value))


if __name__ == "__main__":
    main()
