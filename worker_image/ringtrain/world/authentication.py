"""Proof that both sides of a connection know the job's token."""

import hmac
from typing import Final

CLIENT: Final = b"client"
SERVER: Final = b"server"


def proof(token: bytes | None, role: bytes, *parts: bytes) -> str:
    """HMAC-SHA256 over the role and what both sides said; empty without a token.

    Each part is preceded by its length, so that no two lists of parts give the same bytes.
    """
    if token is None:
        return ""
    message = b"".join(len(part).to_bytes(4, "big") + part for part in (role, *parts))
    return hmac.digest(token, message, "sha256").hex()


def same(one: str | bytes, other: str | bytes) -> bool:
    """Compare without telling by the time it takes where they differ."""
    return hmac.compare_digest(
        one.encode() if isinstance(one, str) else one, other.encode() if isinstance(other, str) else other
    )
