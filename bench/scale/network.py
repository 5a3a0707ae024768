"""Hosts, their links, and a `Transport` between simulated ranks: what a request, a byte and a way cost."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from bench.scale.clock import Clock, Condition
from ringtrain._core.transport.base import StreamBroken, TransportService, UnexpectedFrame
from ringtrain._core.wire.failure import PullRefused
from ringtrain._core.wire.messages import WireFrame

# Links deal time out in pieces of this: streams that share one take turns.
_PIECE_BYTES: Final = 256 << 10
# A stream's bytes that its reader has not taken: what the kernel keeps on both sides.
_WINDOW_BYTES: Final = 2 << 20
# Frames up to this really carry their bytes: lengths that the protocol goes by.
_CARRIED_BYTES: Final = 4096


@dataclass(frozen=True)
class Costs:
    """Seconds of a rank's processor time, on each side. `request_s`: of a Pull; `frame_s`: of a frame; `byte_s`:
    of its bytes, with the fold; `question_s`: of a control request."""

    request_s: float
    frame_s: float
    byte_s: float
    question_s: float


@dataclass(frozen=True)
class Link:
    """Of each host, both ways at once. `latency_s`: one way, between hosts or within one."""

    bytes_per_s: float
    latency_s: float


@dataclass
class Host:
    """Cores that ranks share, and a network interface."""

    cores: int
    free: list[float] = field(init=False)
    sending: "deque[_Way]" = field(default_factory=deque)
    is_sending: bool = False
    received_until: float = 0.0

    def __post_init__(self) -> None:
        self.free = [0.0] * self.cores


class Network:
    """Ranks by number, each on one of the hosts."""

    def __init__(self, clock: Clock, hosts: list[Host], ranks_each: int, link: Link, costs: Costs) -> None:
        self.clock, self.link, self.costs = clock, link, costs
        self.requests = 0
        self._hosts, self._ranks_each = hosts, ranks_each
        self._busy_until: dict[int, float] = {}
        self.services: dict[int, TransportService] = {}
        self.serving = Condition(clock)

    def host(self, rank: int) -> Host:
        return self._hosts[rank // self._ranks_each]

    def work(self, rank: int, seconds: float) -> None:
        """Have `rank`, which does one thing at a time, work for so long on one of its host's cores."""
        cores = self.host(rank).free
        core = min(range(len(cores)), key=cores.__getitem__)
        end = max(self.clock.now, self._busy_until.get(rank, 0.0), cores[core]) + seconds
        self._busy_until[rank] = cores[core] = end
        self.clock.sleep_until(end)

    def send(self, way: "_Way", nbytes: int, arrived: Callable[[], None]) -> None:
        """Have `nbytes` go the way; those of one way in their order, ways of one host in turns."""
        if self.host(way.origin) is self.host(way.target):
            self.clock.at(self.clock.now + self.link.latency_s, arrived)
            return
        host = self.host(way.origin)
        way.waiting.append([nbytes, arrived])
        if not way.is_listed:
            way.is_listed = True
            host.sending.append(way)
        if not host.is_sending:
            self._send_next(host)

    def _send_next(self, host: Host) -> None:
        host.is_sending = bool(host.sending)
        if not host.sending:
            return
        way = host.sending.popleft()
        transfer = way.waiting[0]
        piece = min(_PIECE_BYTES, transfer[0])
        transfer[0] -= piece
        arrived = None
        if not transfer[0]:
            way.waiting.popleft()
            arrived = transfer[1]
        way.is_listed = bool(way.waiting)
        if way.is_listed:
            host.sending.append(way)
        took = piece / self.link.bytes_per_s
        self.clock.at(self.clock.now + took, lambda: self._send_next(host))
        # The receiver's link takes pieces as they come; the first byte of one does not wait for its last.
        target = self.host(way.target)
        target.received_until = max(self.clock.now + self.link.latency_s, target.received_until) + took
        if arrived is not None:
            self.clock.at(target.received_until, arrived)


