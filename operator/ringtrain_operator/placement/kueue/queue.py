"""Placement by a queue of Kueue: whether pods may be created, why the job waits, and fields for its pods."""

from dataclasses import dataclass

from ... import contract
from ...spec.job import QUEUE_LABEL, Job
from ..base import Json, PlacementAttempt, PlacementWait
from .view import Grant, KueueView
from .workload import POD_SETS, PRIORITY_LABEL

# Labels and annotations of pods that Kueue queues as a group, without a Workload of the job.
_GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
_GROUP_COUNT_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"
_RETRIABLE_ANNOTATION = "kueue.x-k8s.io/retriable-in-group"


@dataclass(frozen=True)
class KueuePlacement:
    """Placement of an attempt by Kueue.

    `view`: Kueue's API and the job's Workload; None if the operator may not write Workloads. `queued_as`: kind of
    object by which Kueue manages the job.
    """

    attempt: PlacementAttempt
    view: KueueView | None
    queued_as: str | None

    @property
    def holds(self) -> bool:
        """Whether the pods must not be created, because the job's Workload has no quota yet."""
        workload = self.view.workload if self.view is not None else None
        return self.queued_as == "Workload" and not (workload is not None and workload.may_run)

    def waits_for(self) -> PlacementWait:
        """Return why the job waits in its queue, as Kueue reports it."""
        return PlacementWait("WaitingForQueue", f"LocalQueue {self.attempt.job.queue}: {self._words}")

    def marked(self, pod: Json) -> Json:
        """Return the pod with the labels and other fields that Kueue needs."""
        labels, job = pod["metadata"]["labels"], self.attempt.job
        workload = self.view.workload if self.view is not None else None
        grants = workload.grants if workload is not None and self.queued_as == "Workload" else {}
        grant = grants.get(POD_SETS[labels[contract.LABEL_ROLE]])
        if grant is not None:
            return _with_grant(pod, grant)
        if self.queued_as != "PodGroup" or not job.queue:
            return pod
        is_of_gang = contract.LABEL_ATTEMPT in labels
        return _with_group(job, pod, self.attempt) if is_of_gang else _with_queue(job, pod)

    @property
    def _words(self) -> str:
        if self.view is None:
            return "Kueue's Workloads are not served here, or the installation does not allow them"
        if self.view.problem:
            return self.view.problem
        workload = self.view.workload
        if workload is None:
            return "a Workload is being created"
        if workload.foreign:
            return f"Workload {workload.name} exists and belongs to another owner; it is not changed"
        return workload.words


def _with_grant(pod: Json, grant: Grant) -> Json:
    """Return the pod with the fields that Kueue admitted it with. Node labels of the flavor override the template's."""
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


def _with_queue(job: Job, pod: Json) -> Json:
    """Return the pod with the label of the job's queue, by which Kueue admits each such pod individually."""
    labels = pod["metadata"]["labels"]
    labels[QUEUE_LABEL] = job.queue
    if priority := job.labels.get(PRIORITY_LABEL):
        labels[PRIORITY_LABEL] = priority
    return pod


def _with_group(job: Job, pod: Json, attempt: PlacementAttempt) -> Json:
    """Return the pod with labels that make Kueue admit all pods of the attempt together."""
    metadata = _with_queue(job, pod)["metadata"]
    metadata["labels"][_GROUP_LABEL] = attempt.name
    annotations = metadata.setdefault("annotations", {})
    annotations[_GROUP_COUNT_ANNOTATION] = str(attempt.workers + 1)
    if job.spec.elastic is None:
        annotations[_RETRIABLE_ANNOTATION] = "false"  # the next attempt forms another group
    return pod
