"""A job's life as a table of states: what the plan answers to what has happened."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from support.jobs import job
from support.planworld import World

from ringtrain_operator.observe import Foreign, ObjectRef, Refusal
from ringtrain_operator.plan import companion_refs
from ringtrain_operator.spec import parse_job


def world(**run_policy: object) -> World:
    """Two workers with these policies."""
    return World(job(runPolicy=run_policy))


def running(**run_policy: object) -> World:
    """The same, with its gang running."""
    found = world(**run_policy)
    found.start_gang()
    return found


def condition(w: World, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    found = w.status.condition(kind)  # type: ignore[arg-type]
    return (found.status, found.reason, found.message) if found else ("", "", "")


def test_everything_is_created_at_once() -> None:
    """The first plan creates all objects, the launcher and the workers, and enters attempt 1."""
    w = world()
    plan = w.plan()
    assert plan.status is not None
    assert plan.status["attempt"] == 1
    kinds = [obj["kind"] for obj in plan.create]
    assert kinds == ["Secret", "Service", "ServiceAccount", "NetworkPolicy", "Pod", "Pod", "Pod"]


def test_what_exists_is_not_created_again() -> None:
    """After one round nothing is left to do."""
    w = world()
    w.settle()
    assert set(w.pods) == {"digits-launcher", "digits-worker-0", "digits-worker-1"}
    assert set(w.objects) == set(companion_refs(parse_job(w.job)))


def test_a_running_gang() -> None:
    """Running is what the launcher says, not what pods look like."""
    w = world()
    w.settle()
    for name in w.pods:
        w.pod_runs(name)
    w.settle()
    assert condition(w, "Running")[:2] == ("False", "WaitingForLauncher")
    w.launcher_says("Waiting")
    w.settle()
    assert condition(w, "Running")[1:] == ("WaitingForAgents", "0 of 2 workers have registered")
    w.launcher_says("Running", step=7)
    w.settle()
    assert w.status.state == "Running"
    assert w.status.workers == "2/2"
    assert w.status.progress_summary == "7/100 (7%)"


def test_a_launcher_that_cannot_be_asked_for_a_moment_changes_nothing() -> None:
    """Running stays True while all pods run."""
    w = running()
    w.report = None
    w.settle()
    assert w.status.state == "Running"


def test_success() -> None:
    """The launcher's attested exit 0 is the job's success; nothing is created or restarted after it."""
    w = running()
    w.launcher_ends(0)
    w.settle()
    assert w.status.state == "Succeeded"
    assert w.status.completion_time == w.now
    assert condition(w, "Running")[1] == "Finished"
    assert w.reasons()[-1] == "Succeeded"


@pytest.mark.parametrize("words", ["", '{"version": 1, "attempt": 1, "outcome": "Succeeded", "worldSize": 1}'])
def test_success_that_nobody_attests_is_a_failure(words: str) -> None:
    """Exit 0 of a launcher that does not say that all ranks succeeded fails the job, at once."""
    w = running()
    w.pod_ends("digits-launcher", 0, words)
    w.settle()
    assert w.status.state == "Failed"
    assert "without attesting all 2 ranks" in condition(w, "Failed")[2]


def test_the_ranks_of_a_launcher_that_is_a_worker_too_are_attested() -> None:
    """Two workers and the launcher, two slots each: six ranks, and four would be too few."""
    w = World(job(backend="mpi", slotsPerWorker=2, mpi={"runLauncherAsWorker": True}))
    w.start_gang()
    words = {"version": 1, "attempt": 1, "outcome": "Succeeded", "worldSize": 6, "ranksSucceeded": 6}
    w.pod_ends("digits-launcher", 0, json.dumps(words))
    w.settle()
    assert condition(w, "Succeeded")[2] == "all 6 ranks exited 0"


def test_a_failed_attempt_is_followed_by_the_next() -> None:
    """The old pods go first, then the delay passes, then all pods are made anew with the next number."""
    w = running()
    w.launcher_ends(1, message="rank 0 exited with 1", logTail=["boom"])
    w.settle()
    assert (w.status.attempt, w.status.restarts, w.status.state) == (2, 1, "Restarting")
    assert condition(w, "Running")[1] == "WaitingForOldPods"
    w.pods_go()
    w.settle()
    assert not w.pods
    assert condition(w, "Running")[1] == "BackOff"
    w.run(seconds=1)
    assert {pod["metadata"]["labels"]["ringtrain.dev/attempt"] for pod in w.pods.values()} == {"2"}
    w.start_gang()
    assert condition(w, "Restarting")[0] == "False"
    failure = w.status.failure
    assert failure is not None
    assert (failure.attempt, failure.rank, failure.pod, failure.exit_code) == (1, 0, "digits-worker-0", 1)
    assert failure.log_tail == ("boom",)


def test_backoff_limit() -> None:
    """After so many counted restarts the next failure is the job's, and its failure is named."""
    w = running(backoffLimit=1)
    w.launcher_ends(7)
    w.settle()
    w.pods_go()
    w.run(seconds=5)
    w.start_gang()
    w.launcher_ends(9)
    w.settle()
    assert w.status.state == "Failed"
    assert condition(w, "Failed")[1] == "BackoffLimitExceeded"
    assert w.status.failure is not None
    assert w.status.failure.exit_code == 9


