"""A job in its queue: whether its pods may be made, what it waits for, and what Kueue wants its pods to say."""

from dataclasses import dataclass

from ... import contract
from ...spec.job import QUEUE_LABEL, Job
from ..base import Json, PlacementAttempt, PlacementWait
from .view import Grant, KueueView
from .workload import POD_SETS, PRIORITY_LABEL

# Of the pods of a group that Kueue queues without a Workload of ours.
_GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
_GROUP_COUNT_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"
_RETRIABLE_ANNOTATION = "kueue.x-k8s.io/retriable-in-group"


@dataclass(frozen=True)
class KueuePlacement:
    """An attempt in its queue. `view`: None where there are no Workloads. `queued_as`: how Kueue knows the job."""

    attempt: PlacementAttempt
    view: KueueView | None
    queued_as: str | None

    @property
    def holds(self) -> bool:
        """Whether the pods wait for quota of the job's Workload."""
        workload = self.view.workload if self.view is not None else None
        return self.queued_as == "Workload" and not (workload is not None and workload.may_run)

    def waits_for(self) -> PlacementWait:
        """What a job in a queue waits for, in Kueue's words where it has any."""
        return PlacementWait("WaitingForQueue", f"LocalQueue {self.attempt.job.queue}: {self._words}")

    def marked(self, pod: Json) -> Json:
        """The pod with what the job's queue adds to it."""
        labels, job = pod["metadata"]["labels"], self.attempt.job
        workload = self.view.workload if self.view is not None else None
        grants = workload.grants if workload is not None and self.queued_as == "Workload" else {}
        grant = grants.get(POD_SETS[labels[contract.LABEL_ROLE]])
        if grant is not None:
            return _kueue_granted(pod, grant)
        if self.queued_as != "PodGroup" or not job.queue:
            return pod
        is_of_gang = contract.LABEL_ATTEMPT in labels
        return _kueue_grouped(job, pod, self.attempt) if is_of_gang else _queued_alone(job, pod)

    @property
    def _words(self) -> str:
        if self.view is None:
            return "Kueue's Workloads are not served here, or the installation does not allow them"
        if self.view.problem:
            return self.view.problem
        workload = self.view.workload
        if workload is None:
            return "a Workload is being made"
        if workload.foreign:
            return f"Workload {workload.name} exists and belongs to another; it is left alone"
        return workload.words


def _kueue_granted(pod: Json, grant: Grant) -> Json:
    """The pod with what its admission adds: the flavor's nodes before the template's wishes."""
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["labels"] = {**grant.labels, **metadata["labels"]}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **grant.annotations}
    if grant.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **grant.node_selector}
    own = list(spec.get("tolerations") or ())
    if new := [dict(t) for t in grant.tolerations if t not in own]:
        spec["tolerations"] = [*own, *new]
    gates = list(spec.get("schedulingGates") or ())
    if new := [{"name": name} for name in grant.gates if {"name": name} not in gates]:
        spec["schedulingGates"] = [*gates, *new]
    return pod


def _queued_alone(job: Job, pod: Json) -> Json:
    """The pod as one that Kueue admits by itself: it is replaced at will, and no group waits for it."""
    labels = pod["metadata"]["labels"]
    labels[QUEUE_LABEL] = job.queue
    if priority := job.labels.get(PRIORITY_LABEL):
        labels[PRIORITY_LABEL] = priority
    return pod


def _kueue_grouped(job: Job, pod: Json, attempt: PlacementAttempt) -> Json:
    """The pod as one of the attempt's, which Kueue admits together."""
    metadata = _queued_alone(job, pod)["metadata"]
    metadata["labels"][_GROUP_LABEL] = attempt.name
    annotations = metadata.setdefault("annotations", {})
    annotations[_GROUP_COUNT_ANNOTATION] = str(attempt.workers + 1)
    if job.spec.elastic is None:
        annotations[_RETRIABLE_ANNOTATION] = "false"  # the next attempt is another group
    return pod
