"""Whether a job waits for nodes that a cluster autoscaler was asked for, and in whose words."""

from __future__ import annotations

from datetime import datetime, timedelta

from ..observe.model import RequestView
from ..placement.provisioning import AUTOSCALER_GROUP, request_name
from .gang import is_open
from .model import ConditionChange, format_time
from .situation import Situation

# After a failure the same is asked for again, which costs an autoscaler a simulation.
ASK_AGAIN_S = 60


def awaits_capacity(s: Situation) -> bool:
    """Whether the present attempt's pods are held back until there are nodes for them."""
    if s.job.spec.scheduling.provisioning is None or s.observed.capacity is None or not is_open(s):
        return False
    start = s.status.ledger.restart_not_before
    if s.stale_pods or s.status.ledger.queued_since is not None or (start is not None and s.now < start):
        return False
    request = present_request(s)
    return bool(capacity_problem(s)) or request is None or request.ending or not request.provisioned


def capacity_problem(s: Situation) -> str:
    """Why nobody can be asked for nodes; empty: somebody can."""
    view = s.observed.capacity
    if view is None or s.job.spec.scheduling.provisioning is None:
        return ""
    if not view.allowed:
        return (
            "scheduling.provisioning is set, which this installation does not allow: set provisioning.enabled in "
            "the operator's chart, or remove it"
        )
    if not view.version:
        return (
            "scheduling.provisioning is set, and the API server has no ProvisioningRequests of "
            f"{AUTOSCALER_GROUP}: install the cluster autoscaler's CRD, or remove it"
        )
    return ""


def present_request(s: Situation) -> RequestView | None:
    """The present attempt's request."""
    name, view = request_name(s.job, s.attempt), s.observed.capacity
    return next((one for one in (view.requests if view is not None else ()) if one.ref.name == name), None)


def withdrawn_at(s: Situation, request: RequestView) -> datetime | None:
    """When a request that got no nodes is withdrawn, and made anew; None: it got some."""
    wanted = s.job.spec.scheduling.provisioning
    if request.over_since is not None:
        return request.over_since + timedelta(seconds=ASK_AGAIN_S)
    if request.provisioned or wanted is None:
        return None
    return request.created + timedelta(seconds=wanted.timeout_seconds)


def waiting_for_capacity(s: Situation) -> ConditionChange | None:
    """What a job that waits for nodes waits for, in the autoscaler's words where it has any."""
    if not awaits_capacity(s):
        return None
    if problem := capacity_problem(s):
        return ConditionChange("Running", "False", "ProvisioningUnavailable", problem)
    request, wanted = present_request(s), s.job.spec.scheduling.provisioning
    name = f"ProvisioningRequest {request_name(s.job, s.attempt)} ({wanted.class_name if wanted else ''})"
    if request is None or request.ending:
        return ConditionChange("Running", "False", "WaitingForCapacity", f"{name} is being made")
    words, again = request.words or "the autoscaler has not looked at it yet", withdrawn_at(s, request)
    if request.over_since is not None and again is not None:
        words += f"; asked again at {format_time(again)}"
        return ConditionChange("Running", "False", "NoCapacity", f"{name}: {words}")
    return ConditionChange("Running", "False", "WaitingForCapacity", f"{name}: {words}")
