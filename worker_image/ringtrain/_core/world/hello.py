"""Comparison of the Hello messages of two ranks, and the reasons for which a handshake fails."""

import hmac

from ringtrain._core.wire.failure import PullRefused, WorldFailure
from ringtrain._core.wire.messages import (
    PROTOCOL_VERSION,
    SESSION_BYTES,
    HelloMessage,
    decode_message_fields,
    encode_wire_message,
)
from ringtrain._core.world.ring_config import RingConfig
from ringtrain.shared import authentication
from ringtrain.shared.address import has_no_host
from ringtrain.shared.contract import RELEASE


def hello_disagreement(mine: RingConfig, theirs: HelloMessage) -> str | None:
    """Return how the settings of two ranks differ; None if they agree. The text is the same on the two ranks."""
    me = (
        f"rank {mine.rank} ({mine.addresses[mine.rank]})",
        *(PROTOCOL_VERSION, RELEASE, mine.generation, mine.size, mine.transport),
    )
    peer = (
        f"rank {theirs.rank} ({theirs.address})",
        *(theirs.version, theirs.release, theirs.generation, theirs.size, theirs.transport),
    )
    (one, *ones), (other, *others) = sorted((me, peer))
    reasons = (
        ("speaks version", "of the ring's protocol; use one image for all ranks"),
        ("runs ringtrain", "; use one image for all ranks"),
        ("has generation", "; a process of another attempt is still running"),
        ("expects a world of", "ranks; configure the same cluster on every rank"),
        ("has RINGTRAIN_TRANSPORT", "; set the same on every rank"),
    )
    for (verb, advice), left, right in zip(reasons, ones, others, strict=True):
        if left != right:
            return f"{one} {verb} {left}, {other} {verb} {right} {advice}".replace(" ;", ";")
    if theirs.rank == mine.rank or not 0 <= theirs.rank < mine.size:
        return rank_twice_message(theirs.rank)
    return None


def handshake_session_between(key: bytes, rank: int, peer: int) -> bytes:
    """Return the session by which `rank` authenticates to `peer`."""
    return hmac.digest(key, f"session {rank} {peer}".encode(), "sha256")[:SESSION_BYTES]


def hello_refusal(message: str) -> PullRefused:
    return PullRefused(WorldFailure("configuration", message))


def rank_twice_message(rank: int) -> str:
    return f"two processes claim to be rank {rank}; start each rank once, and use the same addresses everywhere"


def token_message(rank: int, other: int) -> str:
    low, high = sorted((rank, other))
    return f"ranks {low} and {high} do not have the same token; check RINGTRAIN_TOKEN_FILE on both"


def absent_peer(ring: RingConfig, peer: int) -> WorldFailure:
    """Return the failure of a world whose rank `peer` did not join in time."""
    advice = "is it started, and is its address right?"
    if has_no_host(ring.addresses[peer], ring.probe_timeout_s):
        advice = "its host's name can't be resolved here: is it correct, and does that host or pod exist?"
    text = f"{ring.name(peer)} did not join within {ring.timeout_s:g} s (waited for by rank {ring.rank}); {advice}"
    return WorldFailure("lost", text, peer)


def read_hello_answer(token: bytes | None, mine: HelloMessage, reply: bytes) -> tuple[HelloMessage, bool]:
    """Return the identity in the reply to Hello, and whether its proof of the token is valid."""
    message = decode_message_fields(reply, hello=dict, proof=str)
    theirs = HelloMessage.parse(message["hello"])
    expected = authentication.proof(
        token, authentication.SERVER, encode_wire_message(mine), encode_wire_message(theirs)
    )
    return theirs, authentication.is_same_proof(expected, message["proof"])
