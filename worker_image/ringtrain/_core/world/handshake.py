"""Handshake of two ranks: each checks the other's identity and token, and issues a session to it.

Each rank requests a session from each of its partners (Hello, then Prove), which its later requests must carry. So
every pair is checked from both sides, and both sides get the reason of a failure. In a small world all others are
partners; in a large one a rank's sessions with the other ranks are derived from data that partners forward (see
`membership_table`).

Anyone can reach the port. So a rank fails only because of an answer from a configured address, never because of a
caller's claims, and it stores nothing of a Hello. A caller is authenticated as rank r by the token; in a world without
a token, by being the process that answers at r's address.
"""

import contextlib
import hmac
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final

from ringtrain._core.transport.base import StreamBroken, StreamEnd, Transport
from ringtrain._core.wire.failure import NotAPeer, PullRefused, WorldFailure
from ringtrain._core.wire.messages import (
    HELLO,
    PROTOCOL_VERSION,
    PROVE,
    SESSION_BYTES,
    HelloMessage,
    MalformedMessage,
    PullRequestMessage,
    decode_message,
    decode_message_fields,
    encode_wire_message,
)
from ringtrain._core.world import neighbours
from ringtrain._core.world.failure_state import WorldFailureState
from ringtrain._core.world.hello import (
    absent_peer,
    handshake_session_between,
    hello_disagreement,
    hello_refusal,
    rank_twice_message,
    read_hello_answer,
    token_message,
)
from ringtrain._core.world.membership_table import MembershipEntry
from ringtrain._core.world.ring_config import RingConfig
from ringtrain._core.world.spread import await_peer_answers
from ringtrain.errors import some_of
from ringtrain.shared import authentication

_ASK_AGAIN_S: Final = 0.1
_LOOKED_FOR_AT_ONCE: Final = 32
# Partners of a missing rank name it when the timeout is over. In a large world all others receive that from them, and
# wait longer for it by this fraction of the timeout.
PATIENCE: Final = 4


