"""Nodes from a cluster autoscaler: a ProvisioningRequest that it must answer before pods are created.

All decisions follow from the existing request: one that failed or is unanswered is deleted after a timeout, and a
missing one is created. So the operator does not need to store what it requested.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ..build import names
from ..build.names import ObjectRef
from ..spec.base import format_time, parse_time
from ..spec.job import Job
from .base import Json, PlacementAttempt, PlacementWait, reduced_template

AUTOSCALER_GROUP = "autoscaling.x-k8s.io"
# Delay before a failed request is repeated; each one costs the autoscaler a simulation.
ASK_AGAIN_S = 60
# Annotations by which a pod uses the provisioned nodes and does not trigger further scale-up.
_REQUEST_ANNOTATION = f"{AUTOSCALER_GROUP}/consume-provisioning-request"
_CLASS_ANNOTATION = f"{AUTOSCALER_GROUP}/provisioning-class-name"
_POD_SETS = ("launcher", "workers")
# Conditions that end a request permanently.
_OVER = ("Failed", "CapacityRevoked", "BookingExpired")


@dataclass(frozen=True)
class RequestView:
    """A ProvisioningRequest of the job. `counts`: pods per pod set. `words`: the autoscaler's last message.

    `provisioned`: whether the nodes exist. `over_since`: time at which the request failed or lost its capacity.
    `ending`: whether the request is being deleted.
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
    """The autoscaler's API in this cluster (version, permission), and the job's requests and PodTemplates.

    `allowed`: whether the installation permits requests. `version`: version of the API; empty if the cluster does not
    serve the API. `requests` and `templates` (with uids) belong to the job.
    """

    allowed: bool = False
    version: str = ""
    requests: tuple[RequestView, ...] = ()
    templates: Mapping[ObjectRef, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodesPlacement:
    """Placement of an attempt on nodes that an autoscaler adds for it. `view`: None outside a cluster."""

    attempt: PlacementAttempt
    view: ProvisioningView | None

    @property
    def holds(self) -> bool:
        """Whether the pods must not be created, because the requested nodes do not exist yet."""
        attempt = self.attempt
        if attempt.job.spec.scheduling.provisioning is None or self.view is None or not attempt.is_open:
            return False
        if attempt.is_held:
            return False
        request = self._request
        return bool(self._problem) or request is None or request.ending or not request.provisioned

    def waits_for(self) -> PlacementWait | None:
        """Return why no nodes exist for the job yet, as the autoscaler reports it; None if it does not wait."""
        if not self.holds:
            return None
        if problem := self._problem:
            return PlacementWait("ProvisioningUnavailable", problem)
        request, wanted = self._request, self.attempt.job.spec.scheduling.provisioning
        name = f"ProvisioningRequest {self.attempt.name} ({wanted.class_name if wanted else ''})"
        if request is None or request.ending:
            return PlacementWait("WaitingForCapacity", f"{name} is being created")
        words, again = request.words or "the autoscaler has not processed it yet", self._withdrawn_at(request)
        if request.over_since is not None and again is not None:
            return PlacementWait("NoCapacity", f"{name}: {words}; it is requested again at {format_time(again)}")
        return PlacementWait("WaitingForCapacity", f"{name}: {words}")

    def requeue_times(self) -> tuple[datetime, ...]:
        """Return the time of the next check of an unsuccessful request, or of a missing autoscaler."""
        if not self.holds:
            return ()
        if self._problem:
            return (self.attempt.next_check,)
        request = self._request
        due = self._withdrawn_at(request) if request is not None and not request.ending else None
        return (due,) if due is not None and due > self.attempt.now else ()

    def missing(self, pods: Mapping[str, Json]) -> tuple[Json, ...]:
        """Return the PodTemplates and the request to create. `pods`: one pod of each pod set."""
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
        """Return the pod with annotations that let it run on the requested nodes."""
        wanted = self.attempt.job.spec.scheduling.provisioning
        if wanted is not None and self.view is not None:
            annotations = pod["metadata"].setdefault("annotations", {})
            annotations[_REQUEST_ANNOTATION] = self.attempt.name
            annotations[_CLASS_ANNOTATION] = wanted.class_name
        return pod

    def unwanted(self) -> Iterator[tuple[ObjectRef, str]]:
        """Yield the requests and PodTemplates to delete, each with its uid, because the current attempt cannot use
        them."""
        if self.view is None:
            return
        for request in self.view.requests:
            if not request.ending and not self._is_of_use(request):
                yield request.ref, request.uid
        present = self._templates.values() if self.view.allowed and self._is_wanted else ()
        yield from ((ref, uid) for ref, uid in self.view.templates.items() if ref.name not in present)

    @property
    def _templates(self) -> dict[str, str]:
        """Name of the PodTemplate of each pod set."""
        return {pod_set: f"{self.attempt.name}-{pod_set}" for pod_set in _POD_SETS}

    @property
    def _counts(self) -> tuple[int, ...]:
        """Numbers of pods of launcher and workers, in this order."""
        return (1, self.attempt.workers)

    @property
    def _is_wanted(self) -> bool:
        """Whether the attempt's pods are to run on requested nodes."""
        return not self.attempt.is_over and self.attempt.job.spec.scheduling.provisioning is not None

    @property
    def _request(self) -> RequestView | None:
        """ProvisioningRequest of the current attempt; None if it does not exist."""
        requests = self.view.requests if self.view is not None else ()
        return next((one for one in requests if one.ref.name == self.attempt.name), None)

    @property
    def _problem(self) -> str:
        """Reason why nodes cannot be requested; empty if they can."""
        if self.view is None or self.attempt.job.spec.scheduling.provisioning is None:
            return ""
        if not self.view.allowed:
            return (
                "scheduling.provisioning is set, but this installation does not allow it: set provisioning.enabled "
                "in the operator's chart, or remove it"
            )
        if not self.view.version:
            return (
                "scheduling.provisioning is set, but the API server has no ProvisioningRequests of "
                f"{AUTOSCALER_GROUP}: install the cluster autoscaler's CRD, or remove it"
            )
        return ""

    def _is_of_use(self, request: RequestView) -> bool:
        """Return whether the current attempt's pods use this request, or may still use it."""
        if not self._is_wanted or request.ref.name != self.attempt.name:
            return False
        if not self.attempt.is_open:
            return True
        due = self._withdrawn_at(request)
        return request.counts == self._counts and (due is None or self.attempt.now < due)

    def _withdrawn_at(self, request: RequestView) -> datetime | None:
        """Return when a request without success is deleted, to create it again; None if it was successful."""
        wanted = self.attempt.job.spec.scheduling.provisioning
        if request.over_since is not None:
            return request.over_since + timedelta(seconds=ASK_AGAIN_S)
        if request.provisioned or wanted is None:
            return None
        return request.created + timedelta(seconds=wanted.timeout_seconds)


def build_pod_template(job: Job, name: str, pod: Json) -> Json:
    """Return a PodTemplate for pods such as `pod`, with only the fields that an autoscaler needs."""
    metadata = names.metadata(job, name, names.job_labels(job))
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": reduced_template(pod)}


def view_request(request: Mapping[str, Any], api_version: str) -> RequestView:
    """Parse a ProvisioningRequest of the job. `api_version`: version in which it was read."""
    meta, status = request["metadata"], request.get("status") or {}
    conditions = {str(c.get("type")): c for c in status.get("conditions") or ()}
    over = next((conditions[kind] for kind in _OVER if _is_provisioning_true(conditions.get(kind))), None)
    created = parse_time(meta.get("creationTimestamp")) or datetime.fromtimestamp(0, UTC)
    last = over or conditions.get("Provisioned") or conditions.get("Accepted") or {}
    # `Failed: CapacityIsNotFound: 2 nodes are missing`
    words = ": ".join(str(part) for part in map(last.get, ("type", "reason", "message")) if part)
    return RequestView(
        ref=ObjectRef("ProvisioningRequest", str(meta["name"]), api_version),
        uid=str(meta.get("uid") or ""),
        created=created,
        counts=tuple(int(one.get("count") or 0) for one in request["spec"].get("podSets") or ()),
        provisioned=over is None and _is_provisioning_true(conditions.get("Provisioned")),
        over_since=(parse_time(over.get("lastTransitionTime")) or created) if over is not None else None,
        words=words,
        ending="deletionTimestamp" in meta,
    )


def _is_provisioning_true(condition: Mapping[str, Any] | None) -> bool:
    return condition is not None and condition.get("status") == "True"
