"""Ranks as threads of one process: for tests, and for looking at the protocol without a network."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

from ringtrain._core.transport.base import (
    PeerUnreached,
    StreamBroken,
    StreamEnd,
    TransportService,
    UnexpectedFrame,
)
from ringtrain._core.wire.failure import PullRefused
from ringtrain._core.wire.messages import WireFrame


class MemoryCaller:
    """A caller on the other side of a method call."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s
        self._active = True
        self._callbacks: list[Callable[[], None]] = []

    def remaining_s(self) -> float:
        return self._end - time.monotonic()

    def is_active(self) -> bool:
        return self._active and self.remaining_s() > 0

    def flush(self) -> None:
        """Every frame is taken when it is handed out."""

    def on_end(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def leave(self) -> None:
        self._active = False
        for callback in self._callbacks:
            callback()


class MemoryNetwork:
    """In-memory network on which the ranks of one in-process world find each other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._services: dict[int, TransportService] = {}
        self._callers: dict[int, set[MemoryCaller]] = {}

    def join(self, rank: int, service: TransportService) -> None:
        with self._changed:
            self._services[rank] = service
            self._changed.notify_all()

    def leave(self, rank: int, grace_s: float = 0.0) -> None:
        """Take `rank` off the network, as if its process had died once `grace_s` is over."""
        with self._changed:
            self._services.pop(rank, None)
            self._changed.wait_for(lambda: not self._callers.get(rank), grace_s)
            callers = list(self._callers.pop(rank, ()))
        for caller in callers:
            caller.leave()

    def find(self, rank: int, caller: MemoryCaller, patient: bool) -> TransportService:
        with self._changed:
            if patient:
                self._changed.wait_for(lambda: rank in self._services or not caller.is_active(), caller.remaining_s())
            if rank not in self._services:
                raise StreamBroken(StreamEnd.TIMEOUT, "no such rank") if patient else PeerUnreached("no such rank")
            self._callers.setdefault(rank, set()).add(caller)
            return self._services[rank]

    def give_up(self, callers: Iterable[MemoryCaller]) -> None:
        """Let go of everything that these callers wait for."""
        for caller in callers:
            caller.leave()
        with self._changed:
            self._changed.notify_all()

    def forget(self, rank: int, caller: MemoryCaller) -> None:
        with self._changed:
            self._callers.get(rank, set()).discard(caller)
            self._changed.notify_all()


class MemoryStream:
    """Runs the peer's generator in the thread that reads it."""

    def __init__(self, frames: Iterator[WireFrame], caller: MemoryCaller, forget: Callable[[], None]) -> None:
        self._frames = frames
        self._caller = caller
        self._forget = forget
        self._cancelled = False

    def read_into(self, head: bytes, target: memoryview) -> None:
        frame = self._next()
        if frame is None:
            raise UnexpectedFrame("the stream ended too early")
        if difference := frame.move_into(head, target):
            raise UnexpectedFrame(difference)

    def end(self) -> None:
        if self._next() is not None:
            raise UnexpectedFrame("the peer sent more data than expected")

    def _next(self) -> WireFrame | None:
        """The next frame, or None at the end."""
        frame = next(self._frames, None)
        if frame is None:
            self._forget()
        if not self._caller.is_active():
            raise self._broken()
        return frame

    def _broken(self) -> StreamBroken:
        if self._cancelled:
            return StreamBroken(StreamEnd.CANCELLED, "this rank cancelled the call")
        if self._caller.remaining_s() <= 0:
            return StreamBroken(StreamEnd.TIMEOUT, "nothing within the deadline")
        return StreamBroken(StreamEnd.CLOSED, "the peer left")

    def cancel(self) -> None:
        self._cancelled = True
        self._caller.leave()

    def close(self) -> None:
        self.cancel()
        self._forget()


class MemoryTransport:
    """One rank's end of a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, rank: int) -> None:
        self._network = network
        self._rank = rank
        self._asking: set[MemoryCaller] = set()

    data_port = None

    def use_session(self, peer: int, session: bytes) -> None:
        """There are no strangers."""

    def use_data_port(self, peer: int, port: int, request: bytes) -> None:
        """There are no ports."""

    def serve(self, service: TransportService) -> None:
        self._network.join(self._rank, service)

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        answer: Future[bytes] = Future()
        caller = MemoryCaller(timeout_s)
        self._asking.add(caller)

        def run() -> None:
            try:
                reply = self._network.find(peer, caller, patient).answer(method, request, caller)
                if not caller.is_active():
                    raise StreamBroken(StreamEnd.CLOSED, "the peer left")
            except (StreamBroken, PullRefused) as error:
                answer.set_exception(error)
            else:
                answer.set_result(reply)
            finally:
                self._network.forget(peer, caller)
                self._asking.discard(caller)

        threading.Thread(target=run, name=f"ringtrain-ask-{method}", daemon=True).start()
        return answer

    def pull(self, peer: int, request: bytes, timeout_s: float) -> MemoryStream:
        caller = MemoryCaller(timeout_s)
        frames = self._network.find(peer, caller, patient=False).pull(request, caller)
        return MemoryStream(frames, caller, lambda: self._network.forget(peer, caller))

    def close(self, grace_s: float) -> None:
        self._network.leave(self._rank, grace_s)
        self._network.give_up(list(self._asking))
