"""Membership of a rank in its world: handshake with peers, answers to their requests, detection of lost ones."""

import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import NoReturn

from ringtrain._core.transport.base import StreamBroken, Transport, TransportCaller
from ringtrain._core.wire.failure import NotAPeer, PullRefused, WorldFailure
from ringtrain._core.wire.messages import (
    ABORT,
    HELLO,
    MEANING,
    PROVE,
    ROSTER,
    STATUS,
    MalformedMessage,
    PullRequestMessage,
    WireFrame,
    decode_message_fields,
    encode_wire_message,
)
from ringtrain._core.wire.signature import WireSignature, decode_signature, describe_mismatch, is_signature_text
from ringtrain._core.world import neighbours
from ringtrain._core.world.failure_state import PeerClosed, RankActivity, WorldFailureState
from ringtrain._core.world.handshake import PATIENCE, WorldHandshake
from ringtrain._core.world.lateness import WorldLateness
from ringtrain._core.world.membership_table import MembershipMessage, MembershipTable
from ringtrain._core.world.monitor import WorldMonitor
from ringtrain._core.world.offers import CallerGone, CollectiveOffer, Key, WorldOfferTable
from ringtrain._core.world.ring_config import RingConfig
from ringtrain._core.world.watches import ALIVE
from ringtrain.errors import NotInitializedError, RingtrainError


