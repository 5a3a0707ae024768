"""Attempts that fail: restarts and their limit, rules, who is to blame."""

import json

import pytest
from support.jobs import job
from support.planworld import World, condition, running, settled, started, world

from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.contract import KILLED_FOR_MEMORY
from ringtrain_operator.observe.model import Foreign, Refusal
from ringtrain_operator.plan.ledger import STEADY_S
from ringtrain_operator.status.model import format_time


def test_a_failed_attempt_is_followed_by_the_next() -> None:
    """The old pods go first, then all pods are made anew with the next number, at once after a first failure."""
    w = running()
    w.launcher_ends(1, message="rank 0 exited with 1", logTail=["Traceback", "ValueError: bad sample 17", ""])
    assert (w.status.attempt, w.status.restarts, w.status.state) == (2, 1, "Restarting")
    assert condition(w, "Running")[1] == "WaitingForOldPods"
    told = "attempt 1: rank 0 exited with 1 (digits-worker-0): ValueError: bad sample 17"
    assert condition(w, "Restarting")[2] == told
    assert [event.message for event in w.events if event.reason == "Restarting"] == [told]
    w.go_on()
    assert {pod["metadata"]["labels"]["ringtrain.dev/attempt"] for pod in w.pods.values()} == {"2"}
    w.start_gang()
    assert condition(w, "Restarting")[0] == "False"
    failure = w.status.failure
    assert (failure.attempt, failure.rank, failure.pod, failure.exit_code) == (1, 0, "digits-worker-0", 1)
    assert failure.log_tail == ("Traceback", "ValueError: bad sample 17", "")


def test_backoff_limit() -> None:
    """After so many counted restarts the next failure is the job's, and its failure is named."""
    w = running(backoffLimit=1)
    w.launcher_ends(7)
    w.go_on(seconds=5)
    w.start_gang()
    w.launcher_ends(9)
    assert w.status.state == "Failed"
    assert condition(w, "Failed")[1] == "BackoffLimitExceeded"
    assert w.status.failure.exit_code == 9


def test_delays_double_and_start_over_after_a_steady_attempt() -> None:
    """None, 2, 4, 8 seconds for quick failures; none again after `STEADY_S` of running."""
    w = running(backoffLimit=10)
    waits = []
    for steady in (0, 0, 0, STEADY_S - 1, STEADY_S):
        w.run(seconds=steady)
        w.launcher_ends(1)
        due = w.status.ledger.restart_not_before
        waits.append((due - w.now).total_seconds() if due else 0)
        w.go_on()
        assert (condition(w, "Running")[1] == "BackOff") is bool(waits[-1])
        assert bool(w.pods) is not bool(waits[-1])
        w.run(seconds=10)
        w.start_gang()
    assert waits == [0, 2, 4, 8, 0]


def test_a_delay_that_a_clock_ahead_noted_is_no_longer_than_from_now() -> None:
    """The next operator's clock is right, an hour behind: the attempt starts 2 s later, and not an hour."""
    w = running(backoffLimit=10)
    for _ in range(2):
        w.launcher_ends(1)
        w.go_on()
        if not w.pods:
            break
        w.start_gang()
    w.run(hours=-1)
    assert w.pods == {}
    w.run(seconds=2)
    assert sorted(w.pods) == ["digits-launcher", "digits-worker-0", "digits-worker-1"]


RULES = [
    {"action": "FailJob", "onExitCodes": {"values": [3]}},
    {"action": "Ignore", "onExitCodes": {"ranges": [{"min": 40, "max": 49}]}},
    {"action": "RestartJob", "onExitCodes": {"values": [64]}},
    {"action": "FailJob", "onReasons": ["AgentLost"]},
]


@pytest.mark.parametrize(
    ("code", "reason", "state", "restarts"),
    [
        pytest.param(3, "RankFailed", "Failed", 0, id="fails-at-once"),
        pytest.param(44, "RankFailed", "Restarting", 0, id="does-not-count"),
        pytest.param(50, "RankFailed", "Restarting", 1, id="no-rule-counts"),
        pytest.param(64, "BadConfiguration", "Restarting", 1, id="a-rule-overrides-hopeless"),
        pytest.param(137, "AgentLost", "Failed", 0, id="by-reason"),
    ],
)
def test_failure_rules(code: int, reason: str, state: str, restarts: int) -> None:
    """The first rule that matches decides."""
    w = running(failureRules=RULES)
    w.launcher_ends(code, reason=reason, pod="digits-launcher")
    assert (w.status.state, w.status.restarts) == (state, restarts)


