"""Faults on purpose: a rank that dies or stops at a scripted place of a scripted collective."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum

from ringtrain.transport.base import Caller, FrameStream, Service, Transport
from ringtrain.wire.frame import Frame
from ringtrain.wire.messages import PullRequest
from support.ranks import tell


class Where(Enum):
    """Where in a collective a fault strikes."""

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

    def serve(self, service: Service) -> None:
        self._transport.serve(_FaultyService(service, self._before_frame))

    def ask(
        self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False
    ) -> "Future[bytes]":
        return self._transport.ask(peer, method, request, timeout_s, patient)

    def pull(self, peer: int, request: bytes, timeout_s: float) -> FrameStream:
        stream = self._transport.pull(peer, request, timeout_s)
        return _FaultyStream(stream, lambda: self._before_frame(Where.READ, request))

    def close(self, grace_s: float) -> None:
        self._transport.close(grace_s)

    def _before_frame(self, where: Where, request: bytes) -> None:
        if where is not self._plan.where or PullRequest.decode(request).sequence < self._plan.sequence:
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
    def __init__(self, service: Service, before: Callable[[Where, bytes], None]) -> None:
        self._service = service
        self._before = before

    def is_peer(self, rank: int, session: bytes) -> bool:
        return self._service.is_peer(rank, session)

    def answer(self, method: str, request: bytes, caller: Caller) -> bytes:
        return self._service.answer(method, request, caller)

    def pull(self, request: bytes, caller: Caller) -> Iterator[Frame]:
        for frame in self._service.pull(request, caller):
            self._before(Where.SERVE, request)
            yield frame