class WorldMembership:
    """Membership of one rank in its world. Answers its peers' requests and serves its own collectives."""

    def __init__(self, ring: RingConfig, transport: Transport) -> None:
        self.ring = ring
        self.transport = transport
        self.failure_state = WorldFailureState()
        self.offers = WorldOfferTable(ring.rank, self.failure_state)
        self._handshake = WorldHandshake(ring, self.failure_state, self._is_over)
        self.monitor = WorldMonitor(ring, transport, self.failure_state, self._identity, self._peer_left)
        self._watches = self.monitor.watches
        self._table = MembershipTable(ring, self.failure_state, self._send_entries, self._partner_failed, self._absent)
        self._lateness = WorldLateness(
            ring, self.offers, self.monitor.statuses, self._look_for_takers, ring.stall_warning_s
        )
        self.left = False
        self._closed = threading.Lock()

    @staticmethod
    def join(
        ring: RingConfig, transport: Transport, began: Callable[["WorldMembership"], None] | None = None
    ) -> "WorldMembership":
        """Run the handshake with all peers, and return the membership. `began`: receives the membership before the
        handshake, to be able to abort it.

        Raises ConfigurationError or PeerLost, on every rank that can be reached.
        """
        member = WorldMembership(ring, transport)
        if began is not None:
            began(member)
        member._run_handshake()
        return member

    def _run_handshake(self) -> None:
        try:
            self.transport.serve(self)
            self.monitor.start()
            end = time.monotonic() + self.ring.timeout_s
            self._handshake.run_with_partners(self.transport, self._watches.watch, end)
            if not neighbours.is_mesh(self.ring.size):
                self._learn_of_all(end)
            self._watches.end_handshake()
            self.failure_state.check()
            self._lateness.start()
        except BaseException:
            failure = self.failure_state.failure
            if failure is not None:
                self.monitor.announce(failure)
            self.leave()
            raise

    def _learn_of_all(self, end: float) -> None:
        """Get sessions with the ranks that are not partners, and wait until all ranks have their sessions."""
        end += self.ring.timeout_s / PATIENCE
        entries = self._table.gather(self._handshake.entry(self.transport.data_port), end)
        self._handshake.know_all(self.transport, entries)
        self.monitor.knows_all = True
        self._table.await_known(end)

    def _send_entries(
        self, peer: int, round_: int, first: int, entries: tuple[bytes, ...], timeout_s: float
    ) -> "Future[bytes]":
        message = MembershipMessage(self._handshake.sessions.get(peer, b""), self.ring.rank, round_, first, entries)
        return self.transport.ask(peer, ROSTER, message.encode(), timeout_s)

    def _partner_failed(self, peer: int, error: BaseException) -> None:
        if isinstance(error, PullRefused) and not error.is_from_another_world:
            self.monitor.report(error.failure)
        else:
            self.monitor.report(PeerClosed(peer, str(error), None))

    def _absent(self, missing: Sequence[int]) -> None:
        """Fail the world because nothing is known of the ranks in `missing` at the deadline."""
        within = f"within {self.ring.timeout_s:g} s (waited for by rank {self.ring.rank})"
        text = f"{self.ring.name(missing[0])} answers, but has not joined all of its partners {within}"
        absence = self._handshake.absence(self.transport, missing)
        self.failure_state.reach(absence or WorldFailure("lost", text, missing[0]))

    def all_taken(self, offer: CollectiveOffer, timeout_s: float, activity: Callable[[], RankActivity]) -> bool:
        """Wait until every peer has read all frames of `offer`; return whether they have."""
        if not self._watches.are_sparse:
            return self.offers.all_taken(offer, timeout_s)
        end = time.monotonic() + timeout_s
        while not self.offers.all_taken(offer, min(timeout_s, self.ring.probe_timeout_s)):
            timeout_s = end - time.monotonic()
            ended = self.left or self.failure_state.failure is not None or self.offers.departed_rank(offer) is not None
            if ended or timeout_s <= 0:
                return False
            self._look_for(offer, activity())
        return True

    def departed_rank(self, peers: frozenset[int]) -> int | None:
        """Return one of `peers` that has shut down; None if none has."""
        return self._watches.departed_rank(peers)

    def _look_for(self, offer: CollectiveOffer, activity: RankActivity) -> None:
        """Find out which ranks that have not read all of `offer` are lost, and report them."""
        self.monitor.look_for(offer.waiting_for.copy(), activity, lambda peer: peer in offer.waiting_for)

    def _look_for_takers(self, key: Key) -> None:
        if (offer := self.offers.published(key)) is not None:
            self._look_for(offer, self.activity(key, offer.signature))

    def prepare_pulls(self, peers: Iterable[int]) -> None:
        """Start to open missing connections for tensor data to `peers`, in parallel. Returns at once."""
        if self._handshake.ports:
            self._handshake.use_data_ports(self.transport, peers)

    def pull_request(self, peer: int, key: Key, what: WireSignature) -> bytes:
        return PullRequestMessage(self._handshake.sessions.get(peer, b""), self.ring.rank, *key, what.compared).encode()

    def mismatch(self, key: Key, mine: WireSignature, peer: int, compared: bytes) -> WorldFailure:
        """Return the failure that describes how this rank and `peer` differ in collective `key`.

        `compared`: the peer's signature; if it is a digest, the peer is asked for the full text.
        """
        theirs = decode_signature(compared) if is_signature_text(compared) else self._ask_meaning(peer, key)
        if theirs is not None and theirs != mine:
            return WorldFailure("mismatch", describe_mismatch(key[1], (self.ring.rank, mine), (peer, theirs)))
        one, other = sorted((self.ring.rank, peer))
        return WorldFailure(
            "mismatch",
            f"{mine.label} #{key[1]}: the arguments of ranks {one} and {other} differ; every rank must make the "
            f"same calls",
        )

    @property
    def local_sizes(self) -> tuple[int, ...]:
        """Return, for each rank, the number of ranks on its host or in its pod."""
        return self._handshake.local_sizes

    def activity(self, key: Key, what: WireSignature) -> RankActivity:
        """Return a RankActivity that names collective `key`, for messages and reports."""
        return RankActivity(self.offers.label(key, what), *key)

    def break_off(self, message: str) -> None:
        """Make all waits in this world raise PeerLost with `message`, because the agent has reported a lost member."""
        self.monitor.adopt(WorldFailure("lost", message))

    def raise_failure(self, activity: RankActivity) -> NoReturn:
        """Wait until all ranks know the world's failure, and raise it. After `leave`, raise NotInitializedError."""
        if not self.left:
            self._await_failure()
            self.failure_state.check()
        if self.left:
            raise NotInitializedError(f"ringtrain was shut down during {activity.label}")
        raise RingtrainError(f"{activity.label} failed; no cause was found in time")

    def give_up(self, activity: RankActivity, error: BaseException) -> None:
        """Fail the world, because `error` (a signal or a defect) has ended this rank's part in a collective."""
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        rank = self.ring.rank
        self.monitor.report(WorldFailure("lost", f"rank {rank} left {activity.label} because of {reason}", rank))
        self._await_failure()

    def _await_failure(self) -> None:
        """Wait until all ranks know the failure that the monitor derives from a report, or until this rank leaves."""
        self.failure_state.wait_over(self.ring.timeout_s)
        self.monitor.await_announced(2 * self.ring.probe_timeout_s)

    def leave(self) -> None:
        """Leave the world: notify the peers, let them read the remaining data, and close all connections."""
        if not self._closed.acquire(blocking=False):
            return
        self.left = True
        self.offers.close()
        self.failure_state.interrupt()
        self.monitor.stop()
        self._lateness.stop()
        self.transport.close(self.ring.probe_timeout_s)

    # Service

    def is_peer(self, rank: int, session: bytes) -> bool:
        return self._handshake.is_peer(rank, session)

    def answer(self, method: str, request: bytes, caller: TransportCaller) -> bytes:
        """Return the answer to a control request of another rank. Raises PullRefused if it is malformed or not
        allowed."""
        try:
            return self._answer(method, request, caller)
        except MalformedMessage as error:
            raise NotAPeer(WorldFailure("configuration", str(error))) from error

    def _answer(self, method: str, request: bytes, caller: TransportCaller) -> bytes:
        if method == HELLO:
            return self._handshake.answer_hello(request)
        if method == PROVE:
            return self._handshake.answer_prove(request, self.transport.data_port)
        if method == ROSTER:
            message = MembershipMessage.decode(request)
            self._handshake.check_session(message.rank, message.session)
            self._table.take(message)
            return b""
        asking = -1
        if method != ABORT or self._takes_peers_only(request):
            identity = decode_message_fields(request, rank=int, session=bytes)
            asking = int(identity["rank"])
            self._handshake.check_session(asking, identity["session"])
        if method == ABORT:
            self.monitor.heed(request)
            return b""
        if method == STATUS:
            failure = self.failure_state.failure
            status = {"reached": self.offers.reached(), "activity": self.offers.activity()}
            return encode_wire_message(
                {**status, "left": self._watches.left(), "failure": failure and failure.encode()}
            )
        if method == MEANING:
            fields = decode_message_fields(request, process_set=int, sequence=int)
            what = self.offers.meaning((fields["process_set"], fields["sequence"]))
            return b"" if what is None else what.encode()
        # A watch: the request stays open for up to a timeout; its end tells the peer that this rank has ended.
        self._handshake.watched_by(asking)
        if not decode_message_fields(request, hold=bool)["hold"]:
            if (failed := self.failure_state.failure) is not None:
                raise PullRefused(failed)
            return self._watches.farewell() if self.left else ALIVE
        caller.on_end(self.offers.watcher_gone)
        ended = self.offers.await_end(min(self.ring.timeout_s, caller.remaining_s()), caller)
        return self._watches.farewell() if ended else ALIVE

    def _takes_peers_only(self, abort: bytes) -> bool:
        """Return whether the announcement `abort` of a failure is accepted only with a session of this world.

        During the handshake any process with the token may announce why it fails. If an announcement contains a
        session, this must be a session of this world, so that a late failure of an earlier world does not end this
        world.
        """
        shown = decode_message_fields(abort, session=bytes)["session"]
        return bool(shown) or self._handshake.is_complete or self.ring.token is None

    def pull(self, request: bytes, caller: TransportCaller) -> Iterator[WireFrame]:
        """Yield the frames of one collective that the calling rank reads from this rank."""
        try:
            pull = PullRequestMessage.decode(request)
        except struct.error as error:
            raise NotAPeer(WorldFailure("configuration", f"not a request of this protocol: {error}")) from error
        self._handshake.check_session(pull.rank, pull.session)
        caller.on_end(self.offers.changed)
        try:
            offer = self.offers.offer((pull.process_set, pull.sequence), caller)
            if offer.signature.compared != pull.compared:
                key = (pull.process_set, pull.sequence)
                failure = self.mismatch(key, offer.signature, pull.rank, pull.compared)
                self.monitor.report(failure)
                raise PullRefused(failure)
            yield from offer.frames_for(pull.rank, caller)
        except CallerGone:
            return  # the monitor finds the cause by its watch
        self.offers.record_pulled(offer, pull.rank)

    def _ask_meaning(self, peer: int, key: Key) -> WireSignature | None:
        """Return the full signature of a peer's collective `key`; None if the peer does not answer or has ended it."""
        request = encode_wire_message({**self._identity(peer), "process_set": key[0], "sequence": key[1]})
        timeout_s = self.ring.probe_timeout_s
        try:
            answer = self.transport.ask(peer, MEANING, request, timeout_s).result(2 * timeout_s)
        except (StreamBroken, PullRefused, TimeoutError):
            return None
        return decode_signature(answer) if answer else None

    def _is_over(self, peer: int) -> bool:
        """Return whether this world has ended for rank `peer`, which may then join another one."""
        ended = self.left or self.failure_state.failure is not None or self._watches.has_left(peer)
        return ended or not self.monitor.answers(peer)

    def _peer_left(self, peer: int) -> None:
        """Report the shutdown of `peer` for each collective in which it has not read all frames."""
        self._handshake.left(peer)
        for key, what in self.offers.peer_left(peer):
            self.monitor.report(PeerClosed(peer, "", self.activity(key, what)))

    def _identity(self, peer: int) -> dict[str, object]:
        return {"rank": self.ring.rank, "session": self._handshake.sessions.get(peer, b"").hex()}
