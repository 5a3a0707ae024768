"""Views of a pod's status as the API reports it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ringtrain_operator.observe.model import PodView
from ringtrain_operator.observe.pods import owned_by, owner_name, pull_of, read_report, termination_of, view_pod


def view(role: str = "worker", **status: Any) -> PodView:
    """A worker's pod with this status, or that of another role."""
    labels = {"role": role, "attempt": "2", "worker-index": "1"}
    metadata = {
        "name": "digits-worker-1",
        "labels": {f"ringtrain.dev/{key}": value for key, value in labels.items()},
    }
    spec = {"nodeName": "n", "containers": [{"name": "train"}, {"name": "side"}]}
    return view_pod({"metadata": metadata, "spec": spec, "status": status}, {"n": True})


def test_identity() -> None:
    """Role, attempt and index are labels."""
    pod = view()
    assert (pod.id.role, pod.id.attempt, pod.id.index) == ("worker", 2, 1)
    assert (pod.place.node, pod.place.node_ready) == ("n", True)
    assert pod.phase == "Pending"


def test_an_exit() -> None:
    """The first container's end is the pod's, though a side-car runs on."""
    ended = {"exitCode": 3, "reason": "Error", "message": "m", "finishedAt": "2026-01-01T00:00:00Z"}
    pod = view(
        phase="Running",
        containerStatuses=[
            {"name": "side", "state": {"running": {}}},
            {"name": "train", "state": {"terminated": ended}},
        ],
    )
    assert pod.finished
    assert (pod.end.code, pod.end.message, pod.end.time) == (3, "m", datetime(2026, 1, 1, tzinfo=UTC))


def test_a_failed_init_container() -> None:
    """A pod that failed before its first container ran has the init container's exit code."""
    failed = {"name": "init", "state": {"terminated": {"exitCode": 9, "message": "no data"}}}
    pod = view(phase="Failed", initContainerStatuses=[failed])
    assert (pod.end.code, pod.end.message) == (9, "no data")


ENDED = {"terminated": {"exitCode": 1, "reason": "Error"}}
KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


@pytest.mark.parametrize(
    ("spec", "status", "ended"),
    [
        pytest.param({}, {}, True, id="all"),
        pytest.param({}, {"containerStatuses": [{"name": "train", "state": ENDED}]}, False, id="one-not-reported"),
        pytest.param({}, {"initContainerStatuses": [{"name": "proxy", "state": {"running": {}}}]}, False, id="sidecar"),
        pytest.param({"restartPolicy": "OnFailure"}, {}, False, id="restarted-by-its-pod"),
        pytest.param(
            {"containers": [{"name": "train", "restartPolicyRules": [{"action": "Restart"}]}, {"name": "side"}]},
            {},
            False,
            id="restarted-by-a-rule",
        ),
    ],
)
def test_all_containers_have_ended(spec: dict[str, Any], status: dict[str, Any], ended: bool) -> None:
    """Only if each has been reported as ended, and the kubelet starts none again."""
    both = [{"name": "train", "state": ENDED}, {"name": "side", "state": KILLED}]
    pod = {
        "metadata": {"name": "digits-worker-1"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "train"}, {"name": "side"}], **spec},
        "status": {"phase": "Running", "containerStatuses": both, **status},
    }
    assert view_pod(pod).end.all_ended == ended


@pytest.mark.parametrize(
    ("message", "finished"),
    [
        pytest.param('{"version": 1, "attempt": 2, "outcome": "Failed"}', True, id="its-last-word"),
        pytest.param('{"version": 1, "attempt": 2, "outcome": "Stopped"}', False, id="asked-to-stop"),
        pytest.param("Killed", False, id="killed"),
    ],
)
def test_a_container_that_was_started_again(message: str, finished: bool) -> None:
    """It has ended if it said that the attempt has, whatever runs there now."""
    last = {"terminated": {"exitCode": 137, "message": message}}
    pod = view(phase="Running", containerStatuses=[{"name": "train", "state": {"running": {}}, "lastState": last}])
    assert pod.finished == finished


@pytest.mark.parametrize(
    ("main", "side", "told"),
    [
        ({"running": {}}, {"state": ENDED}, "side container side exited with 1"),
        ({"running": {}}, {"state": KILLED}, "side container side exited with 137 (OOMKilled)"),
        ({"running": {}}, {"state": {"terminated": {"exitCode": 0}}}, ""),
        ({"running": {}}, {"state": {"running": {}}, "lastState": ENDED}, ""),
        (
            {"running": {}},
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ENDED},
            "side container side exited with 1",
        ),
        (ENDED, {"state": ENDED}, ""),
    ],
    ids=["failed", "killed", "done", "started-again", "backs-off", "main-ended"],
)
def test_a_side_container_that_fails(main: dict[str, Any], side: dict[str, Any], told: str) -> None:
    """It is told while the main container runs; afterwards that one's end is what counts."""
    pod = view(phase="Running", containerStatuses=[{"name": "train", "state": main}, {"name": "side", **side}])
    assert pod.end.side_failure == told
    assert not pod.end.other_container


