"""Suspension, deadlines, scale, cleaning up, and ends that stay ends."""

from datetime import timedelta

import pytest
from support.jobs import job
from support.planworld import World, condition, running, settled, started, world


@pytest.fixture
def w() -> World:
    """A job whose gang runs."""
    return running()


def test_suspend_and_resume(w: World) -> None:
    """Suspending deletes the pods; resuming begins the next attempt, which does not count."""
    w.change(runPolicy={"suspend": True})
    w.pods_go()
    w.launcher_ends(75, reason="AgentLost")
    assert (w.status.state, w.status.attempt, len(w.pods)) == ("Suspended", 1, 0)
    w.run(days=1)
    assert not w.pods
    w.change(runPolicy={"suspend": False})
    assert (w.status.attempt, w.status.restarts, len(w.pods)) == (2, 0, 3)
    assert condition(w, "Suspended")[:2] == ("False", "Resumed")
    assert "Resumed" in w.reasons()


def test_a_job_that_ends_in_the_second_of_its_suspension_has_ended(w: World) -> None:
    """A job whose end is seen after its suspension has succeeded; its launcher and logs stay."""
    w.change(runPolicy={"suspend": True})
    w.launcher_ends(0, unseen=True)
    w.pods_go()
    w.settle()
    assert (w.status.state, list(w.pods)) == ("Succeeded", ["digits-launcher"])
    assert "deletionTimestamp" not in w.pods["digits-launcher"]["metadata"]
    assert condition(w, "Suspended")[:2] == ("False", "Finished")


@pytest.mark.parametrize("hangs", [False, True], ids=["ends", "hangs"])
def test_a_suspended_jobs_launcher_goes_when_it_has_ended(w: World, hangs: bool) -> None:
    """The workers go at once; the launcher when it has ended as it does without them, or after half a minute."""
    w.change(runPolicy={"suspend": True})
    w.pods_go()
    assert list(w.pods) == ["digits-launcher"]
    if hangs:
        w.run(seconds=30)
        w.pods_go()
    else:
        w.launcher_ends(75, reason="AgentLost")
    assert (w.status.state, w.status.restarts, w.pods) == ("Suspended", 0, {})


def test_deadline_counts_waiting() -> None:
    """A job that waits for pods for longer than activeDeadlineSeconds fails, says for what, and its pods go."""
    w = world(activeDeadlineSeconds=60, cleanPodPolicy="None")
    assert w.settle().requeue_after_s == 60
    w.pod_runs("digits-launcher")
    w.settle()
    w.run(seconds=60)
    assert condition(w, "Failed")[1] == "DeadlineExceeded"
    assert "it did not run (WaitingForPods: 2 of 3 pods not running yet" in condition(w, "Failed")[2]
    w.pods_go()
    assert set(w.pods) == {"digits-launcher"}
    w.run(seconds=60)
    w.go_on()
    assert not w.pods


def test_pods_that_still_run_after_the_end_are_deleted_after_10_s(w: World) -> None:
    """Until then they may end by themselves."""
    w.launcher_ends(0)
    w.run(seconds=9)
    assert "deletionTimestamp" not in w.pods["digits-worker-0"]["metadata"]
    w.run(seconds=1)
    assert "deletionTimestamp" in w.pods["digits-worker-0"]["metadata"]
    w.pods_go()
    assert set(w.pods) == {"digits-launcher"}


@pytest.mark.parametrize("why", ["suspended", "out-of-time"])
def test_a_launcher_stays_while_its_workers_may_save(why: str) -> None:
    """As long as the grace period of the workers' pods: it has their last lines, and nothing else may have."""
    w = World(job(runPolicy={"activeDeadlineSeconds": 60} if why == "out-of-time" else {}))
    w.job["spec"]["worker"]["template"]["spec"]["terminationGracePeriodSeconds"] = 300
    w.start_gang()
    if why == "suspended":
        w.change(runPolicy={"suspend": True}, unseen=True)
    w.run(seconds=60)
    w.run(seconds=299)
    w.pods_go()
    assert set(w.pods) == {"digits-launcher"}
    w.run(seconds=11)
    w.pods_go()
    assert not w.pods


