"""Search for the launcher's plugins by entry points: observers of an attempt, and backends that start its ranks.

* `ringtrain.launcher.observers`: functions that take an `Attempt` and return an `AttemptObserver`, or None if the
  feature is off.
* `ringtrain.launcher.backends`: functions that take a `BackendContext` and return a `Backend`, or None if the job is of
  another kind. Entry points are tried in the order of their names; the first backend returned runs the job.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from ringtrain.shared.plugins import entry_points_of
from ringtrain_job.control.settings import plugin_missing
from ringtrain_job.launcher.backend import Backend
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.observers import AttemptObserver, Observers
from ringtrain_job.launcher.run_hosts import RunHosts
from ringtrain_job.launcher.sites import WorkerSites
from ringtrain_job.launcher.status import StatusSnapshot
from ringtrain_job.logs.layout import AttemptFiles

OBSERVERS: Final = "ringtrain.launcher.observers"
BACKENDS: Final = "ringtrain.launcher.backends"


@dataclass(frozen=True)
class Attempt:
    """The attempt, as passed to observers. `is_over`: whether an earlier launcher has ended it. `gives_up`: returns
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
    """Inputs of a backend. `command`: the launcher's command. `hosts`: hosts of the run if they may change."""

    status: StatusSnapshot
    sites: WorkerSites
    command: Sequence[str] = ()
    hosts: RunHosts | None = None

    @property
    def config(self) -> LauncherConfig:
        return self.status.config

    @property
    def gang(self) -> Gang:
        return self.status.gang


def open_observers(attempt: Attempt, stack: ExitStack) -> Observers:
    """Return all observers of `attempt`. Closing `stack` closes them. Raises ConfigurationError for an invalid
    setting."""
    found: list[AttemptObserver] = []
    for point in entry_points_of(OBSERVERS):
        observer = point.load()(attempt)
        if observer is not None:
            stack.callback(observer.close)
            found.append(observer)
    return Observers(found)


def open_backend(context: BackendContext) -> Backend:
    """Return the backend for the job. Raises ConfigurationError if its plugin is missing."""
    for point in entry_points_of(BACKENDS):
        backend: Backend | None = point.load()(context)
        if backend is not None:
            return backend
    if not context.config.agents_start_ranks:
        raise plugin_missing(context.config.backend)
    raise LookupError(f"no entry point of {BACKENDS} accepts this job; reinstall ringtrain with pip")
