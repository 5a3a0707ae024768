"""Proofs by HMAC that both sides of a connection know the job's token, and tokens in HTTP headers.

Ranks, a data service's directory and MPI daemons prove that over nonces, because their messages can be intercepted;
control messages carry it in their metadata (`rpc.py`), within TLS or on loopback.
"""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

CLIENT: Final = b"client"
SERVER: Final = b"server"


def proof(token: bytes | None, role: bytes, *parts: bytes) -> str:
    """Return an HMAC-SHA256 with the job's token over `role` and `parts`, as text; empty without a token."""
    return "" if token is None else digest(token, (role, *parts), 4).hex()


@dataclass(frozen=True)
class MpiDaemonClaim:
    """Contents of a request to start an MPI daemon that the request's proof covers: job, attempt and command."""

    job_uid: str
    attempt: int
    command: str


def prove(token: str, nonce: bytes, claim: MpiDaemonClaim) -> bytes:
    """Return an HMAC-SHA256 with the job's token over an agent's nonce and `claim`; empty without a token."""
    parts = (nonce, claim.job_uid.encode(), str(claim.attempt).encode(), claim.command.encode())
    return digest(token.encode(), parts, 8) if token else b""


def digest(token: bytes, parts: Iterable[bytes], length_bytes: int) -> bytes:
    """Return an HMAC-SHA256 over `parts` and their lengths, so that no other list of parts has the same result.

    `length_bytes`: number of bytes that encode each length.
    """
    message = b"".join(len(part).to_bytes(length_bytes, "big") + part for part in parts)
    return hmac.digest(token, message, "sha256")


def bearer(authorization: str) -> str:
    """Return the token in the value of an HTTP header `Authorization: Bearer ...`; empty if there is none."""
    scheme, _, shown = authorization.partition(" ")
    return shown.strip() if scheme.lower() == "bearer" else ""


def is_one_of(shown: str, tokens: Sequence[str]) -> bool:
    """Return whether the token `shown` is one of `tokens`. The time for this does not depend on their content."""
    matches = [is_same_proof(shown, token) for token in tokens]  # compares all, for a constant time
    return any(matches)


def is_same_proof(one: str | bytes, other: str | bytes) -> bool:
    """Return whether two proofs are equal. The time for this does not depend on where they differ."""
    return hmac.compare_digest(
        one.encode() if isinstance(one, str) else one, other.encode() if isinstance(other, str) else other
    )
