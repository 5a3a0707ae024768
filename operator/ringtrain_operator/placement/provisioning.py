"""Nodes for an attempt's pods: a ProvisioningRequest that a cluster autoscaler answers before any pod is made.

Everything follows from the request that exists: one that failed, or that nobody answers, is deleted in its time,
and one that is missing is made. So no operator has to remember what it asked for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ..build import names
from ..build.names import ObjectRef
from ..spec.base import format_time, parse_time
from ..spec.job import Job
from .base import Json, PlacementAttempt, PlacementWait, weighed_template

AUTOSCALER_GROUP = "autoscaling.x-k8s.io"
# After a failure the same is asked for again, which costs an autoscaler a simulation.
ASK_AGAIN_S = 60
# By these a pod takes what was made for it, and makes the autoscaler look for nothing more.
_REQUEST_ANNOTATION = f"{AUTOSCALER_GROUP}/consume-provisioning-request"
_CLASS_ANNOTATION = f"{AUTOSCALER_GROUP}/provisioning-class-name"
_POD_SETS = ("launcher", "workers")
# With any of these the request is of no use any more; nothing of it changes back.
_OVER = ("Failed", "CapacityRevoked", "BookingExpired")


@dataclass(frozen=True)
class RequestView:
    """A ProvisioningRequest of the job. `counts`: pods of its pod sets. `words`: what the autoscaler says last.

    `provisioned`: the nodes are there. `over_since`: since when it has failed, or what it was given is taken back.
    """

    ref: ObjectRef
    uid: str
    created: datetime
    counts: tuple[int, ...] = ()
    provisioned: bool = False
    over_since: datetime | None = None
    words: str = ""
    ending: bool = False


@dataclass(frozen=True)
class ProvisioningView:
    """Where nodes may be asked for. `allowed`: by the installation. `version`: of the autoscaler's API; empty:
    there is none. `requests` and `templates`, with their uids, are the job's.
    """

    allowed: bool = False
    version: str = ""
    requests: tuple[RequestView, ...] = ()
    templates: Mapping[ObjectRef, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodesPlacement:
    """The nodes that are asked for an attempt. `view`: None where pods have no nodes, as on one machine."""

    attempt: PlacementAttempt
    view: ProvisioningView | None

    @property
    def holds(self) -> bool:
        """Whether the pods are held back until there are nodes for them."""
        attempt = self.attempt
        if attempt.job.spec.scheduling.provisioning is None or self.view is None or not attempt.is_open:
            return False
        if attempt.is_held:
            return False
        request = self._request
        return bool(self._problem) or request is None or request.ending or not request.provisioned

    def waits_for(self) -> PlacementWait | None:
        """What a job that waits for nodes waits for, in the autoscaler's words where it has any."""
        if not self.holds:
            return None
        if problem := self._problem:
            return PlacementWait("ProvisioningUnavailable", problem)
        request, wanted = self._request, self.attempt.job.spec.scheduling.provisioning
        name = f"ProvisioningRequest {self.attempt.name} ({wanted.class_name if wanted else ''})"
        if request is None or request.ending:
            return PlacementWait("WaitingForCapacity", f"{name} is being made")
        words, again = request.words or "the autoscaler has not looked at it yet", self._withdrawn_at(request)
        if request.over_since is not None and again is not None:
            return PlacementWait("NoCapacity", f"{name}: {words}; asked again at {format_time(again)}")
        return PlacementWait("WaitingForCapacity", f"{name}: {words}")

    def wakes(self) -> tuple[datetime, ...]:
        """When to look again if no autoscaler answers, or if there is none."""
        if not self.holds:
            return ()
        if self._problem:
            return (self.attempt.next_look,)
        request = self._request
        due = self._withdrawn_at(request) if request is not None and not request.ending else None
        return (due,) if due is not None and due > self.attempt.now else ()

    def missing(self, pods: Mapping[str, Json]) -> tuple[Json, ...]:
        """What the autoscaler is not told yet: templates, and then the request. `pods`: one of each set."""
        view, wanted, job = self.view, self.attempt.job.spec.scheduling.provisioning, self.attempt.job
        if view is None or wanted is None or self._problem:
            return ()
        templates = tuple(
            build_pod_template(job, name, pods[pod_set])
            for pod_set, name in self._templates.items()
            if ObjectRef("PodTemplate", name) not in view.templates
        )
        if self._request is not None:
            return templates
        pod_sets = [
            {"podTemplateRef": {"name": name}, "count": count}
            for name, count in zip(self._templates.values(), self._counts, strict=True)
        ]
        spec: Json = {"provisioningClassName": wanted.class_name, "podSets": pod_sets}
        if wanted.parameters:
            spec["parameters"] = dict(wanted.parameters)
        metadata = names.metadata(job, self.attempt.name, names.job_labels(job))
        request = {"apiVersion": view.version, "kind": "ProvisioningRequest", "metadata": metadata, "spec": spec}
        return (*templates, request)

    def marked(self, pod: Json) -> Json:
        """The pod as one that takes the nodes which were asked for."""
        wanted = self.attempt.job.spec.scheduling.provisioning
        if wanted is not None and self.view is not None:
            annotations = pod["metadata"].setdefault("annotations", {})
            annotations[_REQUEST_ANNOTATION] = self.attempt.name
            annotations[_CLASS_ANNOTATION] = wanted.class_name
        return pod

    def unwanted(self) -> Iterator[tuple[ObjectRef, str]]:
        """Requests and templates of attempts that are over or are to have no pods, and a request of no use."""
        if self.view is None:
            return
        for request in self.view.requests:
            if not request.ending and not self._is_of_use(request):
                yield request.ref, request.uid
        present = self._templates.values() if self.view.allowed and self._is_wanted else ()
        yield from ((ref, uid) for ref, uid in self.view.templates.items() if ref.name not in present)

    @property
    def _templates(self) -> dict[str, str]:
        """Names of the PodTemplates by pod set."""
        return {pod_set: f"{self.attempt.name}-{pod_set}" for pod_set in _POD_SETS}

    @property
    def _counts(self) -> tuple[int, ...]:
        """Pods of the launcher's and of the workers' pod set."""
        return (1, self.attempt.workers)

    @property
    def _is_wanted(self) -> bool:
        """Whether the attempt is to have pods, on nodes that are asked for."""
        return not self.attempt.is_over and self.attempt.job.spec.scheduling.provisioning is not None

    @property
    def _request(self) -> RequestView | None:
        """The attempt's request."""
        requests = self.view.requests if self.view is not None else ()
        return next((one for one in requests if one.ref.name == self.attempt.name), None)

    @property
    def _problem(self) -> str:
        """Why nobody can be asked for nodes; empty: somebody can."""
        if self.view is None or self.attempt.job.spec.scheduling.provisioning is None:
            return ""
        if not self.view.allowed:
            return (
                "scheduling.provisioning is set, which this installation does not allow: set provisioning.enabled "
                "in the operator's chart, or remove it"
            )
        if not self.view.version:
            return (
                "scheduling.provisioning is set, and the API server has no ProvisioningRequests of "
                f"{AUTOSCALER_GROUP}: install the cluster autoscaler's CRD, or remove it"
            )
        return ""

    def _is_of_use(self, request: RequestView) -> bool:
        """Whether the attempt's pods take what it gives, or may yet."""
        if not self._is_wanted or request.ref.name != self.attempt.name:
            return False
        if not self.attempt.is_open:
            return True
        due = self._withdrawn_at(request)
        return request.counts == self._counts and (due is None or self.attempt.now < due)

    def _withdrawn_at(self, request: RequestView) -> datetime | None:
        """When a request that got no nodes is withdrawn, and made anew; None: it got some."""
        wanted = self.attempt.job.spec.scheduling.provisioning
        if request.over_since is not None:
            return request.over_since + timedelta(seconds=ASK_AGAIN_S)
        if request.provisioned or wanted is None:
            return None
        return request.created + timedelta(seconds=wanted.timeout_seconds)


