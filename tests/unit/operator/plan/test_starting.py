"""Objects of a job, its start, and its success."""

import json
from datetime import timedelta

import pytest
from support.jobs import job
from support.planworld import World, condition, running, settled, started, world

from ringtrain_client.jobs.causes import explain_job
from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.cluster.poll import PollTimes
from ringtrain_operator.observe.model import Refusal
from ringtrain_operator.plan.objects import companion_refs
from ringtrain_operator.spec.parse import parse_job

EVERY_POD = ("digits-launcher", "digits-worker-0", "digits-worker-1")


@pytest.fixture
def w() -> World:
    """A job whose gang runs."""
    return running()


def test_everything_is_created_at_once() -> None:
    """The first plan creates all objects, the launcher and the workers, and enters attempt 1."""
    w = World(job())
    plan = w.plan()
    assert plan.status["attempt"] == 1
    kinds = [obj["kind"] for obj in plan.create]
    assert kinds == ["Secret", "Service", "ServiceAccount", "NetworkPolicy", "Pod", "Pod", "Pod"]


def test_what_exists_is_not_created_again() -> None:
    """After one round nothing is left to do."""
    w = world()
    assert set(w.pods) == {"digits-launcher", "digits-worker-0", "digits-worker-1"}
    secret = ObjectRef("Secret", "digits-0a1b2c3d")
    assert set(w.objects) == {secret, *companion_refs(parse_job(w.job))}


def test_a_running_gang() -> None:
    """Running is what the launcher says, not what pods look like."""
    w = world()
    w.pods_run()
    w.settle()
    assert condition(w, "Running")[:2] == ("False", "WaitingForLauncher")
    w.launcher_says("Waiting")
    w.settle()
    expected = "0 of 2 workers registered; not yet: digits-worker-0, digits-worker-1"
    assert condition(w, "Running")[1:] == ("WaitingForAgents", expected)
    w.launcher_says("Running", step=7)
    w.settle()
    assert w.status.state == "Running"
    assert w.status.workers == "2/2"
    assert w.status.progress_summary == "7/100 (7%)"


@pytest.mark.parametrize(
    ("version", "says"), [(2, "newer than the operator; update the operator"), (0, "older than the operator")]
)
def test_a_launcher_of_another_version_is_told(version: int, says: str) -> None:
    """A gang does not count as running by a /status that can't be read; one that runs goes on."""
    w = world()
    w.pods_run()
    w.launcher_says("Running", step=7)
    assert w.report is not None
    readable, w.report = w.report, {"version": version, "progress": "of another shape"}
    w.settle()
    assert condition(w, "Running")[:2] == ("False", "LauncherUnreadable")
    assert says in condition(w, "Running")[2]
    w.report = readable
    w.settle()
    w.report = {"version": version}
    w.settle()
    assert w.status.state == "Running"
    assert "its progress is unknown" in condition(w, "Running")[2]


def test_a_launcher_that_cannot_be_asked_for_a_moment_changes_nothing(w: World) -> None:
    """Running stays True while all pods run."""
    w.report = None
    w.settle()
    assert w.status.state == "Running"


def test_success(w: World) -> None:
    """The launcher's attested exit 0 is the job's success; nothing is created or restarted after it."""
    w.launcher_ends(0)
    assert w.status.state == "Succeeded"
    assert w.status.completion_time == w.now
    assert condition(w, "Running")[1] == "Finished"
    assert w.reasons()[-1] == "Succeeded"


@pytest.mark.parametrize("words", ["", '{"version": 1, "attempt": 1, "outcome": "Succeeded", "worldSize": 1}'])
def test_success_that_nobody_attests_is_a_failure(w: World, words: str) -> None:
    """Exit 0 of a launcher that does not say that all ranks succeeded fails the job, at once."""
    w.pod_ends("digits-launcher", 0, words)
    w.settle()
    assert w.status.state == "Failed"
    assert "without attesting all 2 ranks" in condition(w, "Failed")[2]


def test_one_is_counted_as_one() -> None:
    """A job of one rank is told of in the singular, in conditions and in events."""
    w = settled(job(workers=1))
    w.pod_runs("digits-launcher")
    w.settle()
    said = [condition(w, "Running")[2]]
    w.pod_runs("digits-worker-0")
    for phase in ("Waiting", "Running"):
        w.launcher_says(phase)
        w.settle()
        said.append(condition(w, "Running")[2])
    words = {"version": 1, "attempt": 1, "outcome": "Succeeded", "worldSize": 1, "ranksSucceeded": 1}
    w.pod_ends("digits-launcher", 0, json.dumps(words))
    w.settle()
    assert said == [
        "1 of 2 pods not running yet: digits-worker-0",
        "0 of 1 worker registered; not yet: digits-worker-0",
        "attempt 1 runs with 1 rank",
    ]
    assert condition(w, "Succeeded")[2] == "rank 0 exited 0"
    assert [e.message for e in w.events if e.reason == "AttemptStarted"] == ["attempt 1 with 1 worker"]


