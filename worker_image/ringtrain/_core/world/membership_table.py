"""Exchange of every rank's data port and session key in a large world, from partner to partner.

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
    """One rank's data for all other ranks. `share`: the rank's part of the session key. `data_port`: its port for
    tensor data; 0 if it has none."""

    share: bytes
    data_port: int
    local_size: int

    def encode(self) -> bytes:
        return _ENTRY.pack(*self)


class MembershipMessage(NamedTuple):
    """Message with the membership entries of consecutive ranks, from `first` on."""

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
        """Return the message in `data`. Raises MalformedMessage if `data` is no such message."""
        if len(data) < _HEAD.size:
            raise MalformedMessage("the message is not of this protocol: it is too short")
        session, rank, round_, first, count = _HEAD.unpack_from(data)
        each = _ENTRY.size if round_ == ENTRIES else 0
        if round_ not in (ENTRIES, KNOWN) or count > _MOST_ENTRIES or len(data) != _HEAD.size + count * each:
            raise MalformedMessage("the message is not of this protocol: its length is wrong")
        entries = (data[_HEAD.size + each * i : _HEAD.size + each * (i + 1)] for i in range(count))
        return MembershipMessage(session, rank, round_, first, tuple(entries))


class MembershipTable:
    """One rank's part in the exchange: a round for the entries, and a round that confirms that all ranks have them.

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
        """Store the entries in a message from a partner."""
        with self._changed:
            for index, entry in enumerate(message.entries):
                self._known[message.round][(message.first + index) % self._ring.size] = entry
            self._changed.notify_all()

    def gather(self, own: MembershipEntry, end: float) -> tuple[MembershipEntry, ...]:
        """Exchange entries with this rank's partners. Return the entries of all ranks, by rank. `end`: deadline."""
        self._go_round(ENTRIES, own.encode(), end)
        known = self._known[ENTRIES]
        return tuple(MembershipEntry(*_ENTRY.unpack(known[rank])) for rank in range(self._ring.size))

    def await_known(self, end: float) -> None:
        """Wait until all ranks have returned from `gather`, and so no longer need this rank. `end`: deadline."""
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
            # The monitor finds the cause. A partner may have just left.
            self._failure_state.wait(self._ring.probe_timeout_s)
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
        """Wait until the entries of this rank and the next `count` - 1 ranks have arrived. `end`: deadline."""
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
