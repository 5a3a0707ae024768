"""Proof that a request to start a daemon was made for this call, by someone who knows the job's token."""

import hmac
import secrets
from dataclasses import dataclass

NONCE_BYTES = 32


@dataclass(frozen=True)
class Claim:
    """What the proof covers besides the nonce: the attempt that asks, and what it wants to run."""

    job_uid: str
    attempt: int
    command: str


def make_nonce() -> bytes:
    """A challenge that was never given before."""
    return secrets.token_bytes(NONCE_BYTES)


def prove(token: str, nonce: bytes, claim: Claim) -> bytes:
    """HMAC-SHA256 with the job's token over nonce and claim; empty without a token.

    Each part is preceded by its length, so that no two lists of parts give the same bytes.
    """
    if not token:
        return b""
    parts = (nonce, claim.job_uid.encode(), str(claim.attempt).encode(), claim.command.encode())
    message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.digest(token.encode(), message, "sha256")


def proves(proof: bytes, token: str, nonce: bytes, claim: Claim) -> bool:
    """Whether `proof` was made with `token` for this very `nonce` and `claim`."""
    return hmac.compare_digest(proof, prove(token, nonce, claim))