def test_the_ranks_of_a_launcher_that_is_a_worker_too_are_attested() -> None:
    """Two workers and the launcher, two slots each: six ranks, and four would be too few."""
    w = started(job(backend="mpi", slotsPerWorker=2, mpi={"runLauncherAsWorker": True}))
    words = {"version": 1, "attempt": 1, "outcome": "Succeeded", "worldSize": 6, "ranksSucceeded": 6}
    w.pod_ends("digits-launcher", 0, json.dumps(words))
    w.settle()
    assert condition(w, "Succeeded")[2] == "all 6 ranks exited 0"


def test_the_last_progress_is_the_launchers_last_word(w: World) -> None:
    """A job that ends between two polls has its last step in the status, not the one that was polled."""
    w.launcher_says("Running", step=3)
    w.settle()
    words = {"version": 1, "attempt": 1, "outcome": "Succeeded", "worldSize": 2, "ranksSucceeded": 2}
    w.pod_ends("digits-launcher", 0, json.dumps(words | {"progress": {"step": 100, "totalSteps": 100}}))
    w.settle()
    assert w.status.progress_summary == "100/100 (100%)"


def test_a_value_that_is_not_finite(w: World) -> None:
    """Status and `dtj why` show since which step and on which rank a value is NaN, while the job runs and after it."""
    wrong = {name: {"value": "NaN", "since": 10, "rank": 1} for name in ("accuracy", "loss")}
    progress = {"step": 60, "totalSteps": 60, "notFinite": wrong}
    w.launcher_says("Running", step=60)
    assert w.report is not None
    w.report["progress"] = progress
    w.settle()
    words = {"version": 1, "attempt": 1, "outcome": "Succeeded", "worldSize": 2, "ranksSucceeded": 2}
    said = "loss NaN since step 10 (rank 1), accuracy NaN since step 10 (rank 1)"
    assert w.status.message == f"attempt 1 runs with 2 ranks; {said}"  # a column of kubectl get -o wide
    for _ in range(2):
        assert w.status.progress is not None
        assert w.status.progress.not_finite == said
        assert f"  {said}" in list(explain_job(w.job, [], []))
        w.pod_ends("digits-launcher", 0, json.dumps(words | {"progress": progress}))
        w.settle()
    assert w.status.state == "Succeeded"


def test_pods_of_a_forgotten_past_are_replaced(w: World) -> None:
    """A job whose status was lost begins an attempt with a number that no existing pod has."""
    del w.job["status"]
    w.report = None
    w.go_on()
    assert w.status.attempt == 2
    assert len(w.pods) == 3


def test_transition_times_move_only_with_the_status() -> None:
    """A new reason or message keeps lastTransitionTime."""
    w = world()
    before = w.status.condition("Running")
    w.now += timedelta(seconds=9)
    w.pod_waits("digits-worker-0", "ErrImagePull", "no")
    w.settle()
    after = w.status.condition("Running")
    assert (after.reason, after.last_transition_time) == ("ErrImagePull", before.last_transition_time)


def test_every_answer_of_the_launcher_is_written_once(w: World) -> None:
    """The poll interval bounds the writes; it is short enough to show a step within five seconds."""
    before = w.writes
    for step in range(1, 21):
        w.now += timedelta(seconds=1)
        w.launcher_says("Running", step)
        w.settle()
        w.settle()
        assert w.status.progress_summary == f"{step}/100 ({step}%)"
    assert w.writes - before == 20
    assert 1.2 * PollTimes().interval_s < 5


@pytest.mark.parametrize("took_s", [0.1, 1.0, 3.3, 12.0, 300.0])
def test_that_ranks_run_is_seen_soon(took_s: float) -> None:
    """After a quarter more than the time that they took to start, or after the usual interval."""
    times, asked_s, polls = PollTimes(), 0.0, 0
    while asked_s < took_s:
        asked_s += times.pause_s(1, asked_s)
        polls += 1
    assert asked_s - took_s <= min(times.interval_s, max(0.25, took_s / 4))
    assert polls <= 16 + took_s / times.interval_s


def test_launchers_that_run_are_asked_within_bounds() -> None:
    """A thousand of them as often together as eighty."""
    assert PollTimes().pause_s(1, None) == PollTimes().pause_s(80, None) == 4.0
    assert PollTimes().pause_s(1000, None) == 50.0


