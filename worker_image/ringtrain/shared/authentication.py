"""Proof that both sides of a connection know the job's token, and the token itself where HTTP carries it.

Ranks, a data service's directory and MPI daemons prove it over nonces, as what they say can be overheard; control
messages carry it in their metadata (`rpc.py`), within TLS or on loopback.
"""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

CLIENT: Final = b"client"
SERVER: Final = b"server"


def proof(token: bytes | None, role: bytes, *parts: bytes) -> str:
    """HMAC-SHA256 over the role and what both sides said; empty without a token."""
    return "" if token is None else digest(token, (role, *parts), 4).hex()


@dataclass(frozen=True)
class MpiDaemonClaim:
    """What the proof of a request to start an MPI daemon covers besides the agent's nonce: the attempt that asks,
    and what it wants to run."""

    job_uid: str
    attempt: int
    command: str


def prove(token: str, nonce: bytes, claim: MpiDaemonClaim) -> bytes:
    """HMAC-SHA256 with the job's token over nonce and claim; empty without a token."""
    parts = (nonce, claim.job_uid.encode(), str(claim.attempt).encode(), claim.command.encode())
    return digest(token.encode(), parts, 8) if token else b""


def digest(token: bytes, parts: Iterable[bytes], length_bytes: int) -> bytes:
    """HMAC-SHA256 over `parts`, each behind its length, so that no two lists of parts give the same bytes."""
    message = b"".join(len(part).to_bytes(length_bytes, "big") + part for part in parts)
    return hmac.digest(token, message, "sha256")


def bearer(authorization: str) -> str:
    """The token in a header `Authorization: Bearer ...`; empty: none."""
    scheme, _, shown = authorization.partition(" ")
    return shown.strip() if scheme.lower() == "bearer" else ""


def is_one_of(shown: str, tokens: Sequence[str]) -> bool:
    """Whether `shown` is one of `tokens`, in a time that says nothing about them."""
    matches = [is_same_proof(shown, token) for token in tokens]  # all of them
    return any(matches)


def is_same_proof(one: str | bytes, other: str | bytes) -> bool:
    """Compare without telling by the time it takes where they differ."""
    return hmac.compare_digest(
        one.encode() if isinstance(one, str) else one, other.encode() if isinstance(other, str) else other
    )
