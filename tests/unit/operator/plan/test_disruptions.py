"""Pods that are taken away: restarts that do not count, and pods of dead nodes."""

import json
from datetime import datetime

import pytest
from support.planworld import World, condition, running, world

from ringtrain_operator.plan.outcome import ANSWERS_WITHIN_S


def test_eviction_does_not_count() -> None:
    """An evicted worker restarts the gang; restarts stays 0, the message has the kubelet's words."""
    w = running(backoffLimit=0)
    w.evict("digits-worker-1")
    w.settle()
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 1)
    assert "low on resource" in condition(w, "Restarting")[2]


def test_eviction_for_the_pods_own_storage_counts() -> None:
    """A pod over its own limit is evicted without DisruptionTarget: that is the job's doing."""
    w = running()
    w.pods["digits-worker-1"]["status"] = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
    }
    w.report = None
    w.settle()
    w.run(seconds=31)
    assert w.status.restarts == 1


def test_a_vanished_pod_does_not_count() -> None:
    """A running gang's pod that is simply gone restarts the gang."""
    w = running(backoffLimit=0)
    del w.pods["digits-worker-0"]
    w.settle()
    assert (w.status.attempt, w.status.restarts) == (2, 0)


def test_a_pod_that_vanishes_before_the_start_is_made_again() -> None:
    """Before the gang has begun nothing is lost with a pod: same attempt."""
    w = world()
    del w.pods["digits-worker-0"]
    w.settle()
    assert w.status.attempt == 1
    assert "digits-worker-0" in w.pods


@pytest.mark.parametrize("said", ["nothing", "Waiting", "what nobody understands"])
def test_a_pod_that_vanishes_when_all_have_run_does_not_count(said: str) -> None:
    """The ranks may have started since the launcher was heard last: it takes no new pod in, and would fail."""
    w = world(backoffLimit=0)
    w.pods_run()
    if said != "nothing":
        w.launcher_says("Waiting")
    if said == "what nobody understands":
        w.report = {"version": 2}
    w.settle()
    del w.pods["digits-worker-1"]
    w.settle()
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 1)
    assert condition(w, "Restarting")[2] == "attempt 1: digits-worker-1 no longer exists"


@pytest.mark.parametrize("reason", ["AgentLost", "RankFailed"])
@pytest.mark.parametrize("ends", [True, False], ids=["refused", "still-starting"])
def test_a_pod_that_vanishes_between_two_looks_does_not_count(ends: bool, reason: str) -> None:
    """The ranks started between the operator's last look and the end of one of their pods: that was made anew, but
    the launcher does not take it in, and says in which pod its rank was lost."""
    w = world(backoffLimit=0)
    lost = w.pods.pop("digits-worker-1")["metadata"]["uid"]
    w.settle()
    assert (w.status.attempt, w.pods["digits-worker-1"]["metadata"]["uid"] != lost) == (1, True)
    if ends:
        w.pod_ends("digits-worker-1", 69)
    w.launcher_ends(75, reason=reason, pod="digits-worker-1", podUid=lost)
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 1)
    said = condition(w, "Restarting")[2]
    assert said == "attempt 1: digits-worker-1 was replaced when its ranks had started"


@pytest.mark.parametrize("uid", ["the pod's own", "", None, 7])
def test_a_failure_in_a_pod_that_is_there_counts(uid: object) -> None:
    """Whether the launcher knows the pod's uid or not."""
    w = running(backoffLimit=0)
    known = w.pods["digits-worker-1"]["metadata"]["uid"] if uid == "the pod's own" else uid
    w.launcher_ends(1, pod="digits-worker-1", podUid=known)
    assert (w.status.disruptions, condition(w, "Failed")[0]) == (0, "True")


def test_a_rank_that_fails_because_its_pod_is_taken_away_does_not_count() -> None:
    """Exit 143 on a pod that is being deleted is the deletion's doing, also when the launcher speaks first."""
    w = running(backoffLimit=0)
    w.user_deletes("digits-worker-0")
    w.launcher_ends(143, reason="RankFailed")
    assert (w.status.attempt, w.status.restarts) == (2, 0)


@pytest.fixture(params=["agent", "launcher"])
def silent(request: pytest.FixtureRequest) -> tuple[World, str]:
    """A job without any restart left, and its pod that nobody has heard of: everyone else has given up."""
    w = running(backoffLimit=0)
    if request.param == "agent":
        w.launcher_ends(75, reason="AgentLost", pod="digits-worker-1", message="no sign of life", unseen=True)
    else:
        failure = {"reason": "LauncherFailed", "message": "the launcher has not answered for 60 s"}
        words = {"version": 1, "attempt": 1, "outcome": "Failed", "failure": failure}
        for index in range(2):
            w.pod_ends(f"digits-worker-{index}", 75, json.dumps(words))
        w.report = None
    w.settle()
    w.run(seconds=31)
    name = "digits-worker-1" if request.param == "agent" else "digits-launcher"
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 0)
    assert "deletionTimestamp" in w.pods[name]["metadata"]
    w.pods = {name: w.pods[name]}  # all others answer
    return w, name


def test_a_node_that_goes_silently_is_not_billed_to_the_job(silent: tuple[World, str]) -> None:
    """Nobody knows of the node for 20 s more: then it is not ready, and the next attempt runs, uncounted."""
    w, name = silent
    w.run(seconds=20)
    assert w.status.state == "Restarting"
    w.nodes[f"node-of-{name}"] = False
    w.run(seconds=20)
    assert (w.status.restarts, w.status.disruptions, w.status.ledger.lost_pod) == (0, 1, None)
    w.run(seconds=60)
    assert {pod["metadata"]["labels"]["ringtrain.dev/attempt"] for pod in w.pods.values()} == {"2"}
    assert len(w.pods) == 3


