"""Why a job does not run, in its status."""

from __future__ import annotations

import pytest
from support.planworld import condition, world

from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.observe.model import Foreign, Refusal


def test_a_taken_name_is_said() -> None:
    """An object of somebody else is not touched; nothing is created until the name is free."""
    w = world()
    w.foreign = (Foreign(ObjectRef("Service", "digits"), "Deployment web"),)
    w.settle()
    assert not w.pods
    assert condition(w, "Running")[1] == "NameTaken"
    assert "Service digits exists and belongs to Deployment web" in condition(w, "Running")[2]
    w.foreign = ()
    w.settle()
    assert len(w.pods) == 3


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('pods "digits-worker-1" is forbidden: exceeded quota: gpus, requested: 8', "QuotaExceeded"),
        ('Pod "digits-worker-1" is invalid: spec.containers[0].image: Required value', "CreationRefused"),
    ],
)
def test_a_refusal_is_said_in_the_apis_words(message: str, reason: str) -> None:
    """What the API says about a pod it refuses is in the condition."""
    w = world()
    w.refusals = (Refusal(ObjectRef("Pod", "digits-worker-1"), 403, "Forbidden", message),)
    w.settle()
    assert condition(w, "Running")[1] == reason
    assert message in condition(w, "Running")[2]
    assert reason in w.reasons()


def test_an_unpullable_image_is_said() -> None:
    """The kubelet's reason is the condition's reason, its words the message; it is one event, not many."""
    w = world()
    w.settle()
    w.pod_waits("digits-worker-0", "ImagePullBackOff", 'Back-off pulling image "nope"')
    w.settle()
    w.run(minutes=10)
    assert condition(w, "Running")[1:] == ("ImagePullBackOff", 'digits-worker-0: Back-off pulling image "nope"')
    assert w.reasons().count("ImagePullBackOff") == 1


def test_an_unschedulable_pod_is_said() -> None:
    """The scheduler's words are the message."""
    w = world()
    w.settle()
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    w.pods["digits-launcher"]["status"] = {"phase": "Pending", "conditions": [unschedulable]}
    w.settle()
    assert condition(w, "Running")[1:] == ("Unschedulable", "digits-launcher: 0/3 nodes")


def test_an_invalid_spec_is_said() -> None:
    """Accepted=False names the field; nothing is created; a corrected spec goes on."""
    w = world()
    w.job["spec"]["slotPerWorker"] = 2
    w.settle()
    assert w.status.state == "Rejected"
    assert "did you mean slotsPerWorker" in condition(w, "Accepted")[2]
    del w.job["spec"]["slotPerWorker"]
    w.change()
    w.settle()
    assert condition(w, "Accepted")[0] == "True"
    assert len(w.pods) == 3
