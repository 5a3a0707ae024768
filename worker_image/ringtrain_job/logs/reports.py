"""Parser of the report lines that ranks send (docs/contract.md). It accepts only valid values.

Ranks run arbitrary programs: reading any line results in a report or in BadReport. The values of a report can be
summed, encoded as JSON and UTF-8, and stored by Kubernetes.
"""

import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from ringtrain.errors import RingtrainError
from ringtrain_job.logs.about import read_about
from ringtrain_job.logs.samples import read_sample

# Limits of a Kubernetes status: int64, and times up to the year 9999.
_MOST = 2**63 - 1
_LATEST = 253_402_300_799
# Limit on the length of a line, value or unit in messages.
_SHOWN = 120
_PATH_SHOWN = 500
# Lone surrogates, which UTF-8 does not allow, and control characters, which would end a line or control a terminal.
_UNPRINTABLE = re.compile("[\ud800-\udfff\x00-\x1f\x7f-\x9f]")


class BadReport(RingtrainError, ValueError):
    """Error: a report line is invalid. The message has the expected and the actual value."""


def parse_report(line: bytes) -> dict[str, Any]:
    """Return the report in `line`, with known fields only and values within limits. Raises BadReport for other
    values, and if it is not a report.

    NaN, infinities and numbers beyond a float become None. If a key is repeated, its last value counts.
    """
    try:
        report = json.loads(line, parse_constant=lambda _: None)
        if not isinstance(report, dict):
            raise ValueError("no object")
        return {
            name: _checked_report_field(name, report.get(name)) for name in _FIELDS if name in {*_REQUIRED, *report}
        }
    except BadReport:
        raise
    except (ValueError, RecursionError) as error:
        raise BadReport(f"expected a JSON object, got {line[:_SHOWN]!r}") from error


def printable_report_text(text: str) -> str:
    """Return `text` with control characters and lone surrogates replaced by U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text)


def _checked_report_field(name: str, value: object) -> Any:
    read, expected = _FIELDS[name]
    if value is None and name not in _REQUIRED:
        return None
    found = read(value)
    if found is None and not (
        read is _report_number and _is_report_number(value)
    ):  # a number that is not finite is one
        raise BadReport(f"{name} is {_shown_report_value(value)}, expected {expected}")
    return found


def _shown_report_value(value: object) -> str:
    if isinstance(value, dict | list):  # it may be too deeply nested for repr
        return "an object" if isinstance(value, dict) else "a list"
    return repr(value)[:_SHOWN]


def _is_report_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole_report_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def _report_number(value: object) -> int | float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an int beyond the range of a float
        return None


def _report_number_to(most: int, value: object) -> int | float | None:
    number = _report_number(value)
    return number if number is not None and 0 <= number <= most else None


def _report_word(value: object) -> str | None:
    return printable_report_text(value)[:_SHOWN] if isinstance(value, str) else None


def _report_path(value: object) -> str | None:
    return printable_report_text(value)[-_PATH_SHOWN:] if isinstance(value, str) else None


def _report_numbers(value: object) -> dict[str, int | float | None] | None:
    if not isinstance(value, dict) or not all(inner is None or _is_report_number(inner) for inner in value.values()):
        return None
    return {printable_report_text(name): _report_number(inner) for name, inner in value.items()}


def _report_words(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict) or not all(inner in _NOT_FINITE for inner in value.values()):
        return None
    return {printable_report_text(name): inner for name, inner in value.items()}


# Names of values for which JSON has no number.
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_REQUIRED = ("step", "time")
# By name: the reader of the value, which returns None if it is invalid, and the expected value in words.
_FIELDS: dict[str, tuple[Callable[[object], Any], str]] = {
    "step": (_whole_report_number, "a whole number from 0 on"),
    "time": (partial(_report_number_to, _LATEST), "seconds since the epoch"),
    "totalSteps": (_whole_report_number, "a whole number from 0 on"),
    "epoch": (_whole_report_number, "a whole number from 0 on"),
    "samples": (partial(_report_number_to, _MOST), "a number from 0 on"),
    "loss": (_report_number, "a number"),
    "unit": (_report_word, "a word"),
    "metrics": (_report_numbers, "an object with numbers"),
    "notFinite": (_report_words, "an object with NaN, Infinity or -Infinity"),
    "inputWait": (partial(_report_number_to, _MOST), "seconds"),
    "reductionWait": (partial(_report_number_to, _MOST), "seconds"),
    "updateTime": (partial(_report_number_to, _MOST), "seconds"),
    "dropped": (_whole_report_number, "a whole number from 0 on"),
    "printed": (_whole_report_number, "a whole number from 0 on"),
    "startedFrom": (_report_path, "a path"),
    "about": (read_about, "what a rank or an agent says of what runs"),
    "machine": (read_sample, "what an agent sees of its machine"),
}
