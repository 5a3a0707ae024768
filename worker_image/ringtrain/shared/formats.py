"""Formatting of values as short text and as valid JSON."""

import math
from typing import Any


def duration(seconds: float | None) -> str:
    """Return seconds as text such as `48 s`, `12 min` or `3.4 h`; empty for None."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def clean_json(value: Any) -> Any:
    """Return `value` with None in place of NaN and infinities, which JSON does not support."""
    if isinstance(value, dict):
        return {key: clean_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
