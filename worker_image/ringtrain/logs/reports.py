"""Report lines, as ranks write them: what is one, by docs/contract.md, and what is not."""

import json
import math
from collections.abc import Callable
from typing import Any

from ringtrain.errors import RingtrainError

# What a status of Kubernetes can hold: int64.
_MOST = 2**63 - 1


class BadReport(RingtrainError, ValueError):
    """A line is no report. The message says what was expected, and what came."""


def parse_report(line: bytes) -> dict[str, Any]:
    """The report in `line`, with None for NaN and infinities, which JSON does not have. Raises BadReport."""
    try:
        report = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise BadReport(f"expected a JSON object, got {line[:120]!r}") from error
    if not isinstance(report, dict):
        raise BadReport(f"expected a JSON object, got {line[:120]!r}")
    for name, (required, fits, expected) in _FIELDS.items():
        value = report.get(name)
        if required if value is None else not fits(value):
            raise BadReport(f"{name} is {str(value)[:120]!r}, expected {expected}")
    return report


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(inner is None or _is_number(inner) for inner in value.values())


# By name: whether it must be there, what its value must be, and that in words.
_FIELDS: dict[str, tuple[bool, Callable[[object], bool], str]] = {
    "step": (True, _is_whole, "a whole number from 0 on"),
    "time": (True, _is_number, "seconds since the epoch"),
    "totalSteps": (False, _is_whole, "a whole number from 0 on"),
    "epoch": (False, _is_whole, "a whole number from 0 on"),
    "samples": (False, _is_number, "a number"),
    "loss": (False, _is_number, "a number"),
    "unit": (False, lambda value: isinstance(value, str), "a word"),
    "metrics": (False, _are_numbers, "an object with numbers"),
}
