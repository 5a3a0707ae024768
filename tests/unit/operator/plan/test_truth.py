"""Status conditions that explain why a job does not run."""

import pytest
from support.jobs import job
from support.planworld import World, condition, world

from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.observe.model import Refusal


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('pods "digits-worker-1" is forbidden: exceeded quota: gpus, requested: 8', "QuotaExceeded"),
        ('Pod "digits-worker-1" is invalid: spec.containers[0].image: Required value', "CreationRefused"),
    ],
)
def test_a_refusal_is_said_in_the_apis_words(message: str, reason: str) -> None:
    """The condition contains the API's message on a refused pod."""
    w = World(job())
    w.refusals = (Refusal(ObjectRef("Pod", "digits-worker-1"), 403, "Forbidden", message),)
    w.settle()
    assert condition(w, "Running")[1] == reason
    assert message in condition(w, "Running")[2]
    assert reason in w.reasons()


def test_an_unpullable_image_is_said() -> None:
    """The kubelet's reason is the condition's reason, its words the message; it is one event, not many."""
    w = world()
    w.pod_waits("digits-worker-0", "ImagePullBackOff", 'Back-off pulling image "nope"')
    w.settle()
    w.run(minutes=9)
    assert condition(w, "Running")[1:] == ("ImagePullBackOff", 'digits-worker-0: Back-off pulling image "nope"')
    assert w.reasons().count("ImagePullBackOff") == 1
