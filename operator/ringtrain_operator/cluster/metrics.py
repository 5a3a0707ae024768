"""Prometheus metrics of the operator."""

from collections import Counter as Tally
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from platform import python_version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from .queue import JobKey

# Not `namespace` and `job`: Prometheus adds labels of these names to every series.
_JOB = ("job_namespace", "job_name")
_OVER = ("Succeeded", "Failed")


class OperatorMetrics:
    """Metrics of one operator; `text()` is the response of /metrics."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.reconciles = counter("ringtrain_reconciles", "Reconciles by result", ["result"])
        for result in ("ok", "conflict", "error", "fenced", "defect"):
            self.reconciles.labels(result)  # start at 0, so that a rate exists from the first event on
        self.reconcile_seconds = histogram("ringtrain_reconcile_duration_seconds", "Duration of a reconcile")
        self.queue_depth = gauge("ringtrain_queue_depth", "Jobs waiting for a worker")
        self.leader = gauge("ringtrain_leader", "1 while this replica holds the lease")
        self.jobs = gauge("ringtrain_jobs", "Jobs by state", ["state"])
        self.time_to_running = histogram(
            "ringtrain_job_time_to_running_seconds",
            "From a job's creation to its first Running",
            buckets=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600),
        )
        text = "Restarts of a gang; counted: against backoffLimit"
        self.restarts = counter("ringtrain_job_restarts", text, ["counted"])
        for counted in ("true", "false"):
            self.restarts.labels(counted)
        self.failures = counter("ringtrain_job_failures", "Failed attempts by reason", ["reason"])
        text = "Worker pods of elastic jobs that were lost"
        self.workers_lost = counter("ringtrain_job_workers_lost", text)
        text = "Losses after which an elastic job continued in its attempt"
        self.recoveries = counter("ringtrain_job_recoveries", text)
        self.steps_lost = counter("ringtrain_job_steps_lost", "Steps that these losses cost")
        self.formations = counter("ringtrain_job_formations", "Worlds of elastic jobs")
        text = "Data workers that ended by themselves"
        self.data_workers_lost = counter("ringtrain_job_data_workers_lost", text)
        self.evaluator_failures = counter("ringtrain_job_evaluator_failures", "Evaluators that failed")
        text = "Times that a gang was left without any data worker"
        self.input_stalls = counter("ringtrain_job_input_stalls", text)
        text = "Fraction of its time that a rank of the job waits for input"
        self.input_wait = gauge("ringtrain_job_input_wait_ratio", text, _JOB)
        self.attempt = gauge("ringtrain_job_attempt", "Current attempt of a job that has not ended", _JOB)
        build = gauge("ringtrain_operator_build_info", "1", ["version", "python"])
        build.labels(version("ringtrain-operator"), python_version()).set(1)
        ProcessCollector(registry=registry)
        self._states: dict[JobKey, str] = {}
        self._counted: set[str] = set()
        self._by_job: dict[Gauge, set[JobKey]] = {self.input_wait: set(), self.attempt: set()}

    def record_status(self, key: JobKey, status: Mapping[str, Any]) -> None:
        """Record a job's observed status."""
        state = str(status.get("state") or "Pending")
        waited = (status.get("dataWorkers") or {}).get("waitFraction")
        self._set(self.input_wait, key, waited if state == "Running" else None)
        self._set(self.attempt, key, None if state in _OVER else status.get("attempt"))
        if self._states.get(key) != state:
            self._states[key] = state
            self._count_states()

    def job_deleted(self, key: JobKey) -> None:
        """Remove a deleted job."""
        for gauge in self._by_job:
            self._set(gauge, key, None)
        if self._states.pop(key, None) is not None:
            self._count_states()

    def status_changed(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Count the restarts, failures and losses by which the written status `after` differs from `before`."""
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
        known = {ended["uid"] for ended in _ended_pods_of(before)}
        new = [ended for ended in _ended_pods_of(after) if ended["uid"] not in known and not ended.get("done")]
        self.evaluator_failures.inc(sum(bool(ended.get("evaluator")) for ended in new))
        self.data_workers_lost.inc(sum(not ended.get("evaluator") for ended in new))
        self.input_stalls.inc(_is_input_stalled(after) and not _is_input_stalled(before))
        failure = after.get("failure")
        if failure and failure != before.get("failure"):
            self.failures.labels(str(failure.get("reason"))).inc()

    def _set(self, gauge: Gauge, key: JobKey, value: float | None) -> None:
        """Set the value of `gauge` for one job; None removes the job from it."""
        if value is not None:
            self._by_job[gauge].add(key)
            gauge.labels(key.namespace, key.name).set(value)
        elif key in self._by_job[gauge]:
            self._by_job[gauge].discard(key)
            gauge.remove(key.namespace, key.name)

    def _count_states(self) -> None:
        tally = Tally(self._states.values())
        self._counted.update(tally)
        for state in self._counted:  # including states without jobs, which become 0
            self.jobs.labels(state).set(tally[state])

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def _ended_pods_of(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((status.get("ledger") or {}).get("endedPods") or ())


def _is_input_stalled(status: Mapping[str, Any]) -> bool:
    """Return whether a job has lost all its data workers; False while its first data workers start."""
    return any(
        one["type"] == "InputStalled" and one["status"] == "True" and one["reason"] != "DataWorkersStarting"
        for one in status.get("conditions") or ()
    )
