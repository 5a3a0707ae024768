"""Base classes and helpers of the models of `spec` and `status`.

Models are frozen, use camelCase names in YAML, refuse unknown fields, and state rules both in CEL and in Python. Times
are RFC 3339 strings, as in Kubernetes.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

# The largest job that the operator was measured with; see bench/operator/README.md.
MOST_WORKERS = 4096
MOST_SLOTS = 1024  # ranks, or devices, per worker
MOST_RANKS = 262_144  # per job
# No field of a pod is nested more than 20 levels deep; the limit protects functions that recurse over a document.
MAX_DEPTH = 100
# Name of another Kubernetes object.
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


_SCALARS: Final = frozenset((str, int, float, bool, type(None)))  # the fast path: most values are one of these


def nesting_depth(value: Any) -> int:
    """Return how many levels of mappings and lists are nested in `value`, without recursion."""
    depth, level = 0, [value]
    while level := [one for one in level if type(one) not in _SCALARS and isinstance(one, Mapping | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, Mapping) else one)]
    return depth


def without_nulls(value: Any, opaque: Collection[str] = ()) -> Any:
    """Return `value` without null fields, as the API server stores it. Fields named in `opaque` are unchanged."""
    if isinstance(value, Mapping):
        return {k: v if k in opaque else without_nulls(v, opaque) for k, v in value.items() if v is not None}
    return [without_nulls(item, opaque) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Rule:
    """A validation rule for several fields, as CEL for the API server and as Python for this package.

    `path` is the field to report, relative to the model that has the rule. `holds` checks one object. `holds_update`
    checks a change (`self` and `oldSelf` in CEL). A rule with neither is checked by the API server alone, because
    Python code reports the same problem in more detail. `once_fixed`: the rule applies only after the job's first
    attempt has run, see spec/updates.py.
    """

    cel: str
    message: str
    path: str
    holds: Callable[[Any], bool] | None = None
    holds_update: Callable[[Any, Any], bool] | None = None
    once_fixed: bool = False


# Amount of each extended resource, by resource name.
Devices = dict[str, Annotated[int, Field(ge=1, le=MOST_SLOTS)]]
_DEVICE_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
# For any model that has the field `devices`.
DEVICES_HAVE_DOMAINS = Rule(
    cel=f"!has(self.devices) || self.devices.all(name, name.matches({_DEVICE_NAME!r}))",
    message="a device is an extended resource with a domain, for example nvidia.com/gpu",
    path="devices",
    holds=lambda section: all(re.fullmatch(_DEVICE_NAME, name) for name in section.devices),
)


@dataclass(frozen=True)
class Schema:
    """Marker in a field's annotation: the field's OpenAPI schema, instead of a schema derived from its type."""

    openapi: dict[str, Any] = field(hash=False)


class SpecModel(BaseModel):
    """Base class of the models of `spec`. Types are strict, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True)

    RULES: ClassVar[tuple[Rule, ...]] = ()


@cache
def _attributes(model: type[BaseModel]) -> dict[str, str]:
    """Return the Python attribute of each field of `model`, by the field's name in YAML."""
    return {info.alias or name: name for name, info in model.model_fields.items()}


def field_at(spec: BaseModel, path: str) -> Any:
    """Return the value at a dotted path of YAML names, such as `logs.report`; None if a part of it is unset."""
    value: Any = spec
    for word in path.split("."):
        if value is not None:
            model: type[BaseModel] = type(value)
            value = getattr(value, _attributes(model)[word])
    return value


class StatusModel(BaseModel):
    """Base class of the models of `status`. Unknown fields, as in an older status, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    RULES: ClassVar[tuple[Rule, ...]] = ()


def parse_time(value: object) -> datetime | None:
    """Parse a Kubernetes timestamp (RFC 3339) into an aware datetime. Returns None for None or an empty string."""
    if value is None or value == "":
        return None
    parsed = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def format_time(moment: datetime) -> str:
    """Format `moment` as Kubernetes does: RFC 3339, UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[
    datetime,
    BeforeValidator(lambda v: datetime.fromisoformat(v.replace("Z", "+00:00")) if isinstance(v, str) else v),
    PlainSerializer(format_time, return_type=str),
]
