"""Creation of pods under the Pod Security of their namespace. Only the API server knows which fields are required."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ..build import SECURITY_FIELDS, secured_pod
from .api.errors import Forbidden, Unprocessable

Stored = TypeVar("Stored")
Pod = Mapping[str, Any]


async def create_admitted(
    create: Callable[[Pod], Awaitable[Stored]], pod: Pod, secured: frozenset[str] = frozenset()
) -> tuple[Stored, frozenset[str]]:
    """Create the pod with the security fields `secured`, and add those of SECURITY_FIELDS that refusals name.

    A refusal may come from Pod Security or from another policy engine. Returns the answer of `create` and the fields.
    Raises the ApiError of the last refusal.
    """
    while True:
        try:
            return await create(secured_pod(pod, secured)), secured
        except (Forbidden, Unprocessable) as refused:
            named = secured | {field for field in SECURITY_FIELDS if field in refused.message}
            if secured_pod(pod, named) == secured_pod(pod, secured):
                raise
        secured = named
