"""Parser of the report lines that ranks send (docs/contract.md). It accepts only valid values.

Ranks run arbitrary programs: reading any line results in a report or in BadReport. The values of a report can be
summed, encoded as JSON and UTF-8, and stored by Kubernetes.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ringtrain.errors import RingtrainError
from ringtrain_job.logs.about import read_about
from ringtrain_job.logs.fields import (
    MOST_WHOLE,
    finite_number,
    finite_numbers,
    is_number,
    not_finite_word,
    number_to,
    parse_json,
    printable_text,
    rank_number,
    whole_number,
)
from ringtrain_job.logs.reading import read_log_from
from ringtrain_job.logs.samples import read_sample

# Kubernetes stores times up to the year 9999.
_LATEST = 253_402_300_799
# Limit on the length of a line, value or unit in messages.
_SHOWN = 120
_PATH_SHOWN = 500


class BadReport(RingtrainError, ValueError):
    """Error: a report line is invalid. The message has the expected and the actual value."""


def parse_report(line: bytes) -> dict[str, Any]:
    """Return the report in `line`, with known fields only and values within limits. Raises BadReport for other
    values, and if it is not a report.

    NaN, infinities and numbers beyond a float become None. If a key is repeated, its last value counts.
    """
    report = parse_json(line)
    if not isinstance(report, dict):
        raise BadReport(f"expected a JSON object, got {line[:_SHOWN]!r}")
    return _checked_report(report)


def stored_reports(path: Path, position: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rank and report of each row of the file `path`, a metrics.jsonl, from byte `position` on."""
    return chain.from_iterable(report_rows(read_log_from(path, position)))


def report_rows(chunks: Iterable[bytes]) -> Iterator[Iterator[tuple[int, dict[str, Any]]]]:
    """Yield, for each of `chunks` of a metrics.jsonl, rank and report of its rows. Invalid and incomplete rows are
    skipped."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield filter(None, map(_report_row, lines))


def _report_row(line: bytes) -> tuple[int, dict[str, Any]] | None:
    found = parse_json(line)
    rank = rank_number(found.get("rank")) if isinstance(found, dict) else None
    try:
        return None if rank is None else (rank, _checked_report(found))
    except BadReport:
        return None


def _checked_report(report: dict[str, Any]) -> dict[str, Any]:
    known = [name for name in report if name in _FIELDS]
    return {name: _checked_report_field(name, report.get(name)) for name in (*_REQUIRED, *known)}


def _checked_report_field(name: str, value: object) -> Any:
    read, expected = _FIELDS[name]
    if value is None and name not in _REQUIRED:
        return None
    found = read(value)
    if found is None and not (read is finite_number and is_number(value)):  # a number that is not finite is one
        raise BadReport(f"{name} is {_shown_report_value(value)}, expected {expected}")
    return found


def _shown_report_value(value: object) -> str:
    if isinstance(value, dict | list):  # it may be too deeply nested for repr
        return "an object" if isinstance(value, dict) else "a list"
    return repr(value)[:_SHOWN]


def _report_word(value: object) -> str | None:
    return printable_text(value)[:_SHOWN] if isinstance(value, str) else None


def _report_path(value: object) -> str | None:
    return printable_text(value)[-_PATH_SHOWN:] if isinstance(value, str) else None


def _report_words(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict) or not all(not_finite_word(inner) for inner in value.values()):
        return None
    return {printable_text(name): inner for name, inner in value.items()}


_REQUIRED = ("step", "time")
# By name: the reader of the value, which returns None if it is invalid, and the expected value in words.
_FIELDS: dict[str, tuple[Callable[[object], Any], str]] = {
    "step": (whole_number, "a whole number from 0 on"),
    "time": (partial(number_to, _LATEST), "seconds since the epoch"),
    "totalSteps": (whole_number, "a whole number from 0 on"),
    "epoch": (whole_number, "a whole number from 0 on"),
    "samples": (partial(number_to, MOST_WHOLE), "a number from 0 on"),
    "loss": (finite_number, "a number"),
    "unit": (_report_word, "a word"),
    "metrics": (finite_numbers, "an object with numbers"),
    "notFinite": (_report_words, "an object with NaN, Infinity or -Infinity"),
    "inputWait": (partial(number_to, MOST_WHOLE), "seconds"),
    "reductionWait": (partial(number_to, MOST_WHOLE), "seconds"),
    "updateTime": (partial(number_to, MOST_WHOLE), "seconds"),
    "dropped": (whole_number, "a whole number from 0 on"),
    "printed": (whole_number, "a whole number from 0 on"),
    "startedFrom": (_report_path, "a path"),
    "about": (read_about, "what a rank or an agent says of what runs"),
    "machine": (read_sample, "what an agent sees of its machine"),
}