def test_a_node_that_is_gone_with_its_pod_is_not_billed_to_the_job(silent: tuple[World, str]) -> None:
    """A cloud takes the node away, and the control plane its pods: between two looks."""
    w, name = silent
    w.nodes[f"node-of-{name}"] = False
    w.pods = {}
    w.settle()
    assert (w.status.restarts, w.status.disruptions, len(w.pods)) == (0, 1, 3)


def test_a_pod_that_does_not_answer_where_nodes_can_not_be_read(silent: tuple[World, str]) -> None:
    """An operator of a few namespaces sees that the kubelet does not end the pod in its time."""
    w, name = silent
    ends = datetime.fromisoformat(w.pods[name]["metadata"]["deletionTimestamp"])
    due_s = (ends - w.now).total_seconds() + ANSWERS_WITHIN_S
    assert (w.status.disruptions, w.plan().requeue_after_s) == (0, due_s)
    w.run(seconds=due_s)
    assert (w.status.restarts, w.status.disruptions) == (0, 1)


def test_a_silent_pod_on_a_node_that_lives_counts(silent: tuple[World, str]) -> None:
    """Its kubelet ends it as asked: the job has no restart left."""
    w, name = silent
    w.nodes[f"node-of-{name}"] = True
    w.run(seconds=10)
    assert w.status.state == "Restarting"
    w.pods = {}
    w.settle()
    state, reason, message = condition(w, "Failed")
    assert (state, reason) == ("True", "BackoffLimitExceeded")
    assert "restarted 0 of at most 0 times" in message
    assert w.pods == {}


def test_a_silent_pod_on_a_node_that_lives_is_one_restart() -> None:
    """With restarts left the next attempt is made, and counted, when the pod is gone."""
    w = running()
    w.launcher_ends(75, reason="AgentLost", pod="digits-worker-1")
    w.run(seconds=16)
    assert (w.status.attempt, w.status.restarts) == (2, 0)
    w.pods = {}
    w.settle()
    assert (w.status.attempt, w.status.restarts, w.status.disruptions, len(w.pods)) == (2, 1, 0, 3)


@pytest.mark.parametrize(("code", "restarts"), [(None, 0), (1, 1)], ids=["no-exit-code", "exit-code"])
def test_a_pod_that_failed_on_a_node_that_is_lost_counts_if_it_has_an_exit_code(
    code: int | None, restarts: int
) -> None:
    """The control plane marks a lost node's pods as failed, and nobody knows how their containers ended."""
    w = running()
    w.nodes["node-of-digits-worker-1"] = False
    w.pods["digits-worker-1"]["status"]["phase"] = "Failed"
    if code is not None:
        w.pod_ends("digits-worker-1", code)
    w.report = None
    w.run(seconds=31)
    w.go_on()
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, restarts, 1 - restarts)


def test_a_dead_nodes_pods_are_deleted_by_force() -> None:
    """A minute after its grace period a Terminating pod of a dead node is removed, so that the gang goes on."""
    w = running()
    w.user_deletes("digits-worker-0")
    w.nodes["node-of-digits-worker-0"] = False
    w.settle()
    for name in ("digits-launcher", "digits-worker-1"):
        del w.pods[name]
    w.run(seconds=80)
    assert "digits-worker-0" in w.pods
    w.run(seconds=11)
    assert w.pods["digits-worker-0"]["metadata"]["labels"]["ringtrain.dev/attempt"] == "2"


def test_a_live_nodes_pods_are_never_deleted_by_force() -> None:
    """The operator never force-deletes a pod of a live node whose containers may run, even after hours."""
    w = running()
    w.user_deletes("digits-worker-0")
    w.nodes["node-of-digits-worker-0"] = True
    w.run(hours=3)
    assert "deletionTimestamp" in w.pods["digits-worker-0"]["metadata"]


@pytest.mark.parametrize("ends", ["before", "after"])
def test_a_pod_whose_containers_have_ended_is_not_waited_for(ends: str) -> None:
    """It is deleted at once, also if it ends after its deletion was requested; one that runs keeps its grace period."""
    w = running()
    if ends == "before":
        w.pod_ends("digits-worker-0", 75)
    w.launcher_ends(3, unseen=True)
    graces = {deletion.ref.name: deletion.grace_s for deletion in w.plan().delete}
    expected = {"digits-launcher": 0, "digits-worker-0": 0 if ends == "before" else None, "digits-worker-1": None}
    assert graces == expected
    w.settle()
    assert w.pods["digits-worker-1"]["metadata"]["labels"]["ringtrain.dev/attempt"] == "1"
    for name in {"digits-worker-0", "digits-worker-1"} & w.pods.keys():
        w.pod_ends(name, 75)
    w.settle()
    attempts = {pod["metadata"]["labels"]["ringtrain.dev/attempt"] for pod in w.pods.values()}
    assert (w.status.attempt, attempts, len(w.pods)) == (2, {"2"}, 3)


def test_a_deleted_pod_does_not_count() -> None:
    """A drained or deleted pod restarts the gang as soon as it is asked to end."""
    w = running(backoffLimit=0)
    w.user_deletes("digits-worker-0")
    w.settle()
    assert (w.status.attempt, w.status.restarts) == (2, 0)
