"""One job at one moment: what every policy looks at."""

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

# Reasons of Running=False that are said when all pods of the attempt run.
_ALL_PODS_RUN = frozenset({"WaitingForAgents", "WaitingForLauncher", "LauncherUnreadable"})


@dataclass(frozen=True)
class Situation:
    """A job, what exists for it, what its status says, and the time.

    What follows from these is worked out once: what policies ask of every job at the beginning, the rest when a
    policy asks for it.
    """

    job: Job
    observed: Observed
    status: JobStatus
    now: datetime

    def __post_init__(self) -> None:
        _ = self.attempt, self.finished, self.is_suspended, self.is_queued, self.is_without_pods
        _ = self.pods, self.stale_pods, self.launcher, self.workers, self.missing_names
        _ = self.lasting_names, self.lasting_pods, self.secret, self.secret_is_ours
        _ = self.report, self.has_world, self.gang_began
        _ = self.has_workload, self.workload, self.wanted_workers, self.queue, self.placements

    @cached_property
    def attempt(self) -> int:
        """The present attempt; 0 before the first."""
        return self.status.attempt

    @cached_property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return self.status.finished

    @cached_property
    def pods(self) -> tuple[PodView, ...]:
        """The gang's pods of the present attempt."""
        return tuple(pod for pod in self.observed.gang_pods if pod.id.attempt == self.attempt)

    @cached_property
    def stale_pods(self) -> tuple[PodView, ...]:
        """The gang's pods of other attempts; the present one starts when they are gone."""
        return tuple(pod for pod in self.observed.gang_pods if pod.id.attempt != self.attempt)

    @cached_property
    def lasting_pods(self) -> tuple[PodView, ...]:
        """Data workers and the evaluator, by index."""
        return self.observed.lasting_pods

    @cached_property
    def evaluator(self) -> PodView | None:
        """The evaluator's pod."""
        return next((pod for pod in self.lasting_pods if pod.id.role == "evaluator"), None)

    @cached_property
    def wanted_data_workers(self) -> int:
        """Data workers that are wanted now: no more than the queue admitted."""
        data, scale = self.job.spec.data_workers, self.status.ledger.data_scale
        if data is None:
            return 0
        wanted = scale.replicas if data.autoscale is not None and scale is not None else data.replicas
        grant = self._granted("data")
        return wanted if grant is None else min(wanted, grant.count)

    @cached_property
    def lasting_names(self) -> tuple[str, ...]:
        """Names of the pods beside the gang that are wanted now."""
        data = tuple(data_worker_name(self.job, index) for index in range(self.wanted_data_workers))
        return data if self.job.spec.evaluator is None else (*data, evaluator_name(self.job))

    @cached_property
    def gang_refusals(self) -> tuple[Refusal, ...]:
        """Creations that the API refused and without which the gang does not run."""
        return tuple(refusal for refusal in self.observed.refusals if refusal.ref.name not in self.lasting_names)

    @cached_property
    def secret_is_ours(self) -> bool:
        """Whether a pod of the job mounts its Secret: pods are made after their Secret, so it is the job's own."""
        return bool(self.pods) or any(pod.secret == self.secret.name for pod in self.lasting_pods)

    @cached_property
    def launcher(self) -> PodView | None:
        """The present attempt's launcher."""
        return next((pod for pod in self.pods if pod.id.role == "launcher"), None)

    @cached_property
    def workers(self) -> tuple[PodView, ...]:
        """The present attempt's workers, by index."""
        return tuple(sorted((pod for pod in self.pods if pod.id.role == "worker"), key=lambda pod: pod.id.index))

    @cached_property
    def report(self) -> LauncherReport | None:
        """What the present attempt's launcher says, if it could be asked."""
        report = self.observed.launcher
        return report if report is not None and report.attempt == self.attempt else None

    @cached_property
    def workload(self) -> WorkloadView | None:
        """The job's Workload, if Kueue has one."""
        return self.observed.kueue.workload if self.observed.kueue is not None else None

    @cached_property
    def has_workload(self) -> bool:
        """Whether the job waits for, or runs on, the quota of a Workload."""
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
        """Whether the job is suspended or waits in a queue: its pods are deleted, and none is made."""
        return self.is_suspended or self.is_queued

    @cached_property
    def _to_place(self) -> PlacementAttempt:
        """The present attempt, as those see it who place its pods."""
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
        """The present attempt in its queue."""
        return KueuePlacement(self._to_place, self.observed.kueue, self.status.ledger.queued_as)

    @cached_property
    def gang(self) -> GangPlacement:
        """The present attempt's pods as a gang scheduler places them."""
        return GangPlacement(self._to_place, self.observed.gangs)

    @cached_property
    def provisioning(self) -> NodesPlacement:
        """The nodes that are asked for the present attempt."""
        return NodesPlacement(self._to_place, self.observed.provisioning)

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """All who have a say in where the present attempt's pods run, who is asked first."""
        return (self.provisioning, self.gang)

    @cached_property
    def wanted_workers(self) -> int:
        """Workers that the spec asks for, or as many as the queue admitted, if these are fewer."""
        grant = self._granted("workers")
        return self.job.num_workers if grant is None else min(self.job.num_workers, grant.count)

    def _granted(self, pod_set: str) -> Grant | None:
        """What the admission of the job's Workload gives to the pods of a pod set."""
        return self.workload.grants.get(pod_set) if self.workload is not None and self.has_workload else None

    @cached_property
    def secret(self) -> ObjectRef:
        """The Secret with the job's credentials."""
        return ObjectRef("Secret", secret_name(self.job, self.status.ledger.credentials))

    @cached_property
    def world_size(self) -> int:
        """Ranks of the present attempt, those of a launcher that is a worker, too, among them."""
        extra_agents = self.job.num_agents - self.job.num_workers
        return (self.status.ledger.attempt_workers + extra_agents) * self.job.spec.slots

    @cached_property
    def wanted_names(self) -> tuple[str, ...]:
        """Names of the present attempt's pods, the launcher first."""
        return gang_names(self.job, self.status.ledger.attempt_workers)

    @cached_property
    def missing_names(self) -> tuple[str, ...]:
        """Names of the present attempt's pods that do not exist."""
        existing = {pod.id.name for pod in self.pods}
        return tuple(name for name in self.wanted_names if name not in existing)

    @cached_property
    def workers_needed(self) -> int:
        """Workers without which the gang can't begin: all, or as many as an elastic job says."""
        if self.job.spec.elastic is None:
            return self.status.ledger.attempt_workers
        return min(self.job.min_available - 1, self.status.ledger.attempt_workers)

    @cached_property
    def placed(self) -> bool:
        """Whether the launcher and as many workers as the gang needs have found a node."""
        launcher = self.launcher is not None and bool(self.launcher.place.node)
        return launcher and sum(bool(pod.place.node) for pod in self.workers) >= self.workers_needed

    @cached_property
    def has_world(self) -> bool:
        """Whether this is an elastic job whose present attempt has had a world, whatever its launcher says now.

        A launcher whose process came back waits for the agents of ranks that run.
        """
        world = self.status.elastic
        return self.job.spec.elastic is not None and world is not None and world.formation > 0

    @cached_property
    def gang_began(self) -> bool:
        """Whether the present attempt's ranks have started; from then on a pod that is gone is a loss."""
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
        """Whether the present attempt's ranks have started, or may have: all its pods ran at an earlier look, and
        its launcher is asked only now and then, if it can be reached at all."""
        running = self.status.condition("Running")
        return self.gang_began or (running is not None and running.reason in _ALL_PODS_RUN)


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
