"""Checks of JSON values that arbitrary programs and people have written. A check returns the valid value, or None."""

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

Check = Callable[[object], Any]

# Limit of int64, the type of numbers in a Kubernetes status.
MOST_WHOLE: Final = 2**63 - 1
# Limit on world sizes and ranks: a page has an entry for each rank.
RANK_LIMIT: Final = 1_000_000
# Clocks of hosts may differ, but by less than a day.
_MOST_AHEAD_S: Final = 86_400.0
# Names of values for which JSON has no number.
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
# Lone surrogates, which UTF-8 does not allow, and control characters, which would end a line or control a terminal.
_UNPRINTABLE: Final = re.compile("[\ud800-\udfff\x00-\x1f\x7f-\x9f]")


def open_existing(path: Path) -> BinaryIO | None:
    """Return the file `path`, open for reading; None if it is missing, unreadable, or no regular file."""
    try:
        return path.open("rb") if path.is_file() else None
    except OSError:
        return None


def read_json(path: Path) -> Any:
    """Return the value in the JSON file `path`; None if it is missing or invalid."""
    file = open_existing(path)
    if file is None:
        return None
    with file:
        return parse_json(file.read())


def parse_json(text: bytes) -> Any:
    """Return the value of `text`, with None for NaN and Infinity; None if `text` is invalid or too deeply nested."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def checked_fields(value: object, checks: Mapping[str, Check]) -> dict[str, Any] | None:
    """Return the fields of the object `value` that `checks` names, with None for an invalid value; None if `value` is
    no object."""
    if not isinstance(value, dict):
        return None
    return {name: check(value[name]) for name, check in checks.items() if name in value}


def complete_fields(value: object, checks: Mapping[str, Check]) -> dict[str, Any] | None:
    """Return the fields of the object `value` that `checks` names; None unless all of them are valid."""
    found = checked_fields(value, checks)
    return None if found is None or any(found.get(name) is None for name in checks) else found


def printable_text(text: str) -> str:
    """Return `text` with control characters and lone surrogates replaced by U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text)


def is_number(value: object) -> bool:
    """Return whether `value` is a number of JSON, finite or not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole_number(value: object) -> int | None:
    """Accept whole numbers from 0 to `MOST_WHOLE`."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_WHOLE else None


def rank_number(value: object) -> int | None:
    """Accept ranks, which are below `RANK_LIMIT`."""
    found = whole_number(value)
    return found if found is not None and found < RANK_LIMIT else None


def world_size(value: object) -> int | None:
    """Accept numbers of ranks, which are from 1 to `RANK_LIMIT`."""
    found = whole_number(value)
    return found if found is not None and 1 <= found <= RANK_LIMIT else None


def finite_number(value: object) -> int | float | None:
    """Accept numbers that a float can have, except NaN and infinities."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an int beyond the range of a float
        return None


def number_to(most: float, value: object) -> int | float | None:
    """Accept numbers from 0 to `most`."""
    found = finite_number(value)
    return found if found is not None and 0 <= found <= most else None


def past_time(value: object) -> int | float | None:
    """Accept times, in seconds since the epoch, that are not in the future."""
    return number_to(time.time() + _MOST_AHEAD_S, value)


def plain_text(value: object) -> str | None:
    """Accept texts; replace lone surrogates."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else None


def finite_numbers(value: object) -> dict[str, int | float | None] | None:
    """Accept an object with numbers. NaN, infinities and null become None."""
    if not isinstance(value, dict) or not all(inner is None or is_number(inner) for inner in value.values()):
        return None
    return {printable_text(name): finite_number(inner) for name, inner in value.items()}


def not_finite_word(value: object) -> str | None:
    """Accept the words NaN, Infinity and -Infinity."""
    return next((word for word in _NOT_FINITE if word == value), None)