@dataclass(eq=False)
class _Way:
    """From one rank to another, for one request."""

    origin: int
    target: int
    waiting: "deque[list[Any]]" = field(default_factory=deque)
    is_listed: bool = False


class _Caller:
    """The other end of a request: it waits as long as it takes."""

    def remaining_s(self) -> float:
        return 1e9

    def is_active(self) -> bool:
        return True

    def flush(self) -> None:
        return None

    def on_end(self, callback: Callable[[], None]) -> None:
        return None


class _Stream:
    """Frames of one Pull, from `peer` to `rank`."""

    def __init__(self, network: Network, rank: int, peer: int, request: bytes) -> None:
        self._network, self._rank, self._peer, self._request = network, rank, peer, request
        self._arrived: deque[WireFrame | None] = deque()
        self._unread = 0
        self._changed = Condition(network.clock)
        network.requests += 1
        network.work(rank, network.costs.request_s)
        network.send(_Way(rank, peer), 200, lambda: network.clock.spawn(self._serve))

    def _serve(self) -> None:
        network, way = self._network, _Way(self._peer, self._rank)
        network.work(self._peer, network.costs.request_s)
        for frame in network.services[self._peer].pull(self._request, _Caller()):
            nbytes = len(frame.payload)
            network.work(self._peer, network.costs.frame_s + nbytes * network.costs.byte_s)
            self._unread += nbytes
            network.send(way, nbytes + len(frame.head), lambda frame=frame: self._take(frame))
            self._changed.wait_for(lambda: self._unread <= _WINDOW_BYTES)
        network.send(way, 50, lambda: self._take(None))

    def _take(self, frame: WireFrame | None) -> None:
        self._arrived.append(frame)
        self._changed.notify_all()

    def _next(self) -> WireFrame | None:
        self._changed.wait_for(lambda: self._arrived)
        return self._arrived.popleft()

    def read_into(self, head: bytes, target: memoryview) -> None:
        frame = self._next()
        if frame is None or frame.head != head or len(frame.payload) != len(target):
            raise UnexpectedFrame("another frame")
        if len(target) <= _CARRIED_BYTES:
            target[:] = frame.payload
        costs = self._network.costs
        self._network.work(self._rank, costs.frame_s + len(target) * costs.byte_s)
        self._unread -= len(target)
        self._changed.notify_all()

    def end(self) -> None:
        if self._next() is not None:
            raise UnexpectedFrame("the peer sent more data than expected")

    def cancel(self) -> None:
        return None

    def close(self) -> None:
        return None


class SimulatedTransport:
    """One rank's end of the network."""

    data_port = None

    def __init__(self, network: Network, rank: int) -> None:
        self._network, self._rank = network, rank

    def use_session(self, peer: int, session: bytes) -> None:
        return None

    def use_data_port(self, peer: int, port: int, request: bytes) -> None:
        return None

    def serve(self, service: TransportService) -> None:
        self._network.services[self._rank] = service
        self._network.serving.notify_all()

    def pull(self, peer: int, request: bytes, timeout_s: float) -> _Stream:
        return _Stream(self._network, self._rank, peer, request)

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        answer: Future[bytes] = Future()
        network = self._network
        network.requests += 1

        def asked() -> None:
            network.work(self._rank, network.costs.question_s)
            network.send(_Way(self._rank, peer), len(request) + 200, lambda: network.clock.spawn(answered))

        def answered() -> None:
            network.serving.wait_for(lambda: peer in network.services)
            network.work(peer, network.costs.question_s)
            try:
                reply = network.services[peer].answer(method, request, _Caller())
            except (StreamBroken, PullRefused) as error:
                way, failed = _Way(peer, self._rank), error
                network.send(way, 200, lambda: network.clock.spawn(lambda: answer.set_exception(failed)))
                return
            back = _Way(peer, self._rank)
            network.send(back, len(reply) + 200, lambda: network.clock.spawn(lambda: answer.set_result(reply)))

        network.clock.spawn(asked)
        return answer

    def close(self, grace_s: float) -> None:
        self._network.services.pop(self._rank, None)
