"""Times in the ledger that are yet to come: an operator noted them whose clock was ahead."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TypeVar

from .lasting import EndedPod
from .model import JobStatus, Loss

Note = TypeVar("Note", Loss, EndedPod)


def not_ahead(status: JobStatus, now: datetime) -> JobStatus:
    """The status with no later time than now for anything that new pods wait after: the wait counts from now."""
    ledger, notes = status.ledger, status.ledger.incarnations
    start, delay = ledger.restart_not_before, timedelta(seconds=ledger.restart_delay_seconds)
    if notes is not None:
        lost = notes.launcher_lost
        notes = notes.model_copy(
            update={"losses": _passed(notes.losses, now), "launcher_lost": min(lost, now) if lost else None}
        )
    return status.noted(
        restart_not_before=min(start, now + delay) if start else None,
        ended_pods=_passed(ledger.ended_pods, now),
        incarnations=notes,
    )


def _passed(notes: Iterable[Note], now: datetime) -> tuple[Note, ...]:
    return tuple(note if note.time <= now else note.model_copy(update={"time": now}) for note in notes)