class WorldHandshake:
    """State of one rank's handshakes: sessions that it has issued to peers and received from them."""

    def __init__(self, ring: RingConfig, failure_state: WorldFailureState, is_over: Callable[[int], bool]) -> None:
        self._ring = ring
        self._partners = neighbours.partner_ranks(ring.rank, ring.size)
        self._failure_state = failure_state
        self._is_over = is_over  # returns whether this rank's world has ended for that peer
        self._instance = secrets.token_hex(8) + f"-{os.getpid()}"
        self._secret = secrets.token_bytes(32)  # nonces and sessions are derived from it, so none are stored
        self._share = secrets.token_bytes(16)
        self._changed = threading.Condition()
        self._hello_ranks: set[int] = set()  # ranks in whose name a Hello arrived, authenticated or not
        self._issued: dict[tuple[int, str], bytes] = {}  # sessions by peer and process; each request carries one
        self._admitted: dict[int, str] = {}  # the authenticated process of each peer, which got a session
        self.sessions: dict[int, bytes] = {}  # sessions received from peers
        self._responders: dict[int, str] = {}  # process that answers at each peer's address
        self._watched_by: set[int] = set()  # peers that have joined with this rank and watch it, or have left
        self.ports: dict[int, int] = {}  # data ports that are dialled on demand
        self._key: bytes | None = None  # key of the sessions between ranks that are not partners
        self.is_complete = False  # whether every pair of this rank is complete; later callers need a session
        self.local_sizes: tuple[int, ...] = (ring.local_size,)  # by rank, after the handshake
        failure_state.on_reached(self._wake)

    # Replies of this rank

    def answer_hello(self, request: bytes) -> bytes:
        """Return the reply to a Hello message: this rank's identity, and a proof that it knows the token. Raises
        PullRefused for an unsuitable peer, StreamBroken if the peer may repeat the request."""
        theirs = HelloMessage.parse(decode_message(request))
        with self._changed:
            if theirs.rank in self._ring.peers:
                self._hello_ranks.add(theirs.rank)
                self._changed.notify_all()
        self._admit(theirs)
        mine = self._mine(self._nonce_for(theirs))
        proof = authentication.proof(
            self._ring.token, authentication.SERVER, encode_wire_message(theirs), encode_wire_message(mine)
        )
        return encode_wire_message({"hello": mine.__dict__, "proof": proof})

    def answer_prove(self, request: bytes, data_port: int | None) -> bytes:
        """Check a peer's proof of the token. Return a session for the peer, and this rank's data port.

        Raises PullRefused, StreamBroken.
        """
        message = decode_message_fields(request, hello=dict, proof=str)
        theirs = HelloMessage.parse(message["hello"])
        self._admit(theirs)
        if theirs.rank not in self._partners:
            raise NotAPeer(WorldFailure("stranger", f"rank {theirs.rank} is not a partner of rank {self._ring.rank}"))
        nonce = self._nonce_for(theirs).encode()
        expected = authentication.proof(self._ring.token, authentication.CLIENT, encode_wire_message(theirs), nonce)
        if not authentication.is_same_proof(expected, message["proof"]):
            raise hello_refusal(token_message(self._ring.rank, theirs.rank))
        if self._ring.token is None:
            self._await_answering(theirs)
        with self._changed:
            self._admitted.setdefault(theirs.rank, theirs.instance)
            self._changed.notify_all()
        self._admit(theirs)
        session = self._session_for(theirs.rank, theirs.instance)
        return encode_wire_message({"session": session.hex(), "data_port": data_port})

    def is_peer(self, rank: int, session: bytes) -> bool:
        """Return whether `session` was issued to the peer `rank`."""
        instance = self._admitted.get(rank)
        if instance is not None and authentication.is_same_proof(self._session_for(rank, instance), session):
            return True
        key = self._key
        return key is not None and authentication.is_same_proof(
            handshake_session_between(key, rank, self._ring.rank), session
        )

    def check_session(self, rank: int, session: bytes) -> None:
        """Raise NotAPeer unless `session` was issued to the peer `rank`."""
        if not self.is_peer(rank, session):
            raise NotAPeer(WorldFailure("stranger", f"a request in the name of rank {rank} has no valid session"))

    def watched_by(self, rank: int) -> None:
        """Record that peer `rank` watches this rank, which means that it has completed the handshake."""
        if rank not in self._watched_by:
            with self._changed:
                self._watched_by.add(rank)
                self._changed.notify_all()

    def left(self, rank: int) -> None:
        """Record that peer `rank` has shut down normally, so that the handshake does not wait for it."""
        if rank in self._admitted:
            self.watched_by(rank)

    # Requests of this rank

    def run_with_partners(self, transport: Transport, on_responder: Callable[[int], None], end: float) -> None:
        """Run the handshake with every partner, and call `on_responder(peer)` for each that has completed it.

        On return each partner has completed its side as well, and watches this rank or has left. So this rank may leave
        a mesh at once, and begin its next world while others are still in the handshake of this one. If a partner does
        not complete the handshake by `end`, the world fails, and its failure is raised.
        """
        hellos = {peer: self._mine(secrets.token_hex(16)) for peer in self._partners}
        answers = {peer: self._ask_hello(transport, peer, hello, end) for peer, hello in hellos.items()}
        # All Hellos come before any Prove: a peer accepts a proof after its own Hello, and ranks that
        # wait for that in a circle, each with a Hello to repeat, would wait for ever.
        theirs = {peer: self._greet(transport, peer, hellos[peer], answers[peer], end) for peer in hellos}
        for peer, hello in hellos.items():
            self._prove_to(transport, peer, hello, theirs[peer], end)
            on_responder(peer)
        if neighbours.is_mesh(self._ring.size):
            sizes = {peer: hello.local_size for peer, hello in theirs.items()} | {
                self._ring.rank: self._ring.local_size
            }
            self.local_sizes = tuple(sizes[rank] for rank in sorted(sizes))
        self._await_all(transport, end)

    def entry(self, data_port: int | None) -> MembershipEntry:
        """Return this rank's entry in the membership table of a large world."""
        return MembershipEntry(self._share, data_port or 0, self._ring.local_size)

    def know_all(self, transport: Transport, entries: Sequence[MembershipEntry]) -> None:
        """Compute the sessions with all ranks from their membership entries, which only members of this world know."""
        encoded = b"".join(entry.encode() for entry in entries)
        self._key = key = hmac.digest(self._ring.token or b"", b"world" + encoded, "sha256")
        self.local_sizes = tuple(entry.local_size for entry in entries)
        for peer in self._ring.peers:
            if entries[peer].data_port:
                self.ports[peer] = entries[peer].data_port
            if peer not in self.sessions:
                self.sessions[peer] = handshake_session_between(key, self._ring.rank, peer)
                transport.use_session(peer, self.sessions[peer])

    def use_data_ports(self, transport: Transport, peers: Iterable[int]) -> None:
        """Start to open missing connections for tensor data to `peers`, in parallel. Returns at once."""
        rank, size = self._ring.rank, self._ring.size
        with self._changed:
            for peer in sorted(peers, key=lambda peer: (peer - rank) % size):
                if (port := self.ports.pop(peer, 0)) != 0:
                    self._use_data_port(transport, peer, port)

    def absence(self, transport: Transport, peers: Sequence[int]) -> WorldFailure | None:
        """Return the failure for the first of `peers` that does not answer at its address; None if all answer."""
        for at in range(0, len(peers), _LOOKED_FOR_AT_ONCE):
            some = peers[at : at + _LOOKED_FOR_AT_ONCE]
            hello = encode_wire_message(self._mine(secrets.token_hex(16)))
            answers = [transport.ask(peer, HELLO, hello, self._ring.probe_timeout_s) for peer in some]
            await_peer_answers(answers, self._ring.probe_timeout_s)
            for peer, answer in zip(some, answers, strict=True):
                if not answer.done() or isinstance(answer.exception(), StreamBroken):
                    return absent_peer(self._ring, peer)
        return None

    def _greet(
        self, transport: Transport, peer: int, mine: HelloMessage, answer: "Future[bytes]", end: float
    ) -> HelloMessage:
        """Return the peer's identity from its reply to Hello; repeat Hello while the peer is leaving another world."""
        while True:
            with self._or_again(peer, end):
                return self._examine(peer, mine, self._answer(peer, answer, end))
            answer = self._ask_hello(transport, peer, mine, end)

    def _prove_to(self, transport: Transport, peer: int, mine: HelloMessage, theirs: HelloMessage, end: float) -> None:
        """Get a session from `peer` by a proof of the token; start again with Hello if the peer does not answer
        yet."""
        while True:
            proof = authentication.proof(
                self._ring.token, authentication.CLIENT, encode_wire_message(mine), theirs.nonce.encode()
            )
            request = encode_wire_message({"hello": mine.__dict__, "proof": proof})
            left = max(end - time.monotonic(), self._ring.probe_timeout_s)
            with self._or_again(peer, end):
                self._take(transport, peer, self._answer(peer, transport.ask(peer, PROVE, request, left), end))
                return
            theirs = self._greet(transport, peer, mine, self._ask_hello(transport, peer, mine, end), end)

    @contextlib.contextmanager
    def _or_again(self, peer: int, end: float) -> Iterator[None]:
        """Return a context for a request. If the peer can't answer yet, wait a moment, so that the caller repeats the
        request.

        After `end`, or if the peer can't be reached or sends an invalid reply, fail the world.
        """
        try:
            yield
        except StreamBroken as broken:
            left = end - time.monotonic()
            if broken.how is not StreamEnd.CLOSED or left <= 0:
                self._fail(absent_peer(self._ring, peer))
            self._failure_state.wait(min(left, _ASK_AGAIN_S))
        except MalformedMessage as malformed:
            name = self._ring.name(peer)
            self._fail(WorldFailure("configuration", f"another program answers at the address of {name}: {malformed}"))

    def _take(self, transport: Transport, peer: int, reply: bytes) -> None:
        """Store the session and the data port that `peer` has sent."""
        self.sessions[peer] = decode_message_fields(reply, session=bytes)["session"]
        transport.use_session(peer, self.sessions[peer])
        data_port = decode_message(reply).get("data_port")
        if isinstance(data_port, int) and neighbours.is_mesh(self._ring.size):
            self._use_data_port(transport, peer, data_port)

    def _use_data_port(self, transport: Transport, peer: int, port: int) -> None:
        # No collective has the number 0: the reply is that it has ended.
        request = PullRequestMessage(self.sessions[peer], self._ring.rank, 0, 0, b"").encode()
        transport.use_data_port(peer, port, request)

    def _ask_hello(self, transport: Transport, peer: int, mine: HelloMessage, end: float) -> "Future[bytes]":
        answer = transport.ask(peer, HELLO, encode_wire_message(mine), end - time.monotonic(), patient=True)
        answer.add_done_callback(lambda done: self._note_answer(peer, mine, done))
        return answer

    def _note_answer(self, peer: int, mine: HelloMessage, answer: "Future[bytes]") -> None:
        """Record which process answered Hello at the address of `peer`, as soon as the reply arrives."""
        if answer.exception() is not None:
            return
        try:
            theirs, is_proven = read_hello_answer(self._ring.token, mine, answer.result())
        except MalformedMessage:
            return  # the thread that waits for the answer reports it
        if is_proven and theirs.rank == peer:
            with self._changed:
                self._responders[peer] = theirs.instance
                self._changed.notify_all()

    def _mine(self, nonce: str) -> HelloMessage:
        p = self._ring
        return HelloMessage(
            version=PROTOCOL_VERSION, rank=p.rank, size=p.size, generation=p.generation,
            address=p.addresses[p.rank], instance=self._instance, nonce=nonce, local_size=p.local_size,
            transport=p.transport,
        )  # fmt: skip

    def _nonce_for(self, theirs: HelloMessage) -> str:
        return hmac.digest(self._secret, b"nonce" + encode_wire_message(theirs), "sha256").hex()

    def _session_for(self, rank: int, instance: str) -> bytes:
        session = self._issued.get((rank, instance))
        if session is None:
            label = f"session {rank} {instance}".encode()
            session = self._issued[rank, instance] = hmac.digest(self._secret, label, "sha256")[:SESSION_BYTES]
        return session

    def _examine(self, peer: int, mine: HelloMessage, reply: bytes) -> HelloMessage:
        """Return the identity in the reply to Hello. Fails the world if the token or the rank is wrong."""
        theirs, is_proven = read_hello_answer(self._ring.token, mine, reply)
        if not is_proven:
            self._fail_after_request(peer, WorldFailure("configuration", token_message(self._ring.rank, peer)))
        if theirs.rank != peer:
            wrong = f"{self._ring.addresses[peer]} is configured for rank {peer}, but rank {theirs.rank} answers there"
            self._fail(WorldFailure("configuration", wrong))
        return theirs

    def _answer(self, peer: int, answer: "Future[bytes]", end: float) -> bytes:
        """Wait for the peer's reply, and return it. Raises StreamBroken, or the world's failure."""
        done = threading.Event()
        answer.add_done_callback(lambda _: done.set())
        self._failure_state.on_reached(done.set)
        in_time = done.wait(max(end - time.monotonic(), 0) + self._ring.probe_timeout_s)
        self._failure_state.forget(done.set)
        self._failure_state.check()
        if not in_time:
            raise StreamBroken(StreamEnd.TIMEOUT, "no answer")
        try:
            return answer.result()
        except PullRefused as refused:
            self._fail_after_request(peer, refused.failure)
            raise

    def _await_all(self, transport: Transport, end: float) -> None:
        def two_of_one() -> list[int]:
            return [peer for peer, instance in self._admitted.items() if instance != self._responders.get(peer)]

        def is_decided() -> bool:
            all_here = self._watched_by.issuperset(self._partners)
            return self._failure_state.failure is not None or all_here or bool(two_of_one())

        is_mesh = neighbours.is_mesh(self._ring.size)
        if not is_mesh:
            end += self._ring.timeout_s / PATIENCE
        with self._changed:
            self._changed.wait_for(is_decided, max(end - time.monotonic(), self._ring.probe_timeout_s))
            missing = [peer for peer in self._partners if peer not in self._watched_by]
            two = two_of_one()
            self.is_complete = not missing and not two
        self._failure_state.check()
        if two:
            self._fail(WorldFailure("configuration", rank_twice_message(two[0])))
        if missing and not is_mesh and (absence := self.absence(transport, self._ring.peers)) is not None:
            self._fail(absence)  # a partner waits for a rank that is not a partner of this one
        if missing:
            names = some_of([self._ring.name(peer) for peer in missing])
            one_way = f"{names} can be reached from rank {self._ring.rank}, but does not reach it"
            self._fail(WorldFailure("lost", one_way, missing[0]))

    def _admit(self, theirs: HelloMessage) -> None:
        """Refuse a caller that does not belong to this world. Raises StreamBroken if the caller may repeat the
        request."""
        if (message := hello_disagreement(self._ring, theirs)) is not None:
            raise hello_refusal(message)
        known = {self._responders.get(theirs.rank), self._admitted.get(theirs.rank)} - {None}
        failure = self._failure_state.failure
        if failure is not None and not self.is_complete and theirs.instance in known:
            raise PullRefused(failure)  # a peer of this world, which has failed
        if not known or theirs.instance in known:
            return
        # During the handshake it is undecided which one is right, and a rank may already be in its next world.
        if not self.is_complete or self._is_over(theirs.rank):
            raise StreamBroken(StreamEnd.CLOSED, f"rank {self._ring.rank} is still leaving an earlier world")
        raise hello_refusal(rank_twice_message(theirs.rank))

    def _await_answering(self, theirs: HelloMessage) -> None:
        """Wait until it is known which process answers at the caller's address. Refuse the caller if it is another
        process."""

        def is_known() -> bool:
            return theirs.rank in self._responders or self._failure_state.failure is not None

        with self._changed:
            if not self._changed.wait_for(is_known, self._ring.settle_s) or theirs.rank not in self._responders:
                raise StreamBroken(StreamEnd.CLOSED, f"rank {self._ring.rank} has not reached rank {theirs.rank} yet")
        self._admit(theirs)

    def _fail_after_request(self, peer: int, failure: WorldFailure) -> None:
        """Fail the world, but first wait for a request of `peer`, so that the reply gives `peer` the reason."""

        def is_told() -> bool:
            return self._failure_state.failure is not None or peer in self._hello_ranks

        with self._changed:
            self._changed.wait_for(is_told, 3 * self._ring.settle_s)
        self._fail(failure)

    def _fail(self, failure: WorldFailure) -> None:
        self._failure_state.reach(failure)
        self._failure_state.check()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
