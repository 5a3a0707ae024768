"""Access to a cluster: the API server's client, the user's namespace, and a callback for messages to the user."""

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
    """Connection to a cluster: the API server's client and a namespace. `tell`: prints a message to the user."""

    api: ApiClient
    namespace: str
    tell: Callable[[str], object] = _log.warning