def test_a_new_attempt_has_no_step_of_the_one_before(w: World) -> None:
    """The status is without progress until the new attempt's own report, also if the earlier one ended after a poll."""
    w.launcher_says("Running", step=3)
    w.settle()
    failure = {"rank": 0, "exitCode": 1, "reason": "RankFailed"}
    words = {"version": 1, "attempt": 1, "outcome": "Failed", "worldSize": 2, "failure": failure}
    w.pod_ends("digits-launcher", 1, json.dumps(words | {"progress": {"step": 100, "totalSteps": 100}}))
    w.settle()
    assert (w.status.attempt, w.status.progress, w.status.progress_summary) == (2, None, "")
    w.report = None
    w.go_on()
    w.start_gang()
    w.launcher_says("Running")
    w.settle()
    assert w.status.progress_summary == ""
    w.launcher_says("Running", step=4)
    w.settle()
    assert w.status.progress_summary == "4/100 (4%)"


def test_a_resumed_job_has_no_step_of_the_attempt_before(w: World) -> None:
    """A suspended job shows its last step; a resumed one shows none until the new attempt has reported."""
    w.launcher_says("Running", step=14)
    w.settle()
    w.report = None
    w.change(runPolicy={"suspend": True})
    w.go_on()
    assert w.status.progress_summary == "14/100 (14%)"
    w.change(runPolicy={"suspend": False})
    w.go_on()
    assert (w.status.attempt, w.status.progress, w.status.progress_summary) == (2, None, "")


def test_a_last_attempt_that_had_nothing_to_do_does_not_end_at_an_earlier_ones_step(w: World) -> None:
    """It found its checkpoint complete and reported no step; an earlier attempt's step says nothing of its end."""
    w.launcher_says("Running", step=25)
    w.settle()
    w.evict("digits-worker-0")
    w.report = None
    w.go_on(seconds=5)
    w.start_gang()
    w.launcher_ends(0)
    assert (w.status.state, w.status.progress, w.status.progress_summary) == ("Succeeded", None, "")


def test_a_gang_that_runs_outlives_a_stricter_schema(w: World) -> None:
    """A template that was accepted once is not judged again while its job runs, but when it is to go on."""
    w.job["spec"]["worker"]["template"]["spec"]["fieldOfYesterday"] = 1
    w.job["status"]["ledger"]["begunWith"] = parse_job(w.job, templates=False).spec.frozen_digest
    w.settle()
    assert w.status.state == "Running"
    w.change(runPolicy={"suspend": True}, unseen=True)
    w.run(seconds=60)
    w.launcher_ends(75, reason="AgentLost", unseen=True)
    w.pods_go()
    w.settle()
    w.change(runPolicy={"suspend": False})
    assert condition(w, "Accepted")[:2] == ("False", "InvalidSpec")
    assert not w.pods


def secrets_of(w: World) -> set[str]:
    """Names of the Secrets that were made."""
    return {ref.name for ref in w.objects if ref.kind == "Secret"}


def test_a_gangs_secret_is_known_by_its_pods(w: World) -> None:
    """An operator that remembers nothing makes none for an attempt whose pods are there, and one for the next."""
    w.objects = {ref: obj for ref, obj in w.objects.items() if ref.kind != "Secret"}
    del w.pods["digits-worker-1"]["status"]
    w.settle()
    assert secrets_of(w) == set()
    w.launcher_ends(1)
    w.go_on(seconds=5)
    assert secrets_of(w) == {"digits-0a1b2c3d"}


def test_an_attempt_has_started_when_a_pod_of_it_exists() -> None:
    """One whose pods are all refused has not, whatever the status counts; then it is said once."""
    w = World(job())
    plan = w.plan()
    assert plan.status is not None
    w.job["status"] = dict(plan.status)
    w.refusals = (Refusal(ObjectRef("Pod", "digits-launcher"), 403, "Forbidden", "exceeded quota: none left"),)
    quota = w.plan()
    assert [event.reason for event in (*plan.events, *quota.events)] == ["QuotaExceeded"]
    w.refusals = ()
    w.start_gang()
    assert w.reasons().count("AttemptStarted") == 1
    w.evict("digits-worker-0")
    w.report = None
    w.go_on(seconds=5)
    w.start_gang()
    assert w.reasons().count("AttemptStarted") == 2


