"""Hands the work of a collective to the engine of the current session."""

from collections.abc import Callable
from typing import TypeVar

from ringtrain.communicators.base import Communicator
from ringtrain.process_groups.context import current
from ringtrain.process_groups.executor import Handle
from ringtrain.process_groups.process_sets import ProcessSet, communicator_of

T = TypeVar("T")
Work = Callable[[Communicator], T]


def call(work: Work[T], process_set: ProcessSet | None) -> T:
    """Do `work` now and return its result."""
    session = current()
    communicator = communicator_of(session, process_set)
    return session.engine.call(lambda: work(communicator))


def submit(work: Work[T], process_set: ProcessSet | None) -> Handle[T]:
    """Do `work` after everything that was submitted before it; return a handle for its result."""
    session = current()
    communicator = communicator_of(session, process_set)
    return session.engine.submit(lambda: work(communicator))
