"""How two ranks meet: who are you, do you know the token, here is your session.

Each rank asks each other one (Hello, then Prove) and gets a session from it, which its requests must carry. So
every pair is checked from both sides, and both sides know what is wrong.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from ringtrain.transport.base import Broken, How, Transport
from ringtrain.wire.failure import Failure, Refused, Stranger
from ringtrain.wire.messages import HELLO, PROTOCOL_VERSION, PROVE, SESSION_BYTES, Hello, PullRequest, dump, load
from ringtrain.world import trust
from ringtrain.world.place import Place
from ringtrain.world.verdict import Verdict

_ASK_AGAIN_S: Final = 0.1


class Handshake:
    """Sessions of one rank: those it gave to peers, and those that peers gave to it."""

    def __init__(self, place: Place, verdict: Verdict, is_over: Callable[[int], bool]) -> None:
        self._place = place
        self._verdict = verdict
        self._is_over = is_over  # whether this rank's world has ended for that peer
        self._instance = secrets.token_hex(8) + f"-{os.getpid()}"
        self._changed = threading.Condition()
        self._heard: dict[int, tuple[Hello, str]] = {}  # what peers said, and the nonce they got
        self._given: dict[int, bytes] = {}
        self._held: dict[int, bytes] = {}
        self._met: dict[int, str] = {}  # the process that answers at each peer's address
        self._all_met = False
        verdict.on_reached(self._wake)

    # What this rank answers

    def answer_hello(self, request: bytes) -> bytes:
        theirs = _hello(request)
        self._refuse_if(disagreement(self._place, theirs))
        mine = self._mine()
        with self._changed:
            heard, _ = self._heard.setdefault(theirs.rank, (theirs, ""))
            known = {heard.instance, self._met.get(theirs.rank, heard.instance)}
            if known == {theirs.instance}:
                self._heard[theirs.rank] = (theirs, mine.nonce)
        if known != {theirs.instance}:
            if self._all_met and self._is_over(theirs.rank):
                raise Broken(How.CLOSED, f"rank {self._place.rank} is still leaving an earlier world")
            self._refuse_if(_twice(theirs.rank))
        proof = trust.proof(self._place.token, trust.SERVER, dump(theirs), dump(mine))
        return dump({"hello": mine.__dict__, "proof": proof})

    def answer_prove(self, request: bytes, data_port: int | None) -> bytes:
        """Give the peer its session, and tell it where this rank's data port is."""
        message = load(request)
        rank = int(message["rank"])
        theirs, nonce = self._heard.get(rank, (None, ""))
        if theirs is None or message["instance"] != theirs.instance:
            raise Refused(Failure("configuration", f"rank {rank} has not said hello"))
        expected = trust.proof(self._place.token, trust.CLIENT, dump(theirs), nonce.encode())
        if not trust.same(expected, str(message["proof"])):
            self._refuse_if(_token_message(self._place.rank, rank))
        session = secrets.token_bytes(SESSION_BYTES)
        with self._changed:
            self._given[rank] = session
            self._changed.notify_all()
        return dump({"session": session.hex(), "data_port": data_port})

    def check_session(self, rank: int, session: bytes) -> None:
        given = self._given.get(rank, b"")
        if not trust.same(given, session):
            raise Stranger(Failure("configuration", f"no session for a request in the name of rank {rank}"))

    # What this rank asks

    @property
    def all_met(self) -> bool:
        """Whether every pair of this rank is complete: nobody else has a say from then on."""
        return self._all_met

    def session(self, peer: int) -> bytes:
        """What `peer` gave this rank to be known by; empty before they have met."""
        return self._held.get(peer, b"")

    def meet_all(self, transport: Transport, met: Callable[[int], None]) -> None:
        """Meet every peer; call `met` for each. On return each has met this rank as well.

        Reaches a verdict and raises otherwise.
        """
        end = time.monotonic() + self._place.timeout_s
        hellos = {peer: self._mine() for peer in self._place.peers}
        answers = {peer: self._ask_hello(transport, peer, hello, end) for peer, hello in hellos.items()}
        for peer, answer in answers.items():
            self._meet(transport, peer, hellos[peer], answer, end)
            met(peer)
        self._await_all(end)

    def _meet(self, transport: Transport, peer: int, mine: Hello, answer: "Future[bytes]", end: float) -> None:
        """Hello and Prove; again from the start if the peer is still leaving an earlier world at its address."""
        while True:
            try:
                reply = load(self._answer(answer, end))
                request = dump(
                    {"rank": mine.rank, "instance": mine.instance, "proof": self._examine(peer, mine, reply)}
                )
                left = max(end - time.monotonic(), self._place.probe_timeout_s)
                self._take(transport, peer, load(self._answer(transport.ask(peer, PROVE, request, left), end)))
                break
            except Broken as broken:
                left = end - time.monotonic()
                if broken.how is not How.CLOSED or left <= 0:
                    self._fail(Failure("lost", self._absent(peer), peer))
            self._verdict.wait(min(left, _ASK_AGAIN_S))
            answer = self._ask_hello(transport, peer, mine, end)
        if self._bad_proof(mine, reply):
            self._fail(Failure("configuration", _token_message(self._place.rank, peer)))

    def _take(self, transport: Transport, peer: int, given: Any) -> None:
        """Keep what the peer's answer to Prove holds."""
        self._held[peer] = bytes.fromhex(given["session"])
        if given["data_port"] is not None:
            # No collective has the number 0: the answer is that it has ended.
            request = PullRequest(self._held[peer], self._place.rank, 0, 0, b"").encode()
            transport.use_data_port(peer, int(given["data_port"]), request)

    def _ask_hello(self, transport: Transport, peer: int, mine: Hello, end: float) -> "Future[bytes]":
        return transport.ask(peer, HELLO, dump(mine), end - time.monotonic(), patient=True)

    def _mine(self) -> Hello:
        p = self._place
        nonce = secrets.token_hex(16)
        return Hello(PROTOCOL_VERSION, p.rank, p.size, p.generation, p.addresses[p.rank], self._instance, nonce)

    def _examine(self, peer: int, mine: Hello, reply: Any) -> str:
        theirs = Hello(**reply["hello"])
        self._met[peer] = theirs.instance
        if theirs.rank != peer:
            address = self._place.addresses[peer]
            self._fail(
                Failure("configuration", f"{address} should be rank {peer}, but rank {theirs.rank} answers there")
            )
        return trust.proof(self._place.token, trust.CLIENT, dump(mine), theirs.nonce.encode())

    def _bad_proof(self, mine: Hello, reply: Any) -> bool:
        expected = trust.proof(self._place.token, trust.SERVER, dump(mine), dump(reply["hello"]))
        return not trust.same(expected, str(reply["proof"]))

    def _answer(self, answer: "Future[bytes]", end: float) -> bytes:
        """Wait for the peer's answer, or for the world's failure if that comes first. Raises Broken."""
        done = threading.Event()
        answer.add_done_callback(lambda _: done.set())
        self._verdict.on_reached(done.set)
        in_time = done.wait(max(end - time.monotonic(), 0) + self._place.probe_timeout_s)
        self._verdict.forget(done.set)
        self._verdict.check()
        if not in_time:
            raise Broken(How.TIMEOUT, "no answer")
        try:
            return answer.result()
        except Refused as refused:
            self._fail(refused.failure)
            raise

    def _absent(self, peer: int) -> str:
        return (
            f"{self._place.name(peer)} has not joined within {self._place.timeout_s:g} s "
            f"(waited for by rank {self._place.rank}); is it started, and is its address right?"
        )

    def _await_all(self, end: float) -> None:
        def all_here() -> bool:
            return self._verdict.failure is not None or len(self._given) == len(self._place.peers)

        with self._changed:
            self._changed.wait_for(all_here, max(end - time.monotonic(), self._place.probe_timeout_s))
            missing = [peer for peer in self._place.peers if peer not in self._given]
            two = [peer for peer, (heard, _) in self._heard.items() if heard.instance != self._met.get(peer)]
            self._all_met = not missing and not two
        self._verdict.check()
        if two:
            self._fail(Failure("configuration", _twice(two[0])))
        if missing:
            names = ", ".join(self._place.name(peer) for peer in missing)
            self._fail(
                Failure(
                    "lost",
                    f"{names} can be reached from rank {self._place.rank}, but does not reach it",
                    missing[0],
                )
            )

    def _refuse_if(self, message: str | None) -> None:
        """Refuse the peer, and fail this rank too if it still meets its peers: the job is set up wrongly."""
        if message is None:
            return
        failure = Failure("configuration", message)
        if not self._all_met:
            self._verdict.reach(failure)
        raise Refused(failure)

    def _fail(self, failure: Failure) -> None:
        self._verdict.reach(failure)
        self._verdict.check()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def disagreement(mine: Place, theirs: Hello) -> str | None:
    """Say what two ranks that meet see differently, alike on both sides. None if nothing."""
    me = (f"rank {mine.rank} ({mine.addresses[mine.rank]})", PROTOCOL_VERSION, mine.generation, mine.size)
    peer = (f"rank {theirs.rank} ({theirs.address})", theirs.version, theirs.generation, theirs.size)
    (one, *ones), (other, *others) = sorted((me, peer))
    reasons = (
        ("speaks version", "of the ring's protocol; use one image for all ranks"),
        ("is of generation", "; a process of another attempt is still running"),
        ("counts a world of", "ranks; give every rank the same cluster"),
    )
    for (verb, advice), left, right in zip(reasons, ones, others, strict=True):
        if left != right:
            return f"{one} {verb} {left}, {other} {verb} {right} {advice}".replace(" ;", ";")
    if theirs.rank == mine.rank or not 0 <= theirs.rank < mine.size:
        return _twice(theirs.rank)
    return None


def _hello(request: bytes) -> Hello:
    try:
        return Hello(**load(request))
    except (ValueError, TypeError) as error:
        raise Refused(Failure("configuration", f"not a hello of this protocol: {error}")) from error


def _twice(rank: int) -> str:
    return f"two processes say that they are rank {rank}; start each rank once, and give all the same addresses"


def _token_message(rank: int, other: int) -> str:
    low, high = sorted((rank, other))
    return f"ranks {low} and {high} do not have the same token; check RINGTRAIN_TOKEN_FILE on both"
