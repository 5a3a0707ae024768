"""Errors that the operator raises on purpose.

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


class OperatorError(Exception):
    """Base of all errors in this package."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a manifest: the field's path, the value found, the values allowed and the remedy."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Invalid(OperatorError):
    """The job cannot be run as written. `problems` lists every problem, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))


class ManifestUnreadable(OperatorError):
    """The file is missing, is not YAML, or has other content than expected. The message names the file."""


class LocalUnsupported(OperatorError):
    """The pod needs something that only a cluster provides."""


def spelling_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint ("did you mean …?") to append to an error about the unknown `name`; empty if no name in `known` is
    close.
    """
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


def shown(value: object) -> str:
    """Return `value` for a message, in YAML's format, shortened if it is long."""
    text = (
        {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else repr(value)
    )
    return text if len(text) <= 80 else f"{text[:77]}…"


class SchemaUnsupported(OperatorError):
    """A model has an annotation or a constraint that the CRD converter cannot express."""