def build_pod_template(job: Job, name: str, pod: Json) -> Json:
    """The PodTemplate of pods like this one, as far as an autoscaler weighs them."""
    metadata = names.metadata(job, name, names.job_labels(job))
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": weighed_template(pod)}


def view_request(request: Mapping[str, Any], api_version: str) -> RequestView:
    """What `plan` needs of a ProvisioningRequest of ours, read in `api_version`."""
    meta, status = request["metadata"], request.get("status") or {}
    said = {str(c.get("type")): c for c in status.get("conditions") or ()}
    over = next((said[kind] for kind in _OVER if _is_provisioning_true(said.get(kind))), None)
    created = parse_time(meta.get("creationTimestamp")) or datetime.fromtimestamp(0, UTC)
    last = over or said.get("Provisioned") or said.get("Accepted") or {}
    # `Failed: CapacityIsNotFound: 2 nodes are missing`
    words = ": ".join(str(part) for part in map(last.get, ("type", "reason", "message")) if part)
    return RequestView(
        ref=ObjectRef("ProvisioningRequest", str(meta["name"]), api_version),
        uid=str(meta.get("uid") or ""),
        created=created,
        counts=tuple(int(one.get("count") or 0) for one in request["spec"].get("podSets") or ()),
        provisioned=over is None and _is_provisioning_true(said.get("Provisioned")),
        over_since=(parse_time(over.get("lastTransitionTime")) or created) if over is not None else None,
        words=words,
        ending="deletionTimestamp" in meta,
    )


def _is_provisioning_true(condition: Mapping[str, Any] | None) -> bool:
    return condition is not None and condition.get("status") == "True"
