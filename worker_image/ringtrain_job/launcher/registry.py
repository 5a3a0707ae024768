"""Features of the launcher, found by entry points: what watches an attempt, and how its ranks are started.

* `ringtrain.launcher.observers`: functions that take an `Attempt` and return an `AttemptObserver`, or None where the
  feature is off.
* `ringtrain.launcher.backends`: functions that take a `BackendContext` and return a `Backend`, or None where the job
  is of another kind. The first in the order of the entry points' names that returns one has the job.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from ringtrain_job.control.settings import plugin_missing
from ringtrain_job.launcher.backend import Backend
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.gang import LauncherGang
from ringtrain_job.launcher.hosts import ONLY_HERE, HostControl
from ringtrain_job.launcher.observers import AttemptObserver, Observers
from ringtrain_job.launcher.sites import WorkerSites
from ringtrain_job.launcher.status import LauncherStatusSnapshot
from ringtrain_job.logs.layout import AttemptFiles

OBSERVERS: Final = "ringtrain.launcher.observers"
BACKENDS: Final = "ringtrain.launcher.backends"


@dataclass(frozen=True)
class Attempt:
    """One attempt. `is_over`: it ended under the launcher before this one, which repeats how. `gives_up`: returns
    whether somebody is asking that the launcher end at once."""

    status: LauncherStatusSnapshot
    is_over: bool = False
    gives_up: Callable[[], bool] = lambda: False

    @property
    def config(self) -> LauncherConfig:
        return self.status.config

    @property
    def files(self) -> AttemptFiles:
        return self.status.store.files


@dataclass(frozen=True)
class BackendContext:
    """`command`: that of the launcher. `hosts`: of a run that may start agents on other hosts."""

    status: LauncherStatusSnapshot
    sites: WorkerSites
    command: Sequence[str] = ()
    hosts: HostControl = ONLY_HERE

    @property
    def config(self) -> LauncherConfig:
        return self.status.config

    @property
    def gang(self) -> LauncherGang:
        return self.status.gang


def open_observers(attempt: Attempt, stack: ExitStack) -> Observers:
    """Open all observers; `stack` closes them. Raises ConfigurationError."""
    found: list[AttemptObserver] = []
    for point in _entry_points(OBSERVERS):
        observer = point.load()(attempt)
        if observer is not None:
            stack.callback(observer.close)
            found.append(observer)
    return Observers(found)


def open_backend(context: BackendContext) -> Backend:
    """Open the backend of the job. Raises ConfigurationError."""
    for point in _entry_points(BACKENDS):
        backend: Backend | None = point.load()(context)
        if backend is not None:
            return backend
    if not context.config.agents_start_ranks:
        raise plugin_missing(context.config.backend)
    raise LookupError(f"no entry point of {BACKENDS} takes this job; is ringtrain installed with its metadata?")


def _entry_points(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=group), key=lambda point: point.name)