@pytest.mark.parametrize(
    ("policy", "reasons"),
    [
        ("activeDeadlineSeconds", ("DeadlineExceeded", "DeadlineExceeded")),
        ("progressDeadlineSeconds", ("BackoffLimitExceeded", "ProgressDeadlineExceeded")),
    ],
)
@pytest.mark.parametrize("clean", ["Running", "None"])
def test_a_deadline_leaves_something_to_read(policy: str, reasons: tuple[str, str], clean: str) -> None:
    """The launcher outlives its workers, whose last lines it has, and the status names the slowest rank. No event says
    that an attempt has started."""
    w = running(backoffLimit=0, cleanPodPolicy=clean, **{policy: 60})
    w.report["slowest"] = {"rank": 1, "pod": "digits-worker-1", "node": "node-b", "logTail": ["loading"]}
    w.run(seconds=60)
    failure = w.status.failure
    assert (condition(w, "Failed")[1], failure.reason) == reasons
    assert (failure.rank, failure.log_tail) == (1, ("loading",))
    assert (failure.pod, failure.node) == ("digits-worker-1", "node-b")
    w.pods_go()
    assert set(w.pods) == {"digits-launcher"}
    w.launcher_ends(143, reason="AgentLost", unseen=True)
    w.run(days=1)
    assert set(w.pods) == {"digits-launcher"}
    assert w.status.failure == failure
    assert w.reasons().count("AttemptStarted") == 1


def test_deadline_excludes_suspension() -> None:
    """Time spent suspended does not count; what counted before does."""
    w = running(activeDeadlineSeconds=60)
    w.run(seconds=40)
    w.change(runPolicy={"suspend": True, "activeDeadlineSeconds": 60})
    w.go_on(hours=1)
    w.change(runPolicy={"activeDeadlineSeconds": 60})
    w.run(seconds=19)
    assert w.status.state != "Failed"
    w.run(seconds=1)
    assert w.status.state == "Failed"


def test_a_success_in_time_beats_the_deadline() -> None:
    """An operator that looks late does not fail a job that succeeded."""
    w = running(activeDeadlineSeconds=60)
    w.launcher_ends(0, unseen=True)
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
    assert w.status.failure.reason == "ProgressDeadlineExceeded"


@pytest.mark.parametrize(("step", "last"), [(0, "none"), (7, "7")])
def test_a_job_without_progress_says_its_last_step(step: int, last: str) -> None:
    """Or that it made none."""
    w = running(progressDeadlineSeconds=100)
    w.launcher_says("Running", step)
    w.run(seconds=100)
    assert w.status.failure.message.startswith(f"no step was reported for 100 s; last step: {last}")


def test_the_progress_deadline_counts_from_running() -> None:
    """The deadline begins when all ranks run, even if the launcher waits long for its workers."""
    w = world(progressDeadlineSeconds=20)
    w.pods_run()
    w.launcher_says("Waiting")
    w.run(seconds=600)
    w.launcher_says("Running")
    w.run(seconds=19)
    assert (w.status.state, w.status.attempt) == ("Running", 1)
    w.run(seconds=1)
    assert w.status.attempt == 2


def test_the_progress_deadline_names_the_slowest_rank() -> None:
    """With its place and the end of its log, so that somebody can look there."""
    w = running(progressDeadlineSeconds=20)
    w.report["slowest"] = {
        "rank": 1, "pod": "digits-worker-1", "node": "node-b", "step": 7, "logTail": ["reading shard 8"],
    }  # fmt: skip
    w.run(seconds=20)
    failure = w.status.failure
    assert (failure.rank, failure.pod, failure.node) == (1, "digits-worker-1", "node-b")
    assert failure.log_tail == ("reading shard 8",)
    assert failure.message.endswith("the slowest is rank 1 in digits-worker-1 on node-b, at step 7")


def test_an_old_answer_of_the_launcher_does_not_end_a_gang() -> None:
    """The deadline passes between two answers: a step may have been reported since the last one."""
    w = running(progressDeadlineSeconds=20)
    w.report_age_s = 8
    w.now += timedelta(seconds=22)
    assert w.settle().requeue_after_s == 1
    assert w.status.attempt == 1
    w.report_age_s = 1
    w.settle()
    assert w.status.attempt == 2


def test_scale() -> None:
    """A change of replicas begins the next attempt with the new world; it does not count and is not delayed."""
    w = running(backoffLimit=0)
    w.scale(3)
    w.go_on()
    assert (w.status.attempt, w.status.restarts, w.status.ledger.attempt_workers, len(w.pods)) == (2, 0, 3, 4)
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
    """cleanPodPolicy decides which pods of a finished job stay."""
    w = running(cleanPodPolicy=policy)
    w.pod_ends("digits-worker-0", 0)
    w.launcher_ends(0)
    w.run(seconds=10)
    w.go_on()
    assert set(w.pods) == left


