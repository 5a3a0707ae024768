"""What a policy may decide. A policy is a function from a `Situation` to an `Opinion`; the first verdict wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ..status import Failure
from ..status.conditions import Said
from ..status.situation import Situation


@dataclass(frozen=True)
class Begin:
    """Start the first attempt, or the next one after a suspension."""

    attempt: int
    reason: Literal["Started", "Resumed"]


@dataclass(frozen=True)
class Halt:
    """Delete the pods and wait to be resumed."""


@dataclass(frozen=True)
class Restart:
    """Give up this attempt and begin the next. `counted`: against backoffLimit. `delayed`: by the back-off."""

    reason: str
    message: str
    counted: bool = False
    delayed: bool = True
    failure: Failure | None = None


@dataclass(frozen=True)
class Finish:
    """The job has ended, for good."""

    condition: Literal["Succeeded", "Failed"]
    reason: str
    message: str
    failure: Failure | None = None


Verdict = Begin | Halt | Restart | Finish


@dataclass(frozen=True)
class Opinion:
    """A policy's verdict, if it has one, and when it wants to be asked again."""

    verdict: Verdict | None = None
    look_again: datetime | None = None


Policy = Callable[[Situation], Opinion]

NO_OPINION = Opinion()


def said(verdict: Verdict | None) -> Said | None:
    """The condition that a verdict turns."""
    match verdict:
        case Begin(reason="Resumed"):
            return Said("Suspended", "False", "Resumed", f"attempt {verdict.attempt} begins")
        case Halt():
            return Said("Suspended", "True", "Suspended", "runPolicy.suspend is set; the pods are deleted")
        case Restart():
            return Said("Restarting", "True", verdict.reason, verdict.message)
        case Finish():
            return Said(verdict.condition, "True", verdict.reason, verdict.message)
        case _:
            return None
