"""Observers of an attempt: found by entry points, called in order, removed when they fail."""

import subprocess
import time
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from support.small_job import environment

from ringtrain.errors import ConfigurationError
from ringtrain_job.control.model import Outcome, Verdict
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.observers import AttemptObserver, Observers
from ringtrain_job.launcher.registry import (
    BACKENDS,
    OBSERVERS,
    Attempt,
    BackendContext,
    open_backend,
    open_observers,
)
from ringtrain_job.launcher.sites import WorkerSites
from ringtrain_job.launcher.status import LauncherReports, StatusSnapshot
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.store import LogStore

ROOT = Path(__file__).parents[4]


def small_status(directory: Path, **settings: str) -> StatusSnapshot:
    config = LauncherConfig.from_env(environment(1, **settings))
    store = LogStore(AttemptFiles.of(directory, "default", "digits", 1), "uid-1", 1)
    return StatusSnapshot(config, Gang(config, time.monotonic), store, LauncherReports(1))


class Noted(AttemptObserver):
    """Notes its calls, and fails in those that `fails` names."""

    def __init__(self, order: int, calls: list[str], fails: str = "") -> None:
        self.order, self._calls, self._fails = order, calls, fails

    def _note(self, what: str) -> None:
        self._calls.append(f"{self.order} {what}")
        if what == self._fails:
            raise ValueError(what)

    def wrote(self, lines: bytes) -> None:
        self._note("wrote")

    def ended(self, verdict: Verdict | None) -> None:
        self._note("ended")

    def close(self) -> None:
        self._note("close")


def test_calls_come_in_order() -> None:
    """`order` determines the sequence, not the names of entry points."""
    calls: list[str] = []
    observers = Observers([Noted(20, calls), Noted(10, calls)])
    observers.wrote(b"line\n")
    observers.ended(None)
    assert calls == ["10 wrote", "20 wrote", "10 ended", "20 ended"]


def test_the_gang_is_looked_at_for_who_follows_it() -> None:
    """A view is made only if an observer implements `changed`."""

    class Following(Noted):
        def changed(self, view: object) -> None:
            self._note("changed")

    assert not Observers([Noted(10, [])]).follows_gang
    assert Observers([Noted(10, []), Following(20, [])]).follows_gang


def test_an_observer_that_fails_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged once, and other observers continue."""
    calls: list[str] = []
    observers = Observers([Noted(10, calls, fails="wrote"), Noted(20, calls)])
    for _ in range(2):
        observers.wrote(b"line\n")
    observers.ended(Verdict(Outcome.SUCCEEDED, 0))
    assert calls == ["10 wrote", "20 wrote", "20 wrote", "20 ended"]
    assert [record.message for record in caplog.records] == ["Noted failed and is disabled; the job continues"]


def test_all_that_is_registered_is_opened(tmp_path: Path) -> None:
    """A job without options has the console; an attempt that has ended has no observer."""
    status = small_status(tmp_path)
    assert {point.name for point in entry_points(group=OBSERVERS)} >= {"console", "shipping", "timeline"}
    assert {point.name for point in entry_points(group=BACKENDS)} >= {"20-elastic", "90-ring"}
    with ExitStack() as stack:
        opened = open_observers(Attempt(status), stack)
        assert "ConsoleObserver" in [type(one).__name__ for one in opened._observers]
        assert not open_observers(Attempt(status, is_over=True), stack)._observers
    status.store.close()


@pytest.mark.parametrize(("settings", "kind"), [({}, "RingBackend"), ({"ELASTIC": "Replace"}, "ElasticBackend")])
def test_the_backend_that_takes_the_job(tmp_path: Path, settings: dict[str, str], kind: str) -> None:
    """The job's configuration selects the backend."""
    status = small_status(tmp_path, **settings)
    backend = open_backend(BackendContext(status, WorkerSites({}, False)))
    assert type(backend).__name__ == kind
    status.store.close()


@pytest.mark.parametrize("settings", [{}, {"ELASTIC": "Restart"}], ids=["fixed", "elastic"])
def test_a_backend_without_its_plugin(tmp_path: Path, settings: dict[str, str]) -> None:
    """No other backend accepts the job: one line names the package to install."""
    status = small_status(tmp_path, **settings)
    status = replace(status, config=replace(status.config, backend="other"))
    with pytest.raises(ConfigurationError, match=r"ringtrain-other, which is not in this image; pip install"):
        open_backend(BackendContext(status, WorkerSites({}, False)))
    status.store.close()


@pytest.mark.parametrize("file", ["main", "gang", "observers", "backend", "registry"])
def test_the_core_names_no_feature(file: str) -> None:
    """No import, condition or comment mentions a feature."""
    words = "mpi|elastic|telemetry|otlp|sinks|shipping|timeline|console|diloco|tensorboard|mlflow"
    found = subprocess.run(
        ["grep", "-inwE", words, ROOT / f"worker_image/ringtrain_job/launcher/{file}.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
