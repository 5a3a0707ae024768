"""A rank that dies or stops at any place of any collective makes all others raise PeerLost naming it, in time.

To replay one seed: RINGTRAIN_TEST_SEEDS=17 pytest tests/ring/test_faults.py
"""

import functools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pytest
from support.ranks import started_ranks, tell

import ringtrain as rt
from ring.leftovers import leftovers
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.transport.base import FrameStream, Transport, TransportCaller, TransportService
from ringtrain._core.transport.rpc import RpcTransport
from ringtrain._core.wire.messages import PullRequestMessage, WireFrame
from ringtrain._core.world.config import WorkerConfig
from ringtrain.optim import AdamW, HostOptimizer

SIZE = 3
TIMEOUT_S = 10.0
SEEDS = [int(seed) for seed in os.environ.get("RINGTRAIN_TEST_SEEDS", "").split(",") if seed] or list(range(50))
AT_ONCE = 10

# Large enough for several segments of 4 KiB to each rank.
COLLECTIVES = [
    lambda x: rt.allreduce(x, rt.Sum),
    lambda x: rt.allreduce(x[:3], rt.Sum),
    lambda x: rt.reducescatter(x, rt.Average),
    lambda x: rt.allgather(x[: 100 * (rt.rank() + 1)]),
    lambda x: rt.broadcast(x, 0),
    lambda x: rt.broadcast(np.repeat(x, 4), 1),
    lambda x: rt.alltoall(x[:9999]),
    lambda x: rt.barrier(),
    lambda x: rt.grouped_allreduce([x[:10], x], rt.Max),
    lambda x: rt.synchronize(rt.allreduce_async(x, rt.Sum)),
    lambda x: _update(x),
]
SEQUENCES = 20  # a round: the last of these are the optimizer's


class Where(Enum):
    """Point in a collective at which a fault occurs."""

    READ = "read"  # before the victim reads its n-th frame
    SERVE = "serve"  # before the victim hands out its n-th frame


@dataclass(frozen=True)
class FaultPlan:
    """`rank` gets `signal` before its `frame`-th frame, counted from collective `sequence` on.

    A rank to which it happens says "fired" to the test first.
    """

    rank: int
    sequence: int
    where: Where
    frame: int
    signal: signal.Signals

    @staticmethod
    def of_seed(seed: int, size: int, collectives: int) -> "FaultPlan":
        """A plan that only depends on `seed`; every second one stops the rank instead of killing it."""
        chosen = random.Random(seed)
        return FaultPlan(
            rank=chosen.randrange(size),
            sequence=1 + chosen.randrange(collectives),
            where=chosen.choice(list(Where)),
            frame=chosen.randrange(4),
            signal=(signal.SIGKILL, signal.SIGSTOP)[seed % 2],
        )

    def applied_to(self, transport: Transport, rank: int) -> Transport:
        """`transport` as `rank` should use it."""
        return FaultyTransport(transport, self) if rank == self.rank else transport


class FaultyTransport:
    """Carries everything, until the plan says otherwise."""

    def __init__(self, transport: Transport, plan: FaultPlan) -> None:
        self._transport = transport
        self._plan = plan
        self._lock = threading.Lock()
        self._frames = 0

    @property
    def data_port(self) -> int | None:
        return self._transport.data_port

    def use_session(self, peer: int, session: bytes) -> None:
        self._transport.use_session(peer, session)

    def use_data_port(self, peer: int, port: int, request: bytes) -> None:
        self._transport.use_data_port(peer, port, request)

    def serve(self, service: TransportService) -> None:
        self._transport.serve(_FaultyService(service, self._before_frame))

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        return self._transport.ask(peer, method, request, timeout_s, patient)

    def pull(self, peer: int, request: bytes, timeout_s: float) -> FrameStream:
        stream = self._transport.pull(peer, request, timeout_s)
        return _FaultyStream(stream, lambda: self._before_frame(Where.READ, request))

    def close(self, grace_s: float) -> None:
        self._transport.close(grace_s)

    def _before_frame(self, where: Where, request: bytes) -> None:
        if where is not self._plan.where or PullRequestMessage.decode(request).sequence < self._plan.sequence:
            return
        with self._lock:
            self._frames += 1
            if self._frames == self._plan.frame + 1:
                tell("fired")
                os.kill(os.getpid(), self._plan.signal)