def test_delays_double_and_start_over_after_a_steady_attempt() -> None:
    """1, 2, 4 seconds for quick failures; 1 again after ten minutes of running."""
    w = running(backoffLimit=10)
    delays = []
    for steady in (0, 0, 0, 700):
        w.run(seconds=steady)
        w.launcher_ends(1)
        w.settle()
        delays.append(w.status.restart_delay_seconds)
        w.pods_go()
        w.run(seconds=10)
        w.start_gang()
    assert delays == [1, 2, 4, 1]


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
    w.settle()
    assert (w.status.state, w.status.restarts) == (state, restarts)


def test_bad_configuration_is_not_retried() -> None:
    """Exit code 64 fails the job at once."""
    w = running()
    w.launcher_ends(64, reason="BadConfiguration", message="RINGTRAIN_SLOTS_PER_WORKER is 0")
    w.settle()
    assert w.status.state == "Failed"
    assert "RINGTRAIN_SLOTS_PER_WORKER is 0" in condition(w, "Failed")[2]


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


def test_a_deleted_pod_does_not_count() -> None:
    """A drained or deleted pod restarts the gang as soon as it is asked to end."""
    w = running(backoffLimit=0)
    w.user_deletes("digits-worker-0")
    w.settle()
    assert (w.status.attempt, w.status.restarts) == (2, 0)


def test_a_vanished_pod_does_not_count() -> None:
    """A running gang's pod that is simply gone restarts the gang."""
    w = running(backoffLimit=0)
    del w.pods["digits-worker-0"]
    w.settle()
    assert (w.status.attempt, w.status.restarts) == (2, 0)


def test_a_pod_that_vanishes_before_the_start_is_made_again() -> None:
    """Before the gang has begun nothing is lost with a pod: same attempt."""
    w = world()
    w.settle()
    del w.pods["digits-worker-0"]
    w.settle()
    assert w.status.attempt == 1
    assert "digits-worker-0" in w.pods


def test_a_rank_that_fails_because_its_pod_is_taken_away_does_not_count() -> None:
    """Exit 143 on a pod that is being deleted is the deletion's doing, also when the launcher speaks first."""
    w = running(backoffLimit=0)
    w.user_deletes("digits-worker-0")
    w.launcher_ends(143, reason="RankFailed")
    w.settle()
    assert (w.status.attempt, w.status.restarts) == (2, 0)


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
    """However long its node takes."""
    w = running()
    w.user_deletes("digits-worker-0")
    w.nodes["node-of-digits-worker-0"] = True
    w.run(hours=3)
    assert "deletionTimestamp" in w.pods["digits-worker-0"]["metadata"]


def test_a_failed_worker_waits_for_the_launchers_verdict() -> None:
    """The launcher knows which rank failed first; only when it stays silent a worker's own words count."""
    w = running()
    w.pod_ends("digits-worker-1", 75)
    w.pod_ends("digits-worker-0", 5)
    w.settle()
    assert w.status.attempt == 1
    w.run(seconds=30)
    assert w.status.failure is not None
    assert (w.status.failure.pod, w.status.failure.exit_code) == ("digits-worker-0", 5)


def test_a_worker_that_fails_before_the_start_is_judged_at_once() -> None:
    """A launcher that still waits for agents cannot know about an agent that never came."""
    w = world()
    w.settle()
    for name in w.pods:
        w.pod_runs(name)
    w.launcher_says("Waiting")
    w.pod_ends("digits-worker-0", 64)
    w.settle()
    assert w.status.state == "Failed"


