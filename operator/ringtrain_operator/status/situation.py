"""State of one job at one moment, which is the input of every policy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from ..build import data_worker_name, evaluator_name, secret_name
from ..build.names import ObjectRef, gang_names
from ..observe.model import LauncherReport, Observed, PodView, Refusal
from ..observe.pods import failure_in
from ..placement.base import Placement, PlacementAttempt
from ..placement.gangs import GangPlacement
from ..placement.kueue.queue import KueuePlacement
from ..placement.kueue.view import Grant, WorkloadView
from ..placement.provisioning import NodesPlacement
from ..spec.job import Job
from .model import JobStatus

# Reasons of Running=False that imply that all pods of the attempt run.
_ALL_PODS_RUN = frozenset({"WaitingForAgents", "WaitingForLauncher", "LauncherUnreadable"})


@dataclass(frozen=True)
class Situation:
    """A job, what was observed for it, its status, and the time.

    Derived values are computed once: at construction those that every policy reads, the others on first use.
    """

    job: Job
    observed: Observed
    status: JobStatus
    now: datetime

    def __post_init__(self) -> None:
        _ = self.attempt, self.finished, self.is_suspended, self.is_queued, self.is_without_pods
        _ = self.pods, self.stale_pods, self.launcher, self.workers, self.missing_names
        _ = self.auxiliary_names, self.auxiliary_pods, self.secret, self.secret_is_ours
        _ = self.report, self.has_world, self.gang_began
        _ = self.has_workload, self.workload, self.wanted_workers, self.queue, self.placements

    @cached_property
    def attempt(self) -> int:
        """Number of the current attempt; 0 before the first."""
        return self.status.attempt

    @cached_property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return self.status.finished

    @cached_property
    def pods(self) -> tuple[PodView, ...]:
        """Launcher and worker pods of the current attempt."""
        return tuple(pod for pod in self.observed.gang_pods if pod.id.attempt == self.attempt)

    @cached_property
    def stale_pods(self) -> tuple[PodView, ...]:
        """Launcher and worker pods of earlier attempts. The current attempt starts after they are deleted."""
        return tuple(pod for pod in self.observed.gang_pods if pod.id.attempt != self.attempt)

    @cached_property
    def auxiliary_pods(self) -> tuple[PodView, ...]:
        """Pods of the job's data workers, by index, then of its evaluator."""
        return self.observed.auxiliary_pods

    @cached_property
    def evaluator(self) -> PodView | None:
        """The evaluator's pod; None if it does not exist."""
        return next((pod for pod in self.auxiliary_pods if pod.id.role == "evaluator"), None)

    @cached_property
    def wanted_data_workers(self) -> int:
        """Number of data workers that the job needs now, limited to the number that the queue admitted."""
        data, scale = self.job.spec.data_workers, self.status.ledger.data_scale
        if data is None:
            return 0
        wanted = scale.replicas if data.autoscale is not None and scale is not None else data.replicas
        grant = self._grant("data")
        return wanted if grant is None else min(wanted, grant.count)

    @cached_property
    def auxiliary_names(self) -> tuple[str, ...]:
        """Names of the data workers and the evaluator that the job needs now."""
        data = tuple(data_worker_name(self.job, index) for index in range(self.wanted_data_workers))
        return data if self.job.spec.evaluator is None else (*data, evaluator_name(self.job))

    @cached_property
    def gang_refusals(self) -> tuple[Refusal, ...]:
        """Refused create requests for objects without which the gang cannot run."""
        return tuple(refusal for refusal in self.observed.refusals if refusal.ref.name not in self.auxiliary_names)

    @cached_property
    def secret_is_ours(self) -> bool:
        """Whether the job's Secret belongs to the job. A pod that mounts it proves this, because pods are created
        later."""
        return bool(self.pods) or any(pod.secret == self.secret.name for pod in self.auxiliary_pods)

    @cached_property
    def launcher(self) -> PodView | None:
        """Launcher's pod of the current attempt; None if it does not exist."""
        return next((pod for pod in self.pods if pod.id.role == "launcher"), None)

    @cached_property
    def workers(self) -> tuple[PodView, ...]:
        """Worker pods of the current attempt, by index."""
        return tuple(sorted((pod for pod in self.pods if pod.id.role == "worker"), key=lambda pod: pod.id.index))

    @cached_property
    def report(self) -> LauncherReport | None:
        """Report of the current attempt's launcher; None if it could not be read."""
        report = self.observed.launcher
        return report if report is not None and report.attempt == self.attempt else None

    @cached_property
    def workload(self) -> WorkloadView | None:
        """The job's Workload in Kueue; None if it does not exist."""
        return self.observed.kueue.workload if self.observed.kueue is not None else None

    @cached_property
    def has_workload(self) -> bool:
        """Whether the job waits for the quota of a Workload in Kueue, or runs with that quota."""
        return self.status.ledger.queued_as == "Workload"

    @cached_property
    def is_suspended(self) -> bool:
        """Whether the job is suspended."""
        return self.status.is_true("Suspended")

    @cached_property
    def is_queued(self) -> bool:
        """Whether the job waits in a queue."""
        return self.status.is_true("Queued")

    @cached_property
    def is_without_pods(self) -> bool:
        """Whether the job must have no pods, because it is suspended or waits in a queue."""
        return self.is_suspended or self.is_queued

    @cached_property
    def _placement_attempt(self) -> PlacementAttempt:
        """The current attempt, as the placements need it."""
        ledger, start = self.status.ledger, self.status.ledger.restart_not_before
        is_closed = bool(self.pods) or self.gang_began or self.is_without_pods or self.status.finished
        in_line = ledger.queued_since is not None
        unplaced = (pod.wait.message for pod in self.pods if pod.place.unschedulable_since is not None)
        return PlacementAttempt(
            job=self.job,
            number=self.attempt,
            now=self.now,
            workers=ledger.attempt_workers,
            needed=self.workers_needed,
            scheduler=ledger.gang_scheduler,
            is_open=self.attempt > 0 and not is_closed,
            is_over=self.finished or self.is_without_pods or in_line,
            is_held=bool(self.stale_pods) or in_line or (start is not None and self.now < start),
            unplaced=None if self.placed or self.gang_began else frozenset(unplaced),
        )

    @cached_property
    def queue(self) -> KueuePlacement:
        """Placement of the current attempt by Kueue."""
        return KueuePlacement(self._placement_attempt, self.observed.kueue, self.status.ledger.queued_as)

    @cached_property
    def gang(self) -> GangPlacement:
        """Placement of the current attempt by a gang scheduler."""
        return GangPlacement(self._placement_attempt, self.observed.gangs)

    @cached_property
    def provisioning(self) -> NodesPlacement:
        """Placement of the current attempt on nodes that an autoscaler adds."""
        return NodesPlacement(self._placement_attempt, self.observed.provisioning)

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """Placements of the current attempt, except for Kueue's, in the order in which they are consulted."""
        return (self.provisioning, self.gang)

    @cached_property
    def wanted_workers(self) -> int:
        """Number of workers in the spec, limited to the number that the queue admitted."""
        grant = self._grant("workers")
        return self.job.num_workers if grant is None else min(self.job.num_workers, grant.count)

    def _grant(self, pod_set: str) -> Grant | None:
        """Return Kueue's admission of one pod set of the job; None without an admission."""
        return self.workload.grants.get(pod_set) if self.workload is not None and self.has_workload else None

    @cached_property
    def secret(self) -> ObjectRef:
        """Reference to the Secret with the job's credentials."""
        return ObjectRef("Secret", secret_name(self.job, self.status.ledger.credentials))

    @cached_property
    def world_size(self) -> int:
        """Number of ranks in the current attempt, including those in the launcher's pod, if it runs any."""
        extra_agents = self.job.num_agents - self.job.num_workers
        return (self.status.ledger.attempt_workers + extra_agents) * self.job.spec.slots

    @cached_property
    def wanted_names(self) -> tuple[str, ...]:
        """Names of all pods that the current attempt needs, the launcher's first."""
        return gang_names(self.job, self.status.ledger.attempt_workers)

    @cached_property
    def missing_names(self) -> tuple[str, ...]:
        """Names of pods that the current attempt needs and that do not exist."""
        existing = {pod.id.name for pod in self.pods}
        return tuple(name for name in self.wanted_names if name not in existing)

    @cached_property
    def workers_needed(self) -> int:
        """Number of workers with which the gang can start: all, or the minimum of an elastic job."""
        if self.job.spec.elastic is None:
            return self.status.ledger.attempt_workers
        return min(self.job.min_available - 1, self.status.ledger.attempt_workers)

    @cached_property
    def placed(self) -> bool:
        """Whether the launcher and as many workers as the gang needs for its start have nodes."""
        launcher = self.launcher is not None and bool(self.launcher.place.node)
        return launcher and sum(bool(pod.place.node) for pod in self.workers) >= self.workers_needed

    @cached_property
    def has_world(self) -> bool:
        """Whether this is an elastic job whose ranks have formed a world in the current attempt.

        The phase is not enough: a restarted launcher process reports that it waits for agents although ranks still run.
        """
        world = self.status.elastic
        return self.job.spec.elastic is not None and world is not None and world.formation > 0

    @cached_property
    def gang_began(self) -> bool:
        """Whether the ranks of the current attempt have started. From then on a missing pod is a loss."""
        if self.has_world:
            return True
        if self.launcher is not None and self.launcher.finished:
            failure = failure_in(self.launcher, self.attempt)
            if failure.get("rank") is not None or failure.get("reason") == "AgentLost":
                return True
        if self.report is not None and self.report.phase != "Waiting":
            return True
        return self.status.is_true("Running")

    @cached_property
    def gang_may_have_begun(self) -> bool:
        """Whether the ranks of the current attempt have started, or may have, because all its pods ran before."""
        running = self.status.condition("Running")
        return self.gang_began or (running is not None and running.reason in _ALL_PODS_RUN)