class _FaultyStream:
    def __init__(self, stream: FrameStream, before: Callable[[], None]) -> None:
        self._stream = stream
        self._before = before

    def read_into(self, head: bytes, target: memoryview) -> None:
        self._before()
        self._stream.read_into(head, target)

    def end(self) -> None:
        self._before()
        self._stream.end()

    def cancel(self) -> None:
        self._stream.cancel()

    def close(self) -> None:
        self._stream.close()


class _FaultyService:
    def __init__(self, service: TransportService, before: Callable[[Where, bytes], None]) -> None:
        self._service = service
        self._before = before

    def is_peer(self, rank: int, session: bytes) -> bool:
        return self._service.is_peer(rank, session)

    def answer(self, method: str, request: bytes, caller: TransportCaller) -> bytes:
        return self._service.answer(method, request, caller)

    def pull(self, request: bytes, caller: TransportCaller) -> Iterator[WireFrame]:
        for frame in self._service.pull(request, caller):
            self._before(Where.SERVE, request)
            yield frame


@functools.cache
def _optimizer() -> HostOptimizer:
    """One bucket for each parameter: several updates are under way at the same time."""
    return HostOptimizer({f"p{i}": np.ones(i * 3000, np.float32) for i in range(1, 4)}, AdamW(0.1), bucket_bytes=1)


def _update(x: np.ndarray) -> None:
    for name, weights in reversed(_optimizer().weights.items()):
        _optimizer().submit(name, x[: len(weights)])
    _optimizer().step()


def _train_until_a_fault(plan: FaultPlan) -> dict[str, object]:
    """Run collectives round after round; return how it ended on this rank."""
    config = WorkerConfig.from_env(os.environ)
    network = RpcTransport(config.place.rank, config.addresses, config.waits.timeout_s, config.ways.data_path == "auto")
    transport = plan.applied_to(network, config.place.rank)
    x = np.arange(10_000, dtype=np.float32)
    started = time.monotonic()
    try:
        context = ProcessGroupContext(config, transport, segment_bytes=4096)
    except rt.errors.PeerLost as error:  # the others had met, and one was dead, before this rank was through
        return {**_lost(error, started), "again": str(error), "left": leftovers()}
    with context.entered():
        try:
            while True:
                for collective in COLLECTIVES:
                    started = time.monotonic()
                    collective(x)
        except rt.errors.PeerLost as error:
            lost = _lost(error, started)
            again = _error_of(lambda: rt.allreduce(x))
            context.close()
            return {**lost, "again": again, "left": leftovers()}


def _lost(error: rt.errors.PeerLost, started: float) -> dict[str, object]:
    return {"lost": error.rank, "message": str(error), "took_s": time.monotonic() - started}


def _error_of(call):
    try:
        return f"returned {call()}"
    except rt.errors.RingtrainError as error:
        return str(error)


@pytest.mark.parametrize(
    "seeds", [SEEDS[i : i + AT_ONCE] for i in range(0, len(SEEDS), AT_ONCE)], ids=lambda s: f"seeds-{s[0]}-{s[-1]}"
)
def test_a_rank_that_dies_or_stops_is_named_by_all_others(seeds: list[int]) -> None:
    """For every seed the fault fires, all others raise PeerLost naming the victim within the timeout, and go on
    raising it; after shutdown they have no thread and no socket left."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = [problem for problem in pool.map(_problem_of, seeds) if problem]
    assert not problems, "\n".join(problems)


def _problem_of(seed: int) -> str | None:
    plan = FaultPlan.of_seed(seed, SIZE, SEQUENCES)
    survivors = [rank for rank in range(SIZE) if rank != plan.rank]
    env = {
        "RINGTRAIN_TIMEOUT": str(TIMEOUT_S),
        "RINGTRAIN_TRANSPORT": "grpc",
        "RINGTRAIN_DATA_PATH": "grpcio" if seed % 5 == 0 else "auto",
    }
    with started_ranks(_train_until_a_fault, SIZE, plan, env=env) as ranks:
        assert ranks.message(plan.rank) == "fired"
        outcomes = ranks.outcomes(ranks=survivors)
    for outcome in outcomes:
        ended = outcome.value
        if not outcome.ok or ended["lost"] != plan.rank or ended["again"] != ended["message"]:
            return f"seed {seed}: {plan}: {outcome}"
        if ended["took_s"] > TIMEOUT_S or ended["left"]:
            return f"seed {seed}: {plan}: after {ended['took_s']:.1f} s, left behind {ended['left']}: {ended}"
    return None
