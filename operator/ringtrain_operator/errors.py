"""Exceptions that the operator raises on purpose, as opposed to defects.

OperatorError
├── Invalid          the user's DistributedTrainingJob cannot be run as written; lists every problem
├── ManifestUnreadable  a file is missing, is not YAML, or has other content than expected
├── LocalUnsupported  a pod needs something that one machine cannot provide (dtj local)
├── SchemaUnsupported  a model uses something that the CRD converter does not support (a defect of this package)
└── ApiError         the Kubernetes API refused or did not answer; its own tree is in cluster/api/errors.py
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A message about a field without a value; `found_text` is about one value that is expected.
MISSING = "is missing; expected a value"


class OperatorError(Exception):
    """Base of all errors in this package."""


@dataclass(frozen=True)
class Problem:
    """One problem in a manifest: the field's path, and a message with the value found and what is allowed."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Invalid(OperatorError):
    """Error: a manifest is invalid. `problems` lists all problems, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))


class ManifestUnreadable(OperatorError):
    """Error: a file is missing, is not YAML, or has unexpected content. The message names the file."""


class LocalUnsupported(OperatorError):
    """Error: a pod needs something that only a cluster provides, so it cannot run on this machine."""


def spelling_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint "did you mean …?" for an error about the unknown `name`; empty if no known name is similar."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


def shown(value: object) -> str:
    """Return `value` in YAML's format for an error message, shortened if it is long."""
    text = (
        {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else repr(value)
    )
    return text if len(text) <= 80 else f"{text[:77]}…"


def found_text(value: object) -> str:
    """Return the beginning of a message about a field's `value`: `is missing` for None, otherwise `is VALUE`."""
    return "is missing" if value is None else f"is {shown(value)}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return `1 worker`, `2 workers`. `plural`: if it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


class SchemaUnsupported(OperatorError):
    """Error: a model has a type or constraint that cannot be expressed in the schema of the CRD."""