@pytest.mark.parametrize(("code", "reason"), [(64, "BadConfiguration"), (75, "NotFinite")])
def test_what_a_restart_does_not_mend_is_not_retried(code: int, reason: str) -> None:
    """A bad configuration, and a loss that is not finite, fail the job at once, whatever backoffLimit says."""
    w = running()
    w.launcher_ends(code, reason=reason, message="what is wrong")
    assert (w.status.state, w.status.restarts) == ("Failed", 0)
    assert condition(w, "Failed")[1] == reason
    assert "what is wrong" in condition(w, "Failed")[2]


def test_a_failed_worker_waits_for_the_launchers_report() -> None:
    """The launcher knows which rank failed first; only when it stays silent a worker's own words count."""
    w = running()
    w.pod_ends("digits-worker-1", 75)
    w.pod_ends("digits-worker-0", 5)
    w.settle()
    assert w.status.attempt == 1
    w.run(seconds=30)
    assert (w.status.failure.pod, w.status.failure.exit_code) == ("digits-worker-0", 5)


def test_a_worker_that_fails_before_the_start_is_judged_at_once() -> None:
    """A launcher that still waits for agents cannot know about an agent that never came."""
    w = world()
    w.pods_run()
    w.launcher_says("Waiting")
    w.pod_ends("digits-worker-0", 64)
    w.settle()
    assert w.status.state == "Failed"


def test_an_out_of_memory_kill_is_said() -> None:
    """Kubernetes' OOMKilled is in the failure's message, with what the container may have."""
    worker = job()["spec"]["worker"]
    worker["template"]["spec"]["containers"][0]["resources"] = {"limits": {"memory": "8Gi"}}
    w = started(job(worker=worker))
    w.pod_ends("digits-worker-0", 137, reason="OOMKilled")
    w.launcher_ends(137, reason="AgentLost", message="the agent of digits-worker-0 is lost")
    assert w.status.failure.message == (
        "digits-worker-0 was killed because it ran out of memory (OOMKilled); its container may have 8Gi, raise "
        "resources.limits.memory"
    )


def test_an_out_of_memory_kill_that_the_agent_reported_is_said_once() -> None:
    """Pod and agent report the same kill."""
    w = started(job())
    w.pod_ends("digits-worker-0", 137, reason="OOMKilled")
    message = f"rank 0 was killed by SIGKILL: memory 8.0 of 8.0 GiB; {KILLED_FOR_MEMORY}"
    w.launcher_ends(137, reason="RankFailed", pod="digits-worker-0", message=message)
    assert w.status.failure.message == message


@pytest.mark.parametrize("known_by", ["pod", "agent"])
@pytest.mark.parametrize(("limit", "attempts"), [("8Gi", 2), (None, 4)])
def test_what_is_killed_twice_at_one_memory_limit_is_not_tried_again(
    limit: str | None, attempts: int, known_by: str
) -> None:
    """Without a limit it was the node's memory: the job has as many attempts as backoffLimit says.

    The launcher's end, with what the agent has read from the cgroup, is often seen before the pod's.
    """
    message = f"rank 0 was killed by SIGKILL: memory 8.0 of 8.0 GiB; {KILLED_FOR_MEMORY}"
    worker = job()["spec"]["worker"]
    if limit:
        worker["template"]["spec"]["containers"][0]["resources"] = {"limits": {"memory": limit}}
    w = World(job(worker=worker, runPolicy={"backoffLimit": 3}))
    while w.status.state not in ("Failed", "Succeeded"):
        w.start_gang()
        if known_by == "pod":
            w.pod_ends("digits-worker-0", 137, reason="OOMKilled")
            w.launcher_ends(137, reason="AgentLost", message="the agent of digits-worker-0 is lost")
        else:
            w.launcher_ends(137, reason="RankFailed", pod="digits-worker-0", message=message)
        w.go_on(seconds=10)
        w.settle()
    assert w.status.attempt == attempts
    assert condition(w, "Failed")[1] == ("OutOfMemory" if limit else "BackoffLimitExceeded")