def test_an_out_of_memory_kill_is_said() -> None:
    """Kubernetes' OOMKilled is in the failure's message."""
    w = running()
    w.pod_ends("digits-worker-0", 137, reason="OOMKilled")
    w.launcher_ends(137, reason="AgentLost", message="the agent of digits-worker-0 is lost")
    w.settle()
    assert w.status.failure is not None
    assert "OOMKilled" in w.status.failure.message


def test_lost_agent_waits_for_the_pods_fate() -> None:
    """An agent is lost, its pod looks well: a moment later it turns out evicted, and nothing is counted."""
    w = running(backoffLimit=0)
    w.launcher_ends(137, reason="AgentLost", pod="digits-worker-1")
    w.settle()
    assert w.status.attempt == 1
    w.evict("digits-worker-1")
    w.settle()
    assert (w.status.attempt, w.status.restarts) == (2, 0)


def test_a_gang_whose_pods_never_ran_only_waits() -> None:
    """A launcher that gives up waiting for an unschedulable worker does not use up backoffLimit."""
    w = world(backoffLimit=0)
    w.settle()
    w.pod_runs("digits-launcher")
    w.pod_runs("digits-worker-0")
    w.pod_waits("digits-worker-1", "ImagePullBackOff", "Back-off pulling image")
    w.launcher_ends(69, reason="NotAssembled", rank=None, pod=None)
    w.settle()
    assert (w.status.attempt, w.status.restarts, w.status.state) == (2, 0, "Restarting")


def test_suspend_and_resume() -> None:
    """Suspending deletes the pods; resuming begins the next attempt, which does not count."""
    w = running()
    w.change(runPolicy={"suspend": True})
    w.settle()
    w.pods_go()
    w.settle()
    assert (w.status.state, w.status.attempt, len(w.pods)) == ("Suspended", 1, 0)
    w.run(days=1)
    assert not w.pods
    w.change(runPolicy={"suspend": False})
    w.settle()
    assert (w.status.attempt, w.status.restarts, len(w.pods)) == (2, 0, 3)
    assert condition(w, "Suspended")[:2] == ("False", "Resumed")
    assert "Resumed" in w.reasons()


def test_created_suspended() -> None:
    """Nothing is created until the job is resumed; then it is attempt 1."""
    w = world(suspend=True)
    w.settle()
    assert (w.status.state, w.status.attempt, w.pods, w.objects) == ("Suspended", 0, {}, {})
    w.change(runPolicy={})
    w.settle()
    assert (w.status.attempt, len(w.pods)) == (1, 3)


def test_deadline_counts_waiting() -> None:
    """A job that waits for pods for longer than activeDeadlineSeconds fails, and its pods go at once."""
    w = world(activeDeadlineSeconds=60, cleanPodPolicy="None")
    assert w.settle().requeue_after_s == 60
    w.pod_runs("digits-launcher")
    w.run(seconds=60)
    assert condition(w, "Failed")[1] == "DeadlineExceeded"
    w.pods_go()
    w.settle()
    assert not w.pods


def test_deadline_excludes_suspension() -> None:
    """Time spent suspended does not count; what counted before does."""
    w = running(activeDeadlineSeconds=60)
    w.run(seconds=40)
    w.change(runPolicy={"suspend": True, "activeDeadlineSeconds": 60})
    w.settle()
    w.pods_go()
    w.run(hours=1)
    w.change(runPolicy={"activeDeadlineSeconds": 60})
    w.settle()
    w.run(seconds=19)
    assert w.status.state != "Failed"
    w.run(seconds=1)
    assert w.status.state == "Failed"


def test_a_success_in_time_beats_the_deadline() -> None:
    """An operator that looks late does not fail a job that succeeded."""
    w = running(activeDeadlineSeconds=60)
    w.launcher_ends(0)
    w.run(hours=1)
    assert w.status.state == "Succeeded"


def test_progress_deadline() -> None:
    """No step for so long is a failure that counts; a step in time moves the deadline."""
    w = running(progressDeadlineSeconds=100)
    w.now += timedelta(seconds=99)
    w.launcher_says("Running", step=1)
    w.settle()
    w.run(seconds=99)
    assert w.status.attempt == 1
    w.run(seconds=1)
    assert (w.status.attempt, w.status.restarts) == (2, 1)
    assert w.status.failure is not None
    assert w.status.failure.reason == "ProgressDeadlineExceeded"