@pytest.mark.parametrize("policy", ["None", "Running"])
def test_sidecars_end_with_the_job(policy: str) -> None:
    """A sidecar that runs until SIGTERM gets it, whatever the policy; a worker whose main container runs is left."""
    w = running(cleanPodPolicy=policy)
    w.pod_ends("digits-worker-0", 0)
    w.pods["digits-worker-0"]["status"]["phase"] = "Running"
    w.launcher_ends(0)
    w.run(seconds=10)
    w.go_on()
    assert set(w.pods) == {"digits-launcher"} | ({"digits-worker-1"} if policy == "None" else set())


def test_time_to_live() -> None:
    """The job itself is deleted so long after its end."""
    w = running(ttlSecondsAfterFinished=60, cleanPodPolicy="None")
    w.launcher_ends(0, unseen=True)
    assert w.settle().requeue_after_s == 60
    w.now += timedelta(seconds=60)
    (deletion,) = w.plan().delete
    assert (deletion.ref.kind, deletion.uid) == ("DistributedTrainingJob", "0a1b2c3d-e")


def test_terminal_states_are_sticky(w: World) -> None:
    """A finished job stays finished after any change to it or its pods."""
    w.launcher_ends(0)
    w.change(runPolicy={"suspend": True}, unseen=True)
    w.pods.clear()
    w.settle()
    w.run(days=1)
    assert w.status.state == "Succeeded"
    assert not w.pods


def test_a_finished_job_is_not_written_again() -> None:
    """An operator that restarts writes nothing."""
    w = running(cleanPodPolicy="All")
    w.launcher_ends(0)
    w.go_on()
    before = w.writes
    w.now += timedelta(days=1)
    w.settle()
    assert w.writes == before


def test_a_success_with_a_warning(w: World) -> None:
    """The condition contains the launcher's warning."""
    w.launcher_ends(0, warning="each ran by itself")
    assert condition(w, "Succeeded")[2] == "all 2 ranks exited 0; each ran by itself"


@pytest.mark.parametrize("ended", [False, True], ids=["runs", "has-ended"])
def test_a_suspension_that_nobody_saw_is_made_up_for(w: World, ended: bool) -> None:
    """Suspended, changed and resumed while the operator was away: the gang begins anew as the job is by now."""
    if ended:
        w.launcher_ends(0, unseen=True)
    w.change(slotsPerWorker=2)
    w.pods_go()
    w.start_gang()
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 0)
    assert [reason for reason in w.reasons() if reason in ("Suspended", "Resumed")] == ["Suspended", "Resumed"]
    w.launcher_ends(0)
    assert (w.status.state, condition(w, "Succeeded")[2]) == ("Succeeded", "all 4 ranks exited 0")


def test_what_an_operator_of_another_version_noted_is_not_compared(w: World) -> None:
    """Its models write the same spec otherwise, perhaps: jobs that run outlive an update, and are noted anew."""
    fixed = w.status.ledger.begun_with
    w.job["status"]["ledger"]["begunWith"] = f"0ther123:{fixed.partition(':')[2]}"
    w.settle()
    assert (w.status.attempt, w.status.state, w.status.ledger.begun_with) == (1, "Running", fixed)


def test_what_may_change_while_a_job_runs_is_no_suspension() -> None:
    """Policies and the number of data workers."""
    w = started(job(dataWorkers={"replicas": 1}))
    w.change(dataWorkers={"replicas": 2, "autoscale": {"maxReplicas": 4}}, runPolicy={"backoffLimit": 1})
    assert (w.status.attempt, w.status.state) == (1, "Running")


@pytest.mark.parametrize("spec", [{}, {"slotsPerWorker": 0}], ids=["valid", "invalid"])
def test_somebody_elses_job_is_left_alone(spec: dict[str, int]) -> None:
    """managedBy names another controller: no object, no status, whatever this one thinks of its spec."""
    w = settled(job(managedBy="example.com/other", **spec))
    assert w.writes == 0


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    """Owner references do the rest."""
    w = World(job())
    w.job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    w.settle()
    assert w.writes == 0


def test_created_suspended() -> None:
    """Nothing is created until the job is resumed; then it is attempt 1."""
    w = world(suspend=True)
    assert (w.status.state, w.status.attempt, w.pods, w.objects) == ("Suspended", 0, {}, {})
    w.change(runPolicy={})
    assert (w.status.attempt, len(w.pods)) == (1, 3)
