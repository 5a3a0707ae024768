"""A client of the API server, the namespace that the user means, and where the user is told things."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringtrain_operator.cluster.api.client import ApiClient

Json = dict[str, Any]
_log = logging.getLogger("ringtrain_sdk")


@dataclass(frozen=True)
class ClusterAccess:
    """`tell` is called with what a person should know meanwhile and is no error."""

    api: ApiClient
    namespace: str
    tell: Callable[[str], object] = _log.warning
