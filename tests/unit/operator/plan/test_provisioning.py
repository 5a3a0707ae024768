"""Nodes are asked for before an attempt's pods are made, and nothing that asks for nodes is left behind."""

from typing import Any

import pytest
from support.jobs import job
from support.planworld import World, condition

from ringtrain_operator.errors import Invalid
from ringtrain_operator.placement.provisioning import ASK_AGAIN_S, ProvisioningView
from ringtrain_operator.spec.parse import parse_job

Json = dict[str, Any]
THERE = ProvisioningView(allowed=True, version="autoscaling.x-k8s.io/v1")
CLASS = "check-capacity.autoscaling.x-k8s.io"
NAME = "digits-0a1b2c3d-1"


def world(view: ProvisioningView | None = THERE, *, wanted: Json | None = None, **spec: Any) -> World:
    """A job that was just created and asks for nodes."""
    scheduling = {"provisioning": {"className": CLASS, **(wanted or {})}}
    w = World(job(scheduling=scheduling, **spec), autoscaler=view)
    w.settle()
    return w


def kinds(w: World) -> list[str]:
    """Kinds of what the job has besides pods for the autoscaler."""
    return sorted(ref.kind for ref in w.asked)


def request(w: World) -> Json:
    """The job's only request."""
    (found,) = (obj for ref, obj in w.asked.items() if ref.kind == "ProvisioningRequest")
    return found


def test_a_request_for_launcher_and_workers() -> None:
    """Class and parameters as they are; a template and a count for each of both; no pod before the answer."""
    w = world(wanted={"parameters": {"ValidUntilSeconds": "600"}})
    assert request(w)["metadata"]["name"] == NAME
    assert request(w)["spec"] == {
        "provisioningClassName": CLASS,
        "parameters": {"ValidUntilSeconds": "600"},
        "podSets": [
            {"podTemplateRef": {"name": f"{NAME}-launcher"}, "count": 1},
            {"podTemplateRef": {"name": f"{NAME}-workers"}, "count": 2},
        ],
    }
    templates = {ref.name: obj for ref, obj in w.asked.items() if ref.kind == "PodTemplate"}
    assert sorted(templates) == [f"{NAME}-launcher", f"{NAME}-workers"]
    for made in w.asked.values():
        assert made["metadata"]["ownerReferences"][0]["uid"] == w.job["metadata"]["uid"]
    assert (w.pods, w.status.state) == ({}, "Queued")


def test_pods_are_made_when_the_nodes_are_there_and_take_them() -> None:
    """Each names the request and its class; the request stays as long as the attempt."""
    w = world()
    w.autoscaler_says("Accepted", "accepted by the autoscaler")
    w.settle()
    assert w.pods == {}
    assert "accepted by the autoscaler" in condition(w, "Running")[2]
    w.autoscaler_says("Provisioned")
    w.settle()
    assert len(w.pods) == 3
    for pod in w.pods.values():
        annotations = pod["metadata"]["annotations"]
        assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == NAME
        assert annotations["autoscaling.x-k8s.io/provisioning-class-name"] == CLASS
    w.start_gang()
    w.autoscaler_says("BookingExpired")
    w.run(hours=24)
    assert (w.status.state, len(w.pods), kinds(w)) == (
        "Running",
        3,
        ["PodTemplate", "PodTemplate", "ProvisioningRequest"],
    )


@pytest.mark.parametrize("kind", ["Failed", "CapacityRevoked", "BookingExpired"])
def test_a_request_that_failed_is_made_anew_after_a_pause(kind: str) -> None:
    """With the autoscaler's words until then; nothing is counted, and the attempt stays the same."""
    w = world()
    w.autoscaler_says(kind, "no nodes of that kind", "CapacityIsNotFound")
    w.settle()
    first, says = request(w)["metadata"]["uid"], condition(w, "Running")
    assert says[1] == "NoCapacity"
    assert "NoCapacity" in w.reasons()
    assert f"{kind}: CapacityIsNotFound: no nodes of that kind; it is requested again at" in says[2]
    assert w.plan().requeue_after_s == ASK_AGAIN_S
    w.run(seconds=ASK_AGAIN_S)
    assert request(w)["metadata"]["uid"] != first
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (1, 0, 0)
    w.autoscaler_says("Provisioned")
    w.settle()
    assert len(w.pods) == 3


