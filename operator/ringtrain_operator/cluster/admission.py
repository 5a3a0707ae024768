"""Pods as their namespace admits them: what an image may do there is asked of the API server alone."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ..build import SECURITY_FIELDS, secured_pod
from .api.errors import Forbidden, Unprocessable

Stored = TypeVar("Stored")
Pod = Mapping[str, Any]


async def create_admitted(
    create: Callable[[Pod], Awaitable[Stored]], pod: Pod, secured: frozenset[str] = frozenset()
) -> tuple[Stored, frozenset[str]]:
    """Create the pod with the fields `secured`, and with more of SECURITY_FIELDS where refusals (of Pod Security, or of
    another engine's policies) name them. Returns the answer and the fields. Raises ApiError, of the last refusal."""
    while True:
        try:
            return await create(secured_pod(pod, secured)), secured
        except (Forbidden, Unprocessable) as refused:
            named = secured | {field for field in SECURITY_FIELDS if field in refused.message}
            if secured_pod(pod, named) == secured_pod(pod, secured):
                raise
        secured = named