def test_scale() -> None:
    """A change of replicas begins the next attempt with the new world; it does not count and is not delayed."""
    w = running(backoffLimit=0)
    w.job["spec"]["worker"]["replicas"] = 3
    w.change()
    w.settle()
    w.pods_go()
    w.settle()
    assert (w.status.attempt, w.status.restarts, w.status.attempt_workers, len(w.pods)) == (2, 0, 3, 4)
    worker = w.pods["digits-worker-0"]["spec"]["containers"][0]
    assert {"name": "RINGTRAIN_NUM_WORKERS", "value": "3"} in worker["env"]


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        pytest.param("None", {"digits-launcher", "digits-worker-0", "digits-worker-1"}, id="none"),
        pytest.param("Running", {"digits-launcher", "digits-worker-0"}, id="running"),
        pytest.param("All", set(), id="all"),
    ],
)
def test_clean_pod_policy(policy: str, left: set[str]) -> None:
    """Which pods of a finished job stay."""
    w = running(cleanPodPolicy=policy)
    w.pod_ends("digits-worker-0", 0)
    w.launcher_ends(0)
    w.settle()
    w.run(seconds=10)
    w.pods_go()
    w.settle()
    assert set(w.pods) == left


def test_time_to_live() -> None:
    """The job itself is deleted so long after its end."""
    w = running(ttlSecondsAfterFinished=60, cleanPodPolicy="None")
    w.launcher_ends(0)
    assert w.settle().requeue_after_s == 60
    w.now += timedelta(seconds=60)
    (deletion,) = w.plan().delete
    assert (deletion.ref.kind, deletion.uid) == ("DistributedTrainingJob", "0a1b2c3d-e")


def test_terminal_states_are_sticky() -> None:
    """Whatever happens to a finished job or its pods, it stays finished."""
    w = running()
    w.launcher_ends(0)
    w.settle()
    w.change(runPolicy={"suspend": True})
    w.pods.clear()
    w.settle()
    w.run(days=1)
    assert w.status.state == "Succeeded"
    assert not w.pods


def test_the_last_progress_is_the_launchers_last_word() -> None:
    """A job that ends between two polls has its last step in the status, not the one that was polled."""
    w = running()
    w.launcher_says("Running", step=3)
    w.settle()
    words = {"version": 1, "attempt": 1, "outcome": "Succeeded", "worldSize": 2, "ranksSucceeded": 2}
    w.pod_ends("digits-launcher", 0, json.dumps(words | {"progress": {"step": 100, "totalSteps": 100}}))
    w.settle()
    assert w.status.progress_summary == "100/100 (100%)"


def test_a_finished_job_is_not_written_again() -> None:
    """An operator that restarts writes nothing."""
    w = running(cleanPodPolicy="All")
    w.launcher_ends(0)
    w.settle()
    w.pods_go()
    w.settle()
    before = w.writes
    w.now += timedelta(days=1)
    w.settle()
    assert w.writes == before


def test_somebody_elses_job_is_left_alone() -> None:
    """managedBy names another controller: no object, no status."""
    w = World(job(managedBy="example.com/other"))
    w.settle()
    assert w.writes == 0


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    """Owner references do the rest."""
    w = world()
    w.job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    w.settle()
    assert w.writes == 0


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


def test_pods_of_a_forgotten_past_are_replaced() -> None:
    """A job whose status was lost begins an attempt with a number that no existing pod has."""
    w = running()
    del w.job["status"]
    w.report = None
    w.settle()
    w.pods_go()
    w.settle()
    assert w.status.attempt == 2
    assert len(w.pods) == 3


def test_transition_times_move_only_with_the_status() -> None:
    """A new reason or message keeps lastTransitionTime."""
    w = world()
    w.settle()
    before = w.status.condition("Running")
    w.now += timedelta(seconds=9)
    w.pod_waits("digits-worker-0", "ErrImagePull", "no")
    w.settle()
    after = w.status.condition("Running")
    assert before is not None
    assert after is not None
    assert (after.reason, after.last_transition_time) == ("ErrImagePull", before.last_transition_time)


def test_steps_are_not_written_one_by_one() -> None:
    """Ten seconds of progress between two writes; the last step of a job is written whatever the time."""
    w = running()
    writes = []
    for step in range(1, 21):
        w.now += timedelta(seconds=1)
        w.launcher_says("Running", step)
        before = w.writes
        w.settle()
        writes.append(w.writes - before)
    assert sum(writes) <= 3
