"""What the operator counts, for Prometheus."""

from collections import Counter as Tally
from collections.abc import Mapping
from importlib.metadata import version
from platform import python_version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from ringtrain_operator.cluster.queue import Key


class Metrics:
    """One operator's numbers; `text()` is what /metrics answers."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.reconciles = Counter("ringtrain_reconciles", "Reconciles by result", ["result"], registry=registry)
        self.reconcile_seconds = Histogram(
            "ringtrain_reconcile_duration_seconds", "Duration of a reconcile", registry=registry
        )
        self.queue_depth = Gauge("ringtrain_queue_depth", "Jobs waiting for a worker", registry=registry)
        self.leader = Gauge("ringtrain_leader", "1 while this replica holds the lease", registry=registry)
        self.jobs = Gauge("ringtrain_jobs", "Jobs by state", ["state"], registry=registry)
        self.time_to_running = Histogram(
            "ringtrain_job_time_to_running_seconds",
            "From a job's creation to its first Running",
            buckets=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600),
            registry=registry,
        )
        self.restarts = Counter(
            "ringtrain_job_restarts",
            "Restarts of a gang; counted: against backoffLimit",
            ["counted"],
            registry=registry,
        )
        self.failures = Counter(
            "ringtrain_job_failures", "Failed attempts by reason", ["reason"], registry=registry
        )
        self.workers_lost = Counter(
            "ringtrain_job_workers_lost", "Worker pods of elastic jobs that were lost", registry=registry
        )
        self.recoveries = Counter(
            "ringtrain_job_recoveries",
            "Losses after which an elastic job went on in its attempt",
            registry=registry,
        )
        self.steps_lost = Counter("ringtrain_job_steps_lost", "Steps that these losses cost", registry=registry)
        self.formations = Counter("ringtrain_job_formations", "Worlds of elastic jobs", registry=registry)
        build = Gauge("ringtrain_operator_build_info", "1", ["version", "python"], registry=registry)
        build.labels(version("ringtrain-operator"), python_version()).set(1)
        ProcessCollector(registry=registry)
        self._states: dict[Key, str] = {}
        self._counted: set[str] = set()

    def job_is(self, key: Key, state: str) -> None:
        """A job's state was seen."""
        if self._states.get(key) != state:
            self._states[key] = state
            self._count_states()

    def job_gone(self, key: Key) -> None:
        """A job is no more."""
        if self._states.pop(key, None) is not None:
            self._count_states()

    def status_changed(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """A job's status was written: restarts and failures that are new in it count."""
        for field, counted in (("restarts", "true"), ("disruptions", "false")):
            more = int(after.get(field) or 0) - int(before.get(field) or 0)
            if more > 0:
                self.restarts.labels(counted).inc(more)
        was, now = before.get("elastic") or {}, after.get("elastic") or {}
        for counter, field in (
            (self.workers_lost, "lostWorkers"),
            (self.recoveries, "recoveries"),
            (self.steps_lost, "lostSteps"),
            (self.formations, "formation"),
        ):
            counter.inc(max(0, int(now.get(field) or 0) - int(was.get(field) or 0)))
        failure = after.get("failure")
        if failure and failure != before.get("failure"):
            self.failures.labels(str(failure.get("reason"))).inc()

    def _count_states(self) -> None:
        tally = Tally(self._states.values())
        self._counted.update(tally)
        for state in self._counted:  # also those that no job is in any more
            self.jobs.labels(state).set(tally[state])

    def text(self) -> bytes:
        """The Prometheus exposition."""
        return generate_latest(self.registry)
