"""Proof that both sides of a connection know the job's token."""

import hmac
from collections.abc import Iterable
from typing import Final

CLIENT: Final = b"client"
SERVER: Final = b"server"


def proof(token: bytes | None, role: bytes, *parts: bytes) -> str:
    """HMAC-SHA256 over the role and what both sides said; empty without a token."""
    return "" if token is None else digest(token, (role, *parts), 4).hex()


def digest(token: bytes, parts: Iterable[bytes], length_bytes: int) -> bytes:
    """HMAC-SHA256 over `parts`, each behind its length, so that no two lists of parts give the same bytes."""
    message = b"".join(len(part).to_bytes(length_bytes, "big") + part for part in parts)
    return hmac.digest(token, message, "sha256")


def same(one: str | bytes, other: str | bytes) -> bool:
    """Compare without telling by the time it takes where they differ."""
    return hmac.compare_digest(
        one.encode() if isinstance(one, str) else one, other.encode() if isinstance(other, str) else other
    )
