"""Proof that a request to start a daemon was made for this call, by someone who knows the job's token."""

from dataclasses import dataclass

from ringtrain.shared.authentication import digest


@dataclass(frozen=True)
class Claim:
    """What the proof covers besides the nonce: the attempt that asks, and what it wants to run."""

    job_uid: str
    attempt: int
    command: str


def prove(token: str, nonce: bytes, claim: Claim) -> bytes:
    """HMAC-SHA256 with the job's token over nonce and claim; empty without a token."""
    parts = (nonce, claim.job_uid.encode(), str(claim.attempt).encode(), claim.command.encode())
    return digest(token.encode(), parts, 8) if token else b""