@pytest.mark.parametrize("refused", ["digits-launcher", "digits-worker-1"])
def test_what_is_admitted_of_a_gang_is_given_back(refused: str) -> None:
    """After seconds; the job tries again now and then, and nothing counts."""
    w = World(job(runPolicy={"backoffLimit": 0}))
    w.refusals = (Refusal(ObjectRef("Pod", refused), 403, "Forbidden", "exceeded quota: none left"),)
    for is_due in (False, False, False, True, False, False):
        plan = w.plan()
        if is_due:
            assert plan.requeue_after_s is not None
            w.now += timedelta(seconds=plan.requeue_after_s)
            plan = w.plan()
        w.apply(plan)
        w.pods.pop(refused, None)
    assert (w.pods, w.status.state, w.status.attempt) == ({}, "Queued", 2)
    assert condition(w, "Running")[1] == "QuotaExceeded"
    assert "exceeded quota: none left; the job has released" in condition(w, "Running")[2]
    w.refusals = ()
    w.run(seconds=20)
    w.start_gang()
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 0)
    assert (w.status.ledger.refused, w.status.ledger.waits_since) == ("", None)


@pytest.mark.parametrize(
    ("message", "state", "reason"),
    [
        ('error looking up service account ml/train: serviceaccount "train" not found', "Pending", "CreationRefused"),
        ("exceeded quota: none left", "Queued", "QuotaExceeded"),
    ],
)
@pytest.mark.parametrize(
    "refused", [("digits-worker-0", "digits-worker-1"), ("digits-worker-0",), ("digits-launcher",)]
)
def test_a_refused_job_has_one_state_and_one_reason(
    message: str, state: str, reason: str, refused: tuple[str, ...]
) -> None:
    """While it has a part of its pods, while it has none, and while it tries again. It says so once."""
    w = World(job())
    shown = []
    for _ in range(60):
        w.apply(w.plan())
        w.pods_go()
        names = w.pods.keys() & refused
        w.refusals = tuple(Refusal(ObjectRef("Pod", name), 403, "Forbidden", message) for name in sorted(names))
        for name in names:
            del w.pods[name]
        w.now += timedelta(seconds=2)
        shown.append((w.status.state, *condition(w, "Running")[:2]))
    assert set(shown[1:]) == {(state, "False", reason)}
    assert w.status.attempt > 2 or refused == EVERY_POD
    assert w.reasons().count(reason) == 1


def test_a_gang_keeps_its_pods_if_something_else_than_a_pod_is_refused() -> None:
    """A quota for Secrets does not say that the rest of the gang will find no room."""
    w = World(job())
    w.refusals = (Refusal(ObjectRef("Secret", "digits-0a1b2c3d"), 403, "Forbidden", "exceeded quota: none left"),)
    for seconds in (0, 0, 0, 11, 0, 0):
        w.now += timedelta(seconds=seconds)
        w.pods.pop("digits-worker-1", None)
        w.apply(w.plan())
    assert (len(w.pods), w.status.attempt, w.status.ledger.refused_since) == (3, 1, None)


def test_a_job_that_never_ran_is_corrected() -> None:
    """Its pods are made anew from the template as it is now; nothing counts, and its deadline is the same."""
    w = world(backoffLimit=0, activeDeadlineSeconds=100)
    w.pod_waits("digits-worker-0", "ImagePullBackOff", "Back-off pulling image train:1")
    w.run(seconds=10)
    since = w.status.ledger.active_since
    w.job["spec"]["worker"]["template"]["spec"]["containers"][0]["image"] = "train:2"
    w.change()
    assert (w.status.attempt, w.status.restarts, w.status.disruptions, w.status.state) == (2, 0, 0, "Restarting")
    assert condition(w, "Restarting")[1:] == ("Changed", "the job was changed before it ran; attempt 2 begins")
    w.go_on()
    assert {pod["spec"]["containers"][0]["image"] for pod in w.pods.values()} == {"train:2"}
    assert (w.status.ledger.active_since, w.status.ledger.has_run) == (since, False)
    w.start_gang()
    assert w.status.ledger.has_run


def test_a_change_during_a_suspension_that_nobody_saw() -> None:
    """The job was suspended and resumed while no operator looked: its pods are made anew, and an event says why."""
    w = running()
    w.change(runPolicy={"suspend": True}, unseen=True)
    w.change(slotsPerWorker=2, unseen=True)
    w.change(runPolicy={"suspend": False})
    told = "the job was suspended, changed and resumed: its pods are deleted; it starts again"
    assert w.messages("Suspended") == [told]


@pytest.mark.parametrize("code", [0, 1])
def test_a_gang_that_ran_between_two_looks_has_run(code: int) -> None:
    """Nobody looked while it did: its end tells, and what the job is made of is fixed from then on."""
    w = world()
    w.pods_run()
    w.launcher_ends(code)
    assert (w.status.state, w.status.ledger.has_run) == ("Restarting" if code else "Succeeded", True)


