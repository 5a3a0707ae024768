"""Lines of `dtj why`: each cause once, and only events that can explain the present state."""

import json
from typing import Any

from support.jobs import job
from support.planworld import World, started

from ringtrain_client.jobs.causes import explain_job

UNPULLED = "digits-worker-1: Back-off pulling image no-such-tag"


def event(pod: str, message: str, at: str) -> dict[str, Any]:
    """Return a warning about a pod."""
    about = {"kind": "Pod", "name": pod, "uid": pod}
    return {"type": "Warning", "reason": "Failed", "message": message, "involvedObject": about, "lastTimestamp": at}


def why(w: World, *events: dict[str, Any]) -> list[str]:
    """Return the lines of `dtj why`."""
    return list(explain_job(json.loads(json.dumps(w.job)), list(w.pods.values()), list(events)))


def test_a_cause_is_printed_once() -> None:
    """The condition contains the pod's and the event's message."""
    w = World(job())
    w.settle()
    pod = w.pods["digits-worker-1"]
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image no-such-tag"}
    pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": "train", "state": {"waiting": waiting}}]}
    w.settle()
    told = why(w, *(event("digits-worker-1", waiting["message"], f"2026-01-01T00:00:0{i}Z") for i in range(3)))
    assert len([line for line in told if waiting["message"] in line]) == 1


def test_events_before_the_ranks_ran_are_left_out() -> None:
    """A mount that failed for a moment does not explain the state of a running job."""
    w = started(job())
    w.launcher_says("Running", 12)
    w.settle()
    early, late = (event("digits-worker-0", text, at) for text, at in (("early", "2025"), ("late", "2027")))
    told = "".join(why(w, early, late))
    assert "early" not in told
    assert "late" in told


def test_an_ended_job_has_only_the_events_of_the_failed_pod() -> None:
    """The start of an ended job is not "so far"."""
    w = started(job(runPolicy={"backoffLimit": 0}))
    w.launcher_ends(1, reason="RankFailed", pod="digits-worker-1", message="rank 1 exited with 1")
    w.settle()
    assert w.status.state == "Failed"
    told = why(w, event("digits-worker-0", "of another", "2027"), event("digits-worker-1", "of the failed", "2026"))
    assert "of another" not in "".join(told)
    assert "of the failed" in "".join(told)
    assert not [line for line in told if "so far" in line]


def test_pods_that_wait_for_the_same_are_one_line() -> None:
    """The condition has the scheduler's words and counts the pods, whose events repeat them."""
    w = World(job())
    w.settle()
    words = "0/1 nodes are available: 1 Insufficient cpu."
    for name in w.pods:
        w.pod_finds_no_node(name, words)
    w.settle()
    told = why(w, *(event(name, words, "2027-01-01T00:00:00Z") for name in w.pods))
    assert len([line for line in told if "Insufficient cpu" in line]) == 1


def test_a_restart_is_one_line() -> None:
    """Two conditions have its message."""
    w = started(job())
    w.launcher_ends(1, reason="RankFailed", pod="digits-worker-1", message="rank 1 exited with 1")
    told = why(w)
    assert len([line for line in told if "rank 1 exited with 1" in line]) == 1


def test_a_failed_pod_is_not_taken_for_one_whose_name_begins_alike() -> None:
    """The condition names worker 10; worker 1 has failed, too."""
    w = started(job(workers=11, runPolicy={"backoffLimit": 0}))
    w.pod_ends("digits-worker-1", 3)
    w.launcher_ends(1, reason="RankFailed", pod="digits-worker-10", message="rank 10 of digits-worker-10 exited with 1")
    w.settle()
    assert [line for line in why(w) if "digits-worker-1 " in line]
