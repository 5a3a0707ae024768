"""Membership table of a large world, distributed from partner to partner.

A rank sends to its partners at distance -1, -2, -4, ... the entries of the ranks from its own on: as many as the
distance (the dissemination of Bruck et al. 1997). After log2 N messages it knows all N, and each message is needed: a
rank that has received all, and whose messages are answered, is needed by no other, and may leave.
"""

import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from ringtrain._core.wire.messages import SESSION_BYTES, MalformedMessage
from ringtrain._core.world.failure_state import WorldFailureState
from ringtrain._core.world.ring_config import RingConfig
from ringtrain._core.world.spread import await_peer_answers, is_peer_answered

# Two rounds: the entries; then the confirmation that all ranks have them.
ENTRIES, KNOWN = 0, 1
_HEAD: Final = struct.Struct(f"<{SESSION_BYTES}sIBII")  # session and rank of the sender, round, first rank, number
_ENTRY: Final = struct.Struct("<16sHI")
# A message has at most 64 KiB.
_MOST_ENTRIES: Final = 2048


class MembershipEntry(NamedTuple):
    """Entry of one rank. `share`: this rank's part of the session key, for members only; `data_port`: 0 if the rank
    has no data port."""

    share: bytes
    data_port: int
    local_size: int

    def encode(self) -> bytes:
        return _ENTRY.pack(*self)


class MembershipMessage(NamedTuple):
    """Message with the entries of the ranks from `first` on."""

    session: bytes
    rank: int
    round: int
    first: int
    entries: tuple[bytes, ...]

    def encode(self) -> bytes:
        head = _HEAD.pack(self.session, self.rank, self.round, self.first, len(self.entries))
        return head + b"".join(self.entries)

    @staticmethod
    def decode(data: bytes) -> "MembershipMessage":
        """Decode a message. Raises MalformedMessage."""
        if len(data) < _HEAD.size:
            raise MalformedMessage("not a message of this protocol: too short")
        session, rank, round_, first, count = _HEAD.unpack_from(data)
        each = _ENTRY.size if round_ == ENTRIES else 0
        if round_ not in (ENTRIES, KNOWN) or count > _MOST_ENTRIES or len(data) != _HEAD.size + count * each:
            raise MalformedMessage("not a message of this protocol: another length")
        entries = (data[_HEAD.size + each * i : _HEAD.size + each * (i + 1)] for i in range(count))
        return MembershipMessage(session, rank, round_, first, tuple(entries))


class MembershipTable:
    """One rank's part in both rounds.

    `ask(peer, round, first, entries, timeout_s)`: sends to a partner; `failed(peer, error)`: handles one that does not
    answer; `missing(ranks)`: called at the deadline, fails the world because of unknown ranks.
    """

    def __init__(
        self,
        ring: RingConfig,
        failure_state: WorldFailureState,
        ask: "Callable[[int, int, int, tuple[bytes, ...], float], Future[bytes]]",
        failed: Callable[[int, BaseException], None],
        missing: Callable[[Sequence[int]], None],
    ) -> None:
        self._ring = ring
        self._failure_state = failure_state
        self._ask = ask
        self._failed = failed
        self._missing = missing
        self._changed = threading.Condition()
        self._known: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
        failure_state.on_reached(self._wake)

    def take(self, message: MembershipMessage) -> None:
        """Store the entries of a partner's message."""
        with self._changed:
            for index, entry in enumerate(message.entries):
                self._known[message.round][(message.first + index) % self._ring.size] = entry
            self._changed.notify_all()

    def gather(self, own: MembershipEntry, end: float) -> tuple[MembershipEntry, ...]:
        """Exchange entries with this rank's partners. Return the entries of all ranks, by rank. Raises the failure of
        the exchange."""
        self._go_round(ENTRIES, own.encode(), end)
        known = self._known[ENTRIES]
        return tuple(MembershipEntry(*_ENTRY.unpack(known[rank])) for rank in range(self._ring.size))

    def await_known(self, end: float) -> None:
        """Wait until all ranks have returned from `gather`, so that no rank needs this one. Raises the failure of the
        exchange."""
        self._go_round(KNOWN, b"", end)

    def _go_round(self, round_: int, own: bytes, end: float) -> None:
        rank, size, known = self._ring.rank, self._ring.size, self._known[round_]
        with self._changed:
            known[rank] = own
        answers: list[Future[bytes]] = []
        for distance in (1 << power for power in range((size - 1).bit_length())):
            self._await(known, distance, end)
            ranks = [(rank + index) % size for index in range(min(distance, size - distance))]
            for at in range(0, len(ranks), _MOST_ENTRIES):
                part = ranks[at : at + _MOST_ENTRIES]
                answers.append(self._tell((rank - distance) % size, round_, part, end))
        self._await(known, size, end)
        await_peer_answers(answers, end - time.monotonic())
        if not all(map(is_peer_answered, answers)):
            self._failure_state.wait(
                self._ring.probe_timeout_s
            )  # the monitor finds the cause; a partner may have just left
        self._failure_state.check()

    def _tell(self, peer: int, round_: int, ranks: Sequence[int], end: float) -> "Future[bytes]":
        def answered(answer: "Future[bytes]") -> None:
            error = answer.exception()
            if error is not None and self._failure_state.failure is None:
                self._failed(peer, error)

        entries = tuple(self._known[round_][rank] for rank in ranks)
        answer = self._ask(peer, round_, ranks[0], entries, max(end - time.monotonic(), self._ring.settle_s))
        answer.add_done_callback(answered)
        return answer

    def _await(self, known: dict[int, bytes], count: int, end: float) -> None:
        """Wait until the next `count` ranks, including this one, are known."""
        wanted = [(self._ring.rank + index) % self._ring.size for index in range(count)]

        def unknown() -> list[int]:
            return [rank for rank in wanted if rank not in known]

        with self._changed:
            self._changed.wait_for(
                lambda: self._failure_state.failure is not None or not unknown(), end - time.monotonic()
            )
            left = unknown()
        self._failure_state.check()
        if left:
            self._missing(left)
            self._failure_state.check()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
