"""Times as Kubernetes writes them, in whole seconds; how long a pod that is lost again and again pauses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

# A loss that is so long ago says nothing about the next one.
REMEMBERED_S = 3600
LONGEST_PAUSE_S = 300


def after_pause(last: datetime, losses: int) -> datetime | None:
    """When the next pod of a name may be made that was lost so often within an hour, and `last` then.

    None: at once. One loss is bad luck; from the second on pauses double.
    """
    return None if losses < 2 else last + timedelta(seconds=min(2 ** min(losses - 2, 30), LONGEST_PAUSE_S))


def parse_time(value: object) -> datetime | None:
    """A Kubernetes timestamp (RFC 3339) as an aware datetime; None for nothing."""
    if value is None or value == "":
        return None
    parsed = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def format_time(moment: datetime) -> str:
    """`moment` as Kubernetes writes times: RFC 3339, UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[
    datetime,
    BeforeValidator(lambda v: datetime.fromisoformat(v.replace("Z", "+00:00")) if isinstance(v, str) else v),
    PlainSerializer(format_time, return_type=str),
]
