"""JSON from pods, made such that the API stores it unchanged: else a status is never what was written."""

from __future__ import annotations

import math
import re
from typing import Any

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def storable(value: Any) -> Any:
    """`value` (JSON) with U+FFFD for lone surrogates, and None for NaN, infinities and what is beyond a float."""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {storable(key): storable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [storable(inner) for inner in value]
    return value if not isinstance(value, int | float) or is_finite(value) else None


def is_finite(value: float) -> bool:
    """Whether `value` is a finite float, or an int that becomes one."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
