"""Creation of pods in namespaces with Pod Security, of which only the API server knows the required fields."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ..build import SECURITY_FIELDS, secured_pod
from .api.errors import Forbidden, Unprocessable

Stored = TypeVar("Stored")
Pod = Mapping[str, Any]


async def create_admitted(
    create: Callable[[Pod], Awaitable[Stored]], pod: Pod, secured: frozenset[str] = frozenset()
) -> tuple[Stored, frozenset[str]]:
    """Create a pod with the security fields `secured`. If it is refused, repeat with the fields that the refusal names.

    A refusal may come from Pod Security or from another policy engine. Returns the result of `create`, and the security
    fields that the created pod has. Raises the ApiError of the last refusal.
    """
    while True:
        try:
            return await create(secured_pod(pod, secured)), secured
        except (Forbidden, Unprocessable) as refused:
            named = secured | {field for field in SECURITY_FIELDS if field in refused.message}
            if secured_pod(pod, named) == secured_pod(pod, secured):
                raise
        secured = named
