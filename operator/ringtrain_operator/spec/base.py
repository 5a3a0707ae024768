"""What all models of the resource share: frozen, camelCase outside, no unknown fields, rules in two languages.

Times are as Kubernetes writes them.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

# As many workers as the operator was measured with, in one job; see bench/operator/README.md.
MOST_WORKERS = 4096
MOST_SLOTS = 1024  # ranks, and devices, of one worker
MOST_RANKS = 262_144  # of one job
# Nothing in a pod is a fifth as deep; every walk over a document recurses.
MAX_DEPTH = 100
# The name of another object of the cluster.
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


_SCALARS: Final = frozenset((str, int, float, bool, type(None)))  # most values, and told apart fastest


def spec_depth_of(value: Any) -> int:
    """Levels of mappings and lists. Without recursion, which a deep value would end."""
    depth, level = 0, [value]
    while level := [one for one in level if type(one) not in _SCALARS and isinstance(one, Mapping | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, Mapping) else one)]
    return depth


def without_nulls(value: Any, opaque: Collection[str] = ()) -> Any:
    """`value` without fields that are null, as the API server prunes them; `opaque` fields stay as they are."""
    if isinstance(value, Mapping):
        return {k: v if k in opaque else without_nulls(v, opaque) for k, v in value.items() if v is not None}
    return [without_nulls(item, opaque) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Rule:
    """One rule over several fields, as CEL for the API server and as Python for everyone else.

    `path` is the field to blame, relative to the model the rule stands on. A rule with `holds_update` is about a
    change (`self` and `oldSelf` in CEL); the others are about one object. One with neither is for the API server
    alone, because the models say it elsewhere in more detail. `once_fixed`: a change that it forbids may come
    until the job's first attempt has run, see spec/updates.py.
    """

    cel: str
    message: str
    path: str
    holds: Callable[[Any], bool] | None = None
    holds_update: Callable[[Any, Any], bool] | None = None
    once_fixed: bool = False


# Extended resources by name, and how many of each.
Devices = dict[str, Annotated[int, Field(ge=1, le=MOST_SLOTS)]]
_DEVICE_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
# Of a model with the field `devices`.
DEVICES_HAVE_DOMAINS = Rule(
    cel=f"!has(self.devices) || self.devices.all(name, name.matches({_DEVICE_NAME!r}))",
    message="a device is an extended resource with a domain, for example nvidia.com/gpu",
    path="devices",
    holds=lambda section: all(re.fullmatch(_DEVICE_NAME, name) for name in section.devices),
)


@dataclass(frozen=True)
class Schema:
    """Marks an annotation whose OpenAPI schema is given here instead of being derived."""

    openapi: dict[str, Any] = field(hash=False)


class SpecModel(BaseModel):
    """Base of the models of `spec`: strict types, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True)

    RULES: ClassVar[tuple[Rule, ...]] = ()


@cache
def _attributes(model: type[BaseModel]) -> dict[str, str]:
    """The attributes of `model` by the names that users write."""
    return {info.alias or name: name for name, info in model.model_fields.items()}


def field_at(spec: BaseModel, path: str) -> Any:
    """Return the field at `path` as users write it (`logs.report`); None where it, or a section, is unset."""
    value: Any = spec
    for word in path.split("."):
        if value is not None:
            model: type[BaseModel] = type(value)
            value = getattr(value, _attributes(model)[word])
    return value


class StatusModel(BaseModel):
    """Base of the models of `status`: written by the operator, read leniently so that an old one parses."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    RULES: ClassVar[tuple[Rule, ...]] = ()


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
