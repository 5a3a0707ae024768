"""The loop: observe, plan, apply, show; until the job has ended and its processes are gone."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from ringtrain_operator.observe.model import Observed
from ringtrain_operator.plan import PlannedEvent, plan_object
from ringtrain_operator.status.model import JobStatus, parse_status

from .cluster import LocalCluster
from .manifest import LocalManifestFile

# Often enough for a display and for processes that end; idle enough to leave the cores to the ranks.
INTERVAL_S = 0.25
# How long an ended job's pods get to end by themselves, which is longer than cleanPodPolicy's own patience.
LINGER_S = 15.0


@dataclass(frozen=True)
class JobView:
    """What a display shows."""

    job: dict[str, Any]
    status: JobStatus
    observed: Observed
    events: tuple[PlannedEvent, ...]


class LocalDisplay(Protocol):
    """Shows a job while it runs."""

    def show(self, view: JobView) -> None:
        """Show how things are now."""


@dataclass
class LocalDriver:
    """Drives one job from its manifest to its end. A saved change of `manifest` takes effect."""

    cluster: LocalCluster
    display: LocalDisplay
    manifest: LocalManifestFile
    _complained: str = field(default="", init=False)

    def run(self) -> JobStatus:
        """Returns the final status. Whoever calls closes the runner, whatever happens here."""
        ended: float | None = None
        while True:
            if self.step():
                return self._status()
            if self._status().finished:
                if ended is None or self._evaluator_runs():  # which has its own time, and the plan ends it
                    ended = time.monotonic()
                if not self._alive() or time.monotonic() - ended > LINGER_S:
                    return self._status()
            time.sleep(INTERVAL_S)

    def step(self) -> bool:
        """Observe, plan, apply, show, until the plan has nothing to do. Returns whether the job was deleted."""
        self.cluster.job = self.manifest.refresh(self.cluster.job)
        events = self._complaint()
        while True:
            observed = self.cluster.observe()
            plan = plan_object(self.cluster.job, observed, datetime.now(UTC))
            deleted = self.cluster.apply(plan)
            self.display.show(JobView(self.cluster.job, self._status(), observed, (*events, *plan.events)))
            events = ()
            if deleted or not (plan.create or plan.delete or plan.status):
                return deleted

    def _complaint(self) -> tuple[PlannedEvent, ...]:
        """What is wrong with the saved manifest, once."""
        new = self.manifest.complaint != self._complained
        self._complained = self.manifest.complaint
        if not (new and self._complained):
            return ()
        return (PlannedEvent("Warning", "ChangeRefused", f"{self._complained}; the job goes on as it was"),)

    def _status(self) -> JobStatus:
        return parse_status(self.cluster.status)

    def _evaluator_runs(self) -> bool:
        evaluator = self._status().evaluator
        return evaluator is not None and evaluator.state == "Running"

    def _alive(self) -> bool:
        return any((pod.get("status") or {}).get("phase") == "Running" for pod in self.cluster.runner.pods())
