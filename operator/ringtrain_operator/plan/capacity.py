"""Nodes for an attempt's pods: a ProvisioningRequest that a cluster autoscaler answers before any pod is made.

Everything follows from the request that exists: one that failed, or that nobody answers, is deleted in its time,
and one that is missing is made. So no operator has to remember what it asked for.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from .. import build
from ..build import Settings
from ..build.names import ObjectRef
from ..observe.model import CapacityView, RequestView
from ..placement import provisioning
from ..status.capacity import awaits_capacity, capacity_problem, present_request, withdrawn_at
from ..status.gang import is_open
from ..status.situation import Situation
from .gangs import LOOK_AGAIN_S, in_gang
from .result import Deletion

_POD_SETS = ("launcher", "workers")


def wakes_for_capacity(s: Situation) -> tuple[datetime, ...]:
    """When to look again if no autoscaler answers, or if there is none."""
    if not awaits_capacity(s):
        return ()
    if capacity_problem(s):
        return (s.now + timedelta(seconds=LOOK_AGAIN_S),)
    request = present_request(s)
    due = withdrawn_at(s, request) if request is not None and not request.ending else None
    return (due,) if due is not None and due > s.now else ()


def missing_request(s: Situation, settings: Settings) -> tuple[dict[str, Any], ...]:
    """What the autoscaler is still to be told for the present attempt: templates, and then the request."""
    view, wanted = s.observed.capacity, s.job.spec.scheduling.provisioning
    if view is None or wanted is None or capacity_problem(s):
        return ()
    secret = s.secret.name
    pods = {
        "launcher": build.build_launcher_pod(s.job, s.attempt, secret, settings),
        "workers": build.build_worker_pod(s.job, s.attempt, 0, secret, settings=settings),
    }
    templates = tuple(
        provisioning.build_pod_template(s.job, s.attempt, pod_set, in_gang(s, pods[pod_set]))
        for pod_set in _POD_SETS
        if ObjectRef("PodTemplate", provisioning.template_name(s.job, s.attempt, pod_set)) not in view.templates
    )
    if present_request(s) is not None:
        return templates
    counts = dict(zip(_POD_SETS, _counts(s), strict=True))
    return (*templates, provisioning.build_request(s.job, s.attempt, view.version, wanted, counts))


def on_provisioned(s: Situation, pod: dict[str, Any]) -> dict[str, Any]:
    """The launcher's or a worker's pod as one that takes the nodes which were asked for."""
    wanted = s.job.spec.scheduling.provisioning
    if wanted is None or s.observed.capacity is None:
        return pod
    return provisioning.on_provisioned(s.job, pod, s.attempt, wanted)


def unwanted_requests(s: Situation) -> tuple[Deletion, ...]:
    """Requests and templates of attempts that are over or are to have no pods, and a request that is of no use."""
    view = s.observed.capacity
    if view is None:
        return ()
    requests = (one for one in view.requests if not one.ending and not _is_of_use(s, one))
    templates = (Deletion(ref, uid) for ref, uid in view.templates.items() if not _is_present(s, ref, view))
    return (*(Deletion(one.ref, one.uid) for one in requests), *templates)


def _is_of_use(s: Situation, request: RequestView) -> bool:
    """Whether the present attempt's pods take what it gives, or may yet."""
    if not _wanted(s) or request.ref.name != provisioning.request_name(s.job, s.attempt):
        return False
    if not is_open(s):
        return True
    due = withdrawn_at(s, request)
    return request.counts == _counts(s) and (due is None or s.now < due)


def _is_present(s: Situation, template: ObjectRef, view: CapacityView) -> bool:
    names = (provisioning.template_name(s.job, s.attempt, pod_set) for pod_set in _POD_SETS)
    return view.allowed and _wanted(s) and template.name in names


def _wanted(s: Situation) -> bool:
    """Whether the present attempt is to have pods, on nodes that are asked for."""
    over = s.status.finished or s.is_without_pods or s.status.ledger.queued_since is not None
    return not over and s.job.spec.scheduling.provisioning is not None


def _counts(s: Situation) -> tuple[int, ...]:
    """Pods of the launcher's and of the workers' pod set."""
    return (1, s.status.ledger.attempt_workers)
