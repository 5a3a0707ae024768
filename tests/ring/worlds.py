"""Worlds inside the test's process: ranks are threads, over memory or over gRPC on loopback.

Under mpirun every rank runs the tests itself, over MPI: see `spmd`, and plugins/mpi/tests/test_ring_suite.py.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from support.deadlines import patient
from support.memory_transport import MemoryNetwork, MemoryTransport
from support.ports import free_addresses
from support.ranks import Ranks, tell
from support.world_config import changed_config, world_config

from ringtrain._core.communicators.exchange import SEGMENT_BYTES
from ringtrain._core.communicators.hierarchical import CHAIN_PODS_MOST, DIRECT_RANKS_MOST
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.transport.base import Transport
from ringtrain._core.transport.rpc import RpcTransport
from ringtrain._core.world.config import WorkerConfig
from ringtrain.errors import PeerLost

from .spmd import UNDER_MPIRUN, SpmdWorld, spmd_world

T = TypeVar("T")
# pods: of two ranks each, or of `ranks_a_pod`, where these divide the size
TRANSPORTS = ["memory", "grpc", "shm", "pods"]
if UNDER_MPIRUN:
    TRANSPORTS = [pytest.param("mpi", marks=pytest.mark.under_mpirun)]
SEAM = ["memory", "grpc", "grpcio"]  # what implements `Transport`; grpcio: without data ports
DEADLINE_S = patient(120.0)


class World:
    """`size` ranks that run functions side by side."""

    def __init__(self, contexts: list[ProcessGroupContext], pool: ThreadPoolExecutor) -> None:
        self.contexts = contexts
        self._pool = pool
        self._barrier = threading.Barrier(len(contexts))
        self._error: BaseException | None = None  # of the rank that failed first

    def run(self, function: Callable[[int], T]) -> list[T]:
        """Return `function(rank)` of every rank, each in a thread of its own."""
        return [future.result(DEADLINE_S) for future in self._start(function)]

    def errors(self, function: Callable[[int], Any]) -> list[BaseException | None]:
        """Return the exception of `function(rank)` on every rank; None if it raised none."""
        return [future.exception(DEADLINE_S) for future in self._start(function)]

    def meet(self) -> None:
        """In a rank: wait for all ranks of this world. Raises where one has failed, which does not come."""
        try:
            self._barrier.wait(DEADLINE_S)
        except threading.BrokenBarrierError as broken:
            raise AssertionError(f"another rank has failed: {self._error!r}") from (self._error or broken)

    def _start(self, function: Callable[[int], Any]) -> list[Any]:
        def entered(rank: int) -> Any:
            with self.contexts[rank].entered():
                try:
                    return function(rank)
                except BaseException as error:
                    self._error = self._error or error
                    self._barrier.abort()
                    raise

        self._error = None
        self._barrier.reset()
        return [self._pool.submit(entered, rank) for rank in range(len(self.contexts))]


def all_raise(
    errors: list[BaseException | None], kind: type[BaseException], *words: str, ranks: tuple[int, ...] | None = None
) -> None:
    """Check that every rank raised a `kind` with these words and, if passed, with these `ranks`."""
    for error in errors:
        assert isinstance(error, kind), error
        assert ranks is None or error.ranks == ranks
        for part in words:
            assert part in str(error), error


@contextlib.contextmanager
def world_of(
    size: int,
    transport: str = "memory",
    *,
    segment_bytes: int = SEGMENT_BYTES,
    timeout_s: float = 60.0,
    stall_timeout_s: float = 600.0,
    ranks_a_pod: int = 2,
    chain_pods_most: int = CHAIN_PODS_MOST,
    direct_ranks_most: int = DIRECT_RANKS_MOST,
) -> Iterator[World | SpmdWorld]:
    """A world of `size` ranks over `transport`; all of it is gone after the block."""
    if transport == "mpi":
        with spmd_world(size, segment_bytes, timeout_s) as world:
            yield world
        return
    addresses = tuple(free_addresses(size))
    network = MemoryNetwork()

    chosen = "shm" if transport == "shm" else "auto" if transport == "pods" else "grpc"

    def join(rank: int) -> ProcessGroupContext:
        config = world_config(
            rank=rank, size=size, addresses=addresses, timeout_s=timeout_s, stall_timeout_s=stall_timeout_s,
            transport=chosen,
        )  # fmt: skip
        if transport == "pods" and size % ranks_a_pod == 0:
            pod, local = divmod(rank, ranks_a_pod)
            config = changed_config(
                config, local_rank=local, local_size=ranks_a_pod, cross_rank=pod, cross_size=size // ranks_a_pod
            )
        made = made_transport(transport, config, network)
        bounds = {"chain_pods_most": chain_pods_most, "direct_ranks_most": direct_ranks_most}
        return ProcessGroupContext(config, made, segment_bytes, **bounds)

    with ThreadPoolExecutor(size) as pool:
        contexts = list(pool.map(join, range(size)))
        try:
            yield World(contexts, pool)
        finally:
            list(pool.map(ProcessGroupContext.close, contexts))


def made_transport(kind: str, config: WorkerConfig, network: MemoryNetwork) -> Transport:
    """Return the transport of a rank of `world_of`. firewalled: no data port can be reached; mixed: rank 1 has none."""
    settings = (config.place.rank, config.addresses, config.waits.timeout_s)
    if kind == "firewalled":
        return Firewalled(*settings)
    if kind in ("grpc", "grpcio", "mixed"):
        return RpcTransport(*settings, data_path=kind == "grpc" or (kind == "mixed" and config.place.rank != 1))
    return MemoryTransport(network, config.place.rank)


class Firewalled(RpcTransport):
    """Is told other ports than peers have."""

    def use_data_port(self, peer: int, port: int, request: bytes) -> None:
        super().use_data_port(peer, 1, request)  # nobody listens there


def until_a_peer_is_lost(work: Callable[[], Any]) -> str:
    """In a rank: work for ever, and say so; what is told when a peer is lost."""
    work()
    tell("running")
    try:
        while True:
            work()
    except PeerLost as lost:
        return str(lost)


def end_one(ranks: Ranks, size: int, victim: int, number: int) -> None:
    """Send `number` to one of ranks that say when they work; all others come back from it with its name."""
    for rank in range(size):
        assert ranks.message(rank) == "running"
    ranks.signal(victim, number)
    for outcome in ranks.outcomes(ranks=[rank for rank in range(size) if rank != victim]):
        assert outcome.ok, outcome
        assert f"rank {victim}" in outcome.value
