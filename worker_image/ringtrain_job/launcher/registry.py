"""Features of the launcher, found by entry points: observers of an attempt, and backends that start its ranks.

* `ringtrain.launcher.observers`: functions that take an `Attempt` and return an `AttemptObserver`, or None if the
  feature is off.
* `ringtrain.launcher.backends`: functions that take a `BackendContext` and return a `Backend`, or None if the job is of
  another kind. Entry points are tried in the order of their names; the first backend returned runs the job.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from ringtrain_job.control.settings import plugin_missing
from ringtrain_job.launcher.backend import Backend
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.hosts import ONLY_HERE, HostControl
from ringtrain_job.launcher.observers import AttemptObserver, Observers
from ringtrain_job.launcher.sites import WorkerSites
from ringtrain_job.launcher.status import StatusSnapshot
from ringtrain_job.logs.layout import AttemptFiles

OBSERVERS: Final = "ringtrain.launcher.observers"
BACKENDS: Final = "ringtrain.launcher.backends"


@dataclass(frozen=True)
class Attempt:
    """One attempt. `is_over`: it ended under an earlier launcher, and this one repeats its outcome. `gives_up`: returns
    whether a person has requested an immediate end."""

    status: StatusSnapshot
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
    """Inputs of a backend. `command`: the launcher's command. `hosts`: control of a run that may start agents on other
    hosts."""

    status: StatusSnapshot
    sites: WorkerSites
    command: Sequence[str] = ()
    hosts: HostControl = ONLY_HERE

    @property
    def config(self) -> LauncherConfig:
        return self.status.config

    @property
    def gang(self) -> Gang:
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
