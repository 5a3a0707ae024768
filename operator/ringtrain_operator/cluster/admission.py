"""Pods as their namespace admits them: whether an image's root may run there is asked of the API server alone."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ..build import never_as_root
from .api.errors import Forbidden, Unprocessable

Stored = TypeVar("Stored")
Pod = Mapping[str, Any]

# The field that Pod Security names, and so do policies of other engines.
_ASKED_FOR = "runAsNonRoot"


async def create_admitted(create: Callable[[Pod], Awaitable[Stored]], pod: Pod) -> tuple[Stored, bool]:
    """What `create` answers to the pod, or to one that never runs as root where nothing else is admitted; and
    whether that was so. Raises ApiError, of the stricter pod where that is refused, too."""
    try:
        return await create(pod), False
    except (Forbidden, Unprocessable) as refused:
        stricter = never_as_root(pod)
        if _ASKED_FOR not in refused.message or stricter == pod:
            raise
    return await create(stricter), True