def test_an_eviction() -> None:
    """DisruptionTarget's reason is who took the pod."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    pod = view(phase="Failed", reason="Evicted", message="low", conditions=[condition])
    assert (pod.state.reason, pod.disrupted.reason, pod.end.code) == ("Evicted", "EvictionByEvictionAPI", None)


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_an_ordinary_start_is_not_a_cause(reason: str) -> None:
    """Stages of every start are not reported as trouble."""
    assert view(containerStatuses=[{"name": "train", "state": {"waiting": {"reason": reason}}}]).wait.reason == ""


def test_an_init_container_that_cannot_start() -> None:
    """Its words count like the main container's."""
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "denied"}}
    pod = view(initContainerStatuses=[{"name": "init", "state": waiting}])
    assert (pod.wait.reason, pod.wait.message) == ("ErrImagePull", "denied")


@pytest.mark.parametrize(
    "words",
    [
        'container has runAsNonRoot and image will run as root (pod: "p", container: train)',
        "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root",
    ],
)
def test_an_image_whose_user_is_refused(words: str) -> None:
    """The kubelet's words are followed by the fields to set."""
    state = {"waiting": {"reason": "CreateContainerConfigError", "message": words}}
    pod = view(containerStatuses=[{"name": "train", "state": state}])
    assert pod.wait.message.startswith(words)
    for field in ("runAsUser", "runAsNonRoot"):
        assert f"spec.worker.template.spec.securityContext.{field}" in pod.wait.message
    launcher = view("launcher", containerStatuses=[{"name": "train", "state": state}])
    assert launcher.wait.message == pod.wait.message  # it has the workers' user, unless its template has one


def test_owners() -> None:
    """Only the controller owns."""
    refs = [{"uid": "a", "kind": "X", "name": "x"}, {"uid": "b", "kind": "Job", "name": "j", "controller": True}]
    obj = {"metadata": {"ownerReferences": refs}}
    assert owned_by(obj, "b")
    assert not owned_by(obj, "a")
    assert owner_name(obj) == "Job j"
    assert owner_name({"metadata": {}}) == ""


@pytest.mark.parametrize("words", ["", "boom", "[1]", '{"version": 2}', '{"version": 1, "attempt": 1}'])
def test_words_that_are_not_this_attempts(words: str) -> None:
    """Another version's, another attempt's, or no message at all: empty."""
    ended = {"name": "train", "state": {"terminated": {"exitCode": 1, "message": words}}}
    assert termination_of(view(containerStatuses=[ended]), 2) == {}


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"version": 1, "phase": "Dancing", "attempt": 1, "worldSize": 1},
        {"version": 1, "phase": "Running", "attempt": None, "worldSize": 1},
        {"version": 1, "phase": "Running", "attempt": 1, "worldSize": 1, "lastProgressTime": 1e300},
        {"version": 1, "phase": "Running", "attempt": 1, "worldSize": 1, "workers": 5},
        {"version": 1, "phase": "Running", "attempt": 1, "worldSize": 1, "workers": [5]},
        {"version": 1, "phase": "Running", "attempt": 1, "worldSize": 1, "logs": 5},
    ],
)
def test_a_report_that_is_none(raw: dict[str, Any]) -> None:
    """A document that breaks the contract of /status raises ValueError, as the docstring of `read_report` says."""
    with pytest.raises(ValueError):
        read_report(raw)


def test_the_image_is_that_of_the_container_of_ours() -> None:
    """Our container is found even if a webhook puts another before it in the spec and in the reported statuses."""
    main = {"name": "train", "image": "reg/train:1", "imageID": "reg/train@sha256:aa", "state": {"running": {}}}
    main["state"] = {"running": {"startedAt": "2026-01-01T00:00:07Z"}}
    side = {"name": "side", "image": "reg/side:1", "imageID": "reg/side@sha256:bb", "state": main["state"]}
    pod = {
        "metadata": {"name": "digits-worker-1", "creationTimestamp": "2026-01-01T00:00:01Z"},
        "spec": {"containers": [{"name": "side"}, {"name": "train", "env": [{"name": "RINGTRAIN_ROLE"}]}]},
        "status": {"phase": "Running", "containerStatuses": [side, main]},
    }
    seen = view_pod(pod)
    assert (seen.main.name, seen.main.image, seen.main.image_id) == ("train", "reg/train:1", "reg/train@sha256:aa")
    assert seen.id.created_at is not None
    assert seen.main.started_at is not None
    assert (seen.main.started_at - seen.id.created_at).total_seconds() == 6


def event(reason: str, container: str, at: int, **more: Any) -> dict[str, Any]:
    """An Event of a kubelet about one container of a pod."""
    time = f"2026-01-01T00:00:{at:02}Z"
    field = f"spec.containers{{{container}}}"
    about = {"involvedObject": {"fieldPath": field}, "reason": reason, "type": "Normal"}
    return {**about, "firstTimestamp": time, "lastTimestamp": time, **more}


def test_a_pull_is_that_of_one_container() -> None:
    """From the first try to the last word; an image that was on the node has no beginning."""
    events = [
        event("Pulling", "train", 2, lastTimestamp="2026-01-01T00:00:30Z", count=2),
        event("Pulled", "side", 3),
        event("Pulled", "train", 42),
    ]
    assert [t and t.second for t in pull_of(events, "train")] == [2, 42]
    assert [t and t.second for t in pull_of(events, "side")] == [None, 3]
    assert pull_of(events, "other") == (None, None)
