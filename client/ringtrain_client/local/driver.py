"""Control loop of a local job: observe, plan, apply and show, until the job and its processes have ended."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from ringtrain_operator.build import BuildSettings
from ringtrain_operator.observe.model import Observed
from ringtrain_operator.plan import PlannedEvent, plan_object
from ringtrain_operator.status.model import JobStatus, parse_status

from .cluster import LocalCluster
from .manifest import LocalManifestFile

# Short enough for a display; long enough to leave the CPU to the ranks.
INTERVAL_S = 0.25
# Time for the pods of an ended job to end; longer than the time that cleanPodPolicy allows.
LINGER_S = 15.0


@dataclass(frozen=True)
class JobView:
    """State of a job at one moment, as input of a display."""

    job: dict[str, Any]
    status: JobStatus
    observed: Observed
    events: tuple[PlannedEvent, ...]


class LocalDisplay(Protocol):
    """Display of a running job."""

    def show(self, view: JobView) -> None:
        """Show the present state."""


@dataclass
class LocalDriver:
    """Driver of one local job until its end. It follows changes of the job's manifest."""

    cluster: LocalCluster
    display: LocalDisplay
    manifest: LocalManifestFile
    _reported_refusal: str = field(default="", init=False)

    def run(self) -> JobStatus:
        """Run the job and return its final status. The caller must close the runner, also after an exception."""
        ended: float | None = None
        while True:
            if self.step():
                return self._status()
            if self._status().finished:
                if ended is None or self._is_evaluator_running():  # the plan ends the evaluator by its own deadline
                    ended = time.monotonic()
                if not self._has_running_pods() or time.monotonic() - ended > LINGER_S:
                    return self._status()
            time.sleep(INTERVAL_S)

    def step(self) -> bool:
        """Observe, plan, apply and show until there is nothing more to do. Return whether the job was deleted."""
        self.cluster.job = self.manifest.refresh(self.cluster.job)
        events = self._refusal_events()
        while True:
            observed = self.cluster.observe()
            plan = plan_object(self.cluster.job, observed, datetime.now(UTC), BuildSettings())
            deleted = self.cluster.apply(plan)
            self.display.show(JobView(self.cluster.job, self._status(), observed, (*events, *plan.events)))
            events = ()
            if deleted or not (plan.create or plan.delete or plan.status):
                return deleted

    def _refusal_events(self) -> tuple[PlannedEvent, ...]:
        """Return an event if the last change of the manifest was refused, once for each refusal."""
        new = self.manifest.refusal != self._reported_refusal
        self._reported_refusal = self.manifest.refusal
        if not (new and self._reported_refusal):
            return ()
        return (
            PlannedEvent("Warning", "ChangeRefused", f"{self._reported_refusal}; the job continues without the change"),
        )

    def _status(self) -> JobStatus:
        return parse_status(self.cluster.status)

    def _is_evaluator_running(self) -> bool:
        evaluator = self._status().evaluator
        return evaluator is not None and evaluator.state == "Running"

    def _has_running_pods(self) -> bool:
        return any((pod.get("status") or {}).get("phase") == "Running" for pod in self.cluster.runner.pods())
