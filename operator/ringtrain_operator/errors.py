"""Every error the operator raises on purpose.

OperatorError
├── Invalid          the user's DistributedTrainingJob cannot be run as written; lists every problem
├── ManifestUnreadable  a file is not there, is not YAML, or does not hold what it should
├── LocalUnsupported  a pod asks for what one machine cannot give (dtj local)
├── SchemaUnsupported  a model uses something the CRD converter does not understand (a defect of ours)
└── ApiError         the Kubernetes API refused or did not answer; its own tree is in cluster/api/errors.py
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class OperatorError(Exception):
    """Base of all errors in this package."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a manifest: where, what was found, what is allowed and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Invalid(OperatorError):
    """The job cannot be run as written. `problems` holds all of them, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))


class ManifestUnreadable(OperatorError):
    """The file is not there, is not YAML, or does not hold what it should. The message names the file."""


class LocalUnsupported(OperatorError):
    """The pod needs something that only a cluster has."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint that ends a message about the unknown `name`; empty where none of those `known` is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


def shown(value: object) -> str:
    """`value` for a message, shortened where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


class SchemaUnsupported(OperatorError):
    """A model has an annotation or a constraint that the CRD converter does not know how to express."""