def test_a_request_that_nobody_answers_is_made_anew() -> None:
    """After its timeout."""
    w = world(wanted={"timeoutSeconds": 60})
    first = request(w)["metadata"]["uid"]
    assert w.plan().requeue_after_s == 60
    w.run(seconds=59)
    assert request(w)["metadata"]["uid"] == first
    w.run(seconds=1)
    assert request(w)["metadata"]["uid"] != first
    assert w.pods == {}


def test_nothing_is_left_of_a_job_that_waits_no_more() -> None:
    """Suspended while it waits and while it runs; ended; in the next attempt only that one's."""
    w = world()
    w.change(runPolicy={"suspend": True})
    assert kinds(w) == []
    w.change(runPolicy={"suspend": False})
    assert request(w)["metadata"]["name"] == "digits-0a1b2c3d-2"
    w.autoscaler_says("Provisioned")
    w.start_gang()
    w.launcher_ends(3)
    w.go_on(seconds=30)
    assert request(w)["metadata"]["name"] == "digits-0a1b2c3d-3"
    assert len(w.asked) == 3
    w.autoscaler_says("Provisioned")
    w.start_gang()
    w.launcher_ends(0)
    assert (w.status.state, kinds(w)) == ("Succeeded", [])


def test_a_job_that_waits_and_is_scaled_asks_for_what_it_wants_now() -> None:
    """An elastic job within the attempt, another in the next; never two requests."""
    for elastic, attempt in ((None, 2), ({"maxReplicas": 8}, 1)):
        w = world(**({"elastic": elastic} if elastic else {}))
        w.change(worker={**w.job["spec"]["worker"], "replicas": 4})
        assert request(w)["spec"]["podSets"][1]["count"] == 4
        assert (w.status.attempt, len(w.asked)) == (attempt, 3)


@pytest.mark.parametrize(
    ("view", "says"),
    [
        (ProvisioningView(), "this installation does not allow it: set provisioning.enabled"),
        (ProvisioningView(allowed=True), "the API server has no ProvisioningRequests of autoscaling.x-k8s.io"),
    ],
    ids=["not-allowed", "not-served"],
)
def test_an_autoscaler_that_is_not_there_is_said(view: ProvisioningView, says: str) -> None:
    """No pod is made, the condition names the way out, and the job asks when there is one."""
    w = world(view)
    assert (w.pods, w.asked) == ({}, {})
    assert condition(w, "Running")[1] == "ProvisioningUnavailable"
    assert says in condition(w, "Running")[2]
    assert w.plan().requeue_after_s == 60
    w.autoscaler = THERE
    w.run(seconds=60)
    assert len(w.asked) == 3


def test_on_one_machine_nobody_is_asked() -> None:
    """`dtj local` has no nodes to ask for."""
    assert len(world(None).pods) == 3


@pytest.mark.parametrize("place", ["field", "label"])
def test_a_job_in_a_queue_of_kueue_does_not_ask_itself(place: str) -> None:
    """Refused with the way out: Kueue asks for nodes when it has quota for the job, and not before."""
    described = job(scheduling={"provisioning": {"className": CLASS}})
    described["metadata"].setdefault("uid", "0a1b2c3d-e")
    if place == "field":
        described["spec"]["scheduling"]["queue"] = "research"
    else:
        described["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    with pytest.raises(Invalid, match="admission check of kueue") as refused:
        parse_job(described)
    assert ("scheduling.provisioning" if place == "field" else "queue-name") in str(refused.value)


def test_a_label_of_kueue_on_a_job_that_runs_changes_nothing() -> None:
    """Nothing refuses the label; the job runs to its end, and waits in no queue before it is resumed."""
    w = world()
    w.autoscaler_says("Provisioned")
    w.start_gang()
    w.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    w.settle()
    assert w.status.state == "Running"
    w.launcher_ends(0)
    assert w.status.state == "Succeeded"


def test_the_operator_dies_at_each_write() -> None:
    """After a crash at any write, the next operator makes one provisioning request, and then the pods."""
    for writes in range(8):
        w = World(job(scheduling={"provisioning": {"className": CLASS}}), autoscaler=THERE)
        w.apply(w.plan(), writes=writes)
        w.apply(w.plan(), writes=max(0, writes - 3))
        w.settle()
        assert len(w.asked) == 3
        w.autoscaler_says("Failed")
        w.now = w.now.replace(minute=w.now.minute + 2)
        w.apply(w.plan(), writes=writes)
        w.settle()
        w.autoscaler_says("Provisioned")
        w.apply(w.plan(), writes=writes)
        w.settle()
        assert (len(w.asked), len(w.pods)) == (3, 3)