def test_a_launcher_that_was_killed_for_memory_says_so() -> None:
    w = running()
    w.pod_ends("digits-launcher", 137, reason="OOMKilled")
    w.settle()
    assert w.status.failure.message == "digits-launcher was killed because it ran out of memory (OOMKilled)"


def test_lost_agent_waits_for_the_pods_fate() -> None:
    """An agent is lost, its pod looks well: a moment later it turns out evicted, and nothing is counted."""
    w = running(backoffLimit=0)
    w.launcher_ends(137, reason="AgentLost", pod="digits-worker-1")
    assert w.status.attempt == 1
    w.evict("digits-worker-1")
    w.settle()
    assert (w.status.attempt, w.status.restarts) == (2, 0)


def test_a_gang_whose_pods_never_ran_only_waits() -> None:
    """A launcher that gives up waiting for an unschedulable worker does not use up backoffLimit."""
    w = world(backoffLimit=0)
    w.pod_runs("digits-launcher")
    w.pod_runs("digits-worker-0")
    w.pod_waits("digits-worker-1", "ImagePullBackOff", "Back-off pulling image")
    w.launcher_ends(69, reason="NotAssembled", rank=None, pod=None)
    assert (w.status.attempt, w.status.restarts, w.status.state) == (2, 0, "Restarting")


@pytest.mark.parametrize("name", ["digits-launcher", "digits-worker-1"])
def test_a_pod_whose_image_has_no_possible_name(name: str) -> None:
    """No wait helps, nor another attempt: the job ends, and its devices are free."""
    w = world()
    w.pod_waits(name, "InvalidImageName", "couldn't parse image name")
    w.settle()
    failed = w.status.condition("Failed")
    assert failed.reason == "CannotStart"
    assert f"{name} can't start: InvalidImageName: couldn't parse image name" in failed.message
    w.run(seconds=60)
    assert w.pods == {}


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize(
    ("kind", "name"),
    [("Pod", "digits-launcher"), ("Pod", "digits-worker-1"), ("Pod", "digits-data-0"), ("Service", "digits")],
)
def test_an_object_that_the_api_server_calls_invalid(kind: str, name: str, elastic: bool) -> None:
    """It would be refused for ever: the job fails at once with the server's words. A policy may change, and does
    not end the job."""
    spec = {"elastic": {"minReplicas": 1, "maxReplicas": 2}} if elastic else {}
    w = settled(job(dataWorkers={"replicas": 1}, **spec))
    w.refusals = (Refusal(ObjectRef(kind, name), 422, "Invalid", f"admission policy x denied {kind} {name}"),)
    w.run(seconds=60)
    assert w.status.state != "Failed"
    message = f'{kind} "{name}" is invalid: spec.x: Invalid value: 5: must be less'
    w.refusals = (Refusal(ObjectRef(kind, name), 422, "Invalid", message),)
    w.settle()
    assert (w.status.failure.reason, w.status.restarts, w.status.state) == ("CannotStart", 0, "Failed")
    assert f"the API refused {kind} {name} (422 Invalid): {message}; a restart" in condition(w, "Failed")[2]


NO_PROGRAM = 'runc create failed: error: exec: "fetsh": executable file not found in $PATH: unknown'


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("name", ["digits-launcher", "digits-worker-1"])
@pytest.mark.parametrize("runtime", ["containerd", "CRI-O"])
def test_an_init_container_whose_program_does_not_exist(name: str, runtime: str, elastic: bool) -> None:
    """The image will not get it, so the job fails at once, as with the main container's command. containerd ends the
    container, CRI-O does not create it."""
    w = settled(job(**({"elastic": {"minReplicas": 1, "maxReplicas": 2}} if elastic else {})))
    ended = {"exitCode": 128, "reason": "StartError", "message": NO_PROGRAM, "finishedAt": format_time(w.now)}
    waiting = {"reason": "CreateContainerError", "message": "executable file `fetsh` not found in $PATH"}
    state = {"terminated": ended} if runtime == "containerd" else {"waiting": waiting}
    phase = "Failed" if runtime == "containerd" else "Pending"
    w.pods[name]["status"] = {"phase": phase, "initContainerStatuses": [{"name": "fetch", "state": state}]}
    w.run(seconds=31)  # for so long the launcher might report something else
    failure = w.status.failure
    assert (failure.reason, failure.pod, w.status.state, w.status.restarts) == ("CannotStart", name, "Failed", 0)
    assert "fetsh" in failure.message
    assert ("init container fetch" in failure.message) == (runtime == "containerd")


