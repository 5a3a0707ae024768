"""Errors of gRPC requests without an answer: whether the peer received the request, and the cause."""

import threading
from collections.abc import Iterator
from concurrent.futures import as_completed
from contextlib import contextmanager
from itertools import islice

from support.deadlines import patient
from support.ports import free_addresses

from ringtrain._core.transport.base import PeerUnreached, StreamBroken, StreamEnd, TransportCaller
from ringtrain._core.transport.rpc import RpcTransport
from ringtrain._core.wire.messages import STATUS, WATCH, WireFrame

DEADLINE_S = patient(60.0)


class Waiting:
    """Answers no watch, as long as it is asked. `arrived`: whether it was."""

    def __init__(self) -> None:
        self.arrived = threading.Event()

    def is_peer(self, rank: int, session: bytes) -> bool:
        return session == b"known"

    def answer(self, method: str, request: bytes, caller: TransportCaller) -> bytes:
        if method == STATUS:
            return b""
        self.arrived.set()
        over = threading.Event()
        caller.on_end(over.set)
        over.wait(DEADLINE_S)
        return b""

    def pull(self, request: bytes, caller: TransportCaller) -> Iterator[WireFrame]:
        raise AssertionError("not asked for here")


@contextmanager
def _asking(service: Waiting) -> Iterator[tuple[RpcTransport, RpcTransport]]:
    """Rank 1, which asks, and rank 0, which `service` answers for."""
    addresses = tuple(free_addresses(2))
    asked, asking = (RpcTransport(rank, addresses, DEADLINE_S, data_path=False) for rank in range(2))
    asked.serve(service)
    try:
        yield asking, asked
    finally:
        asking.close(0.0)
        asked.close(0.0)


def test_a_question_that_had_arrived_is_told_from_one_that_had_not() -> None:
    """Both when the peer ends: of one it had, the connection broke; the other could not be put."""
    service = Waiting()
    with _asking(service) as (asking, asked):
        asking.use_session(0, b"known")
        answer = asking.ask(0, WATCH, b"", DEADLINE_S)
        assert service.arrived.wait(DEADLINE_S)
        assert asking.ask(0, STATUS, b"", DEADLINE_S).result(DEADLINE_S) == b""  # what came before has come, too
        asked.close(0.0)
        had = answer.exception(DEADLINE_S)
        had_not = asking.ask(0, WATCH, b"", DEADLINE_S).exception(DEADLINE_S)
    for error in (had, had_not):
        assert isinstance(error, StreamBroken), error
        assert error.how is StreamEnd.CLOSED, error
    assert not isinstance(had, PeerUnreached), had
    assert isinstance(had_not, PeerUnreached), had_not


def test_who_is_not_known_hears_that_it_was_one_too_many() -> None:
    """The peer answers few strangers at a time. It is there, whatever it is said to have."""
    with _asking(Waiting()) as (asking, _):
        answers = [asking.ask(0, WATCH, b"", DEADLINE_S) for _ in range(60)]
        ended = [answer.exception() for answer in islice(as_completed(answers, DEADLINE_S), 40)]
    expected = "it is not a rank, or has too many unauthenticated callers"
    assert [str(error) for error in ended] == [expected] * 40
