"""From an autoscaler's ProvisioningRequest to `RequestView`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..build.names import ObjectRef
from ..spec.times import parse_time
from .model import RequestView

# With any of these the request is of no use any more; nothing of it changes back.
_OVER = ("Failed", "CapacityRevoked", "BookingExpired")


def view_request(request: Mapping[str, Any], api_version: str) -> RequestView:
    """What `plan` needs of a ProvisioningRequest of ours, read in `api_version`."""
    meta, status = request["metadata"], request.get("status") or {}
    said = {str(c.get("type")): c for c in status.get("conditions") or ()}
    over = next((said[kind] for kind in _OVER if _holds(said.get(kind))), None)
    created = parse_time(meta.get("creationTimestamp")) or datetime.fromtimestamp(0, UTC)
    last = over or said.get("Provisioned") or said.get("Accepted") or {}
    return RequestView(
        ref=ObjectRef("ProvisioningRequest", str(meta["name"]), api_version),
        uid=str(meta.get("uid") or ""),
        created=created,
        counts=tuple(int(one.get("count") or 0) for one in request["spec"].get("podSets") or ()),
        provisioned=over is None and _holds(said.get("Provisioned")),
        over_since=(parse_time(over.get("lastTransitionTime")) or created) if over is not None else None,
        words=_words(last),
        ending="deletionTimestamp" in meta,
    )


def _holds(condition: Mapping[str, Any] | None) -> bool:
    return condition is not None and condition.get("status") == "True"


def _words(condition: Mapping[str, Any]) -> str:
    """What an autoscaler says: `Failed: CapacityIsNotFound: 2 nodes are missing`."""
    parts = (condition.get("type"), condition.get("reason"), condition.get("message"))
    return ": ".join(str(part) for part in parts if part)