@pytest.mark.parametrize("reason", ["CreateContainerConfigError", "ErrImageNeverPull"])
@pytest.mark.parametrize("name", ["digits-launcher", "digits-worker-1"])
def test_a_pod_that_lacks_what_may_still_come(name: str, reason: str) -> None:
    """A ConfigMap that is there in time is in time; one that is not ends the job, which restarted for ever."""
    w = settled(job(networking={"startTimeoutSeconds": 100}))
    w.pod_waits(name, reason, 'configmap "settings" not found')
    w.run(seconds=99)
    assert (w.status.attempt, w.status.state) == (1, "Pending")
    w.run(seconds=2)
    failure = w.status.failure
    assert (failure.reason, failure.pod, w.status.state, w.status.attempt) == ("CannotStart", name, "Failed", 1)
    assert "within 100 s" in failure.message
    assert "configmap" in failure.message


@pytest.mark.parametrize(
    "message",
    [
        'MountVolume.SetUp failed for volume "settings" : configmap "settings" not found',
        'MountVolume.SetUp failed for volume "keys" : secret "keys" not found',
        'MountVolume.SetUp failed for volume "settings" : configmap references non-existent config key: batch',
    ],
)
def test_a_volume_whose_object_is_not_there(message: str) -> None:
    """As a variable's; the kubelet says it in an event of the pod."""
    w = settled(job(networking={"startTimeoutSeconds": 100}))
    w.pod_waits("digits-worker-1", "FailedMount", message)
    w.run(seconds=99)
    assert message in condition(w, "Running")[2]
    assert (w.status.attempt, w.status.state) == (1, "Pending")
    w.run(seconds=2)
    assert condition(w, "Failed")[1] == "CannotStart"
    assert message in condition(w, "Failed")[2]


def test_a_claim_that_is_not_there() -> None:
    """The scheduler says it, and gives the pod no node."""
    w = settled(job(networking={"startTimeoutSeconds": 100}))
    words = '0/2 nodes are available: persistentvolumeclaim "data" not found. preemption: 0/2 nodes are available.'
    for name in w.pods:
        w.pod_finds_no_node(name, words)
    w.run(seconds=99)
    assert (w.status.attempt, w.status.state) == (1, "Pending")
    w.run(seconds=2)
    assert condition(w, "Failed")[1] == "CannotStart"
    assert 'persistentvolumeclaim "data" not found' in condition(w, "Failed")[2]


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "trian:1"'),
        ("FailedMount", "MountVolume.SetUp failed for volume: mount failed: timed out"),
        ("FailedAttachVolume", "Multi-Attach error for volume"),
        ("FailedCreatePodSandBox", "failed to setup network for sandbox"),
    ],
)
def test_what_may_still_come_holds_no_devices_for_ever(reason: str, message: str) -> None:
    """The pods have nodes: they give these back after startTimeoutSeconds, and try again later, uncounted."""
    w = settled(job(networking={"startTimeoutSeconds": 100}))
    for name in w.pods:
        w.pod_waits(name, reason, message)
    w.run(seconds=99)
    assert (w.status.attempt, w.status.state, len(w.pods)) == (1, "Pending", 3)
    w.run(seconds=5)
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 0)
    assert (w.status.state, w.status.reason, w.pods) == ("Pending", reason, {})
    assert f"{reason}: {message}; the job has released" in condition(w, "Running")[2]
    w.run(seconds=20)
    w.start_gang()
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 0)


def test_the_launcher_that_gives_up_first() -> None:
    """It says that a worker did not come; the kubelet says why, and that counts."""
    w = world()
    w.pod_runs("digits-launcher")
    w.pod_waits("digits-worker-1", "CreateContainerConfigError", 'secret "key" not found')
    w.launcher_ends(69, reason="NotAssembled", rank=None, pod=None)
    assert (w.status.failure.reason, w.status.attempt) == ("CannotStart", 1)