def test_a_job_that_was_refused_is_corrected() -> None:
    """The operator refused its template, of which the API server knows nothing: what is applied next may run."""
    w = World(job())
    worker = w.job["spec"]["worker"]["template"]["spec"]["containers"][0]
    worker["imagePullPolicies"] = "Always"
    w.settle()
    assert (w.status.state, w.pods) == ("Rejected", {})
    del worker["imagePullPolicies"]
    w.change()
    w.start_gang()
    assert w.status.state == "Running"


def test_a_correction_is_read_as_strictly_as_the_first_template() -> None:
    """An error in a correction is reported and does not reach the pods."""
    w = world()
    w.pod_waits("digits-worker-0", "ImagePullBackOff", "Back-off pulling image train:1")
    w.settle()
    w.job["spec"]["worker"]["template"]["spec"]["containers"][0]["imagePullPolicies"] = "Always"
    w.change()
    assert w.status.state == "Rejected"
    assert "imagePullPolicies" in condition(w, "Accepted")[2]


def test_the_status_says_why_in_one_word() -> None:
    """`kubectl get -o wide` shows state, reason and workers; an ended job shows no worker count."""
    w = world()
    assert (w.status.state, w.status.reason, w.status.workers) == ("Pending", "WaitingForPods", "0/2")
    w.start_gang()
    assert (w.status.state, w.status.reason, w.status.workers) == ("Running", "GangRunning", "2/2")
    w.launcher_ends(0)
    assert (w.status.state, w.status.reason, w.status.workers) == ("Succeeded", "AllRanksSucceeded", "-")


def test_a_side_container_that_fails_while_training_goes_on() -> None:
    """The job runs on; its condition, one event and `dtj why` say what it lacks."""
    w = world()
    w.start_gang()
    since = w.status.condition("Running")
    failed = {"name": "proxy", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    for name in ("digits-worker-0", "digits-worker-1"):
        w.pods[name]["status"]["containerStatuses"].append(failed)
    w.run(seconds=60)
    failure = "in digits-worker-0 side container proxy exited with 1, and those of 1 more pod"
    text = f"attempt 1 runs with 2 ranks; {failure}"
    assert condition(w, "Running") == ("True", "SideContainerFailed", text)
    assert (w.status.state, w.status.reason) == ("Running", "SideContainerFailed")
    now = w.status.condition("Running")
    assert now.last_transition_time == since.last_transition_time
    assert [event.type for event in w.events if event.reason == "SideContainerFailed"] == ["Warning"]
    causes = "\n".join(explain_job(w.job, list(w.pods.values()), []))
    assert f"SideContainerFailed: {text}" in causes
    assert "digits-worker-1: side container proxy exited with 1" in causes.replace(" on node-of-digits-worker-1", "")


def test_a_secret_that_is_there_already_is_not_trusted() -> None:
    """The creator of an existing Secret knows its content, so the job gets another one, and its pods mount that."""
    w = World(job())
    w.taken_secrets = frozenset({ObjectRef("Secret", "digits-0a1b2c3d")})
    w.settle()
    assert secrets_of(w) == {"digits-0a1b2c3d-1"}
    mounted = {
        volume["secret"]["secretName"]
        for pod in w.pods.values()
        for volume in pod["spec"]["volumes"]
        if "secret" in volume
    }
    assert (len(w.pods), mounted) == (3, {"digits-0a1b2c3d-1"})


@pytest.mark.parametrize(("scheduling", "events"), [({"queue": "research"}, 1), ({}, 0)])
def test_a_queue_without_workloads_of_kueue_is_reported(scheduling: dict[str, str], events: int) -> None:
    """Without Kueue the labels of the queue have no effect, and the job runs at once."""
    w = World(job(scheduling=scheduling))
    w.start_gang()
    assert w.reasons().count("QueueByLabels") == events
    accepted = w.status.condition("Accepted")
    assert accepted is not None
    assert ("does not wait in the queue research: the operator found no Kueue" in accepted.message) == events


@pytest.mark.parametrize(("generation", "observed"), [(3, 3), (None, 1)])
def test_a_refused_job_has_the_generation_that_was_refused(generation: int | None, observed: int) -> None:
    """The first one if its file has none."""
    w = World(job(slotsPerWorker=0))
    w.job["metadata"]["generation"] = generation
    w.settle()
    assert condition(w, "Accepted")[0] == "False"
    assert w.job["status"]["observedGeneration"] == observed