def test_a_rule_may_have_it_tried_again() -> None:
    """As of any failure that a restart would not help."""
    w = world(failureRules=[{"action": "Ignore", "onReasons": ["CannotStart"]}])
    w.pod_waits("digits-launcher", "InvalidImageName", "couldn't parse image name")
    w.settle()
    assert w.status.attempt == 2


def test_a_failed_init_container_is_told_as_one() -> None:
    """Its name, its exit code and its output; no rank is blamed."""
    w = running(backoffLimit=0)
    ended = {"exitCode": 9, "reason": "Error", "message": "no data\nat s3://x", "finishedAt": format_time(w.now)}
    w.pods["digits-worker-1"]["status"] = {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "fetch", "state": {"terminated": ended}}],
        "containerStatuses": [{"name": "train", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    w.run(seconds=60)
    failure = w.status.failure
    assert (failure.reason, failure.rank, failure.exit_code) == ("InitContainerFailed", None, 9)
    assert failure.message == "init container fetch of digits-worker-1 exited with 9"
    assert failure.log_tail == ("no data", "at s3://x")


def test_the_workers_tell_why_a_launcher_says_stopped() -> None:
    """Their pods have the reason, a moment after the launcher's end; without one, the message says what is known."""
    w = started(job())
    words = json.dumps({"version": 1, "attempt": 1, "outcome": "Stopped", "worldSize": 2, "ranksSucceeded": 0})
    w.pod_ends("digits-launcher", 143, words)
    w.settle()
    assert w.status.attempt == 1
    w.pod_ends("digits-worker-0", 143, words)
    w.pods["digits-worker-0"]["status"]["reason"] = "DeadlineExceeded"
    w.settle()
    assert (w.status.attempt, w.status.failure.pod) == (2, "digits-worker-0")
    assert "ran longer than its template's activeDeadlineSeconds allows" in w.status.failure.message
    w.go_on()
    w.start_gang()
    w.pod_ends("digits-launcher", 143, words.replace('"attempt": 1', '"attempt": 2'))
    w.run(seconds=20)
    assert (w.status.attempt, w.status.restarts) == (3, 2)
    assert w.status.failure.message == "digits-launcher was stopped by a signal"


def test_a_gang_that_was_stopped_lost_its_worker() -> None:
    """If all agents were ordered to stop, the launcher names none; failureRules that match AgentLost still do."""
    words = json.dumps({"version": 1, "attempt": 1, "outcome": "Stopped", "worldSize": 2, "ranksSucceeded": 0})
    w = started(job())
    w.pod_ends("digits-worker-0", 143, words)
    w.pod_ends("digits-launcher", 143, words)
    w.settle()
    assert (w.status.failure.pod, w.status.failure.reason) == ("digits-worker-0", "AgentLost")


def test_a_templates_deadline_is_told_without_raw_json() -> None:
    """The agent was stopped and says so to the launcher; to a person that is not the end of a log."""
    w = running(backoffLimit=0)
    words = json.dumps({"version": 1, "attempt": 1, "outcome": "Stopped", "worldSize": 2, "ranksSucceeded": 0})
    w.pod_ends("digits-worker-0", 143, words)
    w.pods["digits-worker-0"]["status"]["reason"] = "DeadlineExceeded"
    w.run(seconds=60)
    failure = w.status.failure
    assert "activeDeadlineSeconds" in failure.message
    assert failure.log_tail == ()


def test_a_deleted_job_of_the_same_name_is_waited_for() -> None:
    """Its pods go by themselves: nobody needs another name, and no Warning is sent."""
    w = World(job())
    w.foreign = (Foreign(ObjectRef("Pod", "digits-launcher"), "DistributedTrainingJob digits"),)
    w.settle()
    status, reason, message = condition(w, "Running")
    assert (status, reason) == ("False", "WaitingForOldPods")
    assert "earlier job of this name" in message
    assert "WaitingForOldPods" not in w.reasons()
    w.foreign = (Foreign(ObjectRef("Pod", "digits-launcher"), "Job other"),)
    w.settle()
    assert condition(w, "Running")[1] == "NameTaken"
