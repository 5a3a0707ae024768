"""Data workers: pods beside the gang that outlive attempts and are replaced one by one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.jobs import job
from support.planworld import World, condition, settled, started
from support.playedkueue import PlayedKueue

from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.observe.model import Refusal
from ringtrain_operator.plan import Plan

NAMES = ["digits-data-0", "digits-data-1"]


def served(replicas: int = 2, autoscale: dict[str, Any] | None = None, **spec: Any) -> World:
    """A job with data workers whose gang and data workers run."""
    data = {"replicas": replicas} | ({"autoscale": autoscale} if autoscale else {})
    w = started(job(dataWorkers=data, **spec))
    input_is(w, 0.0, *range(replicas))
    return w


def input_is(w: World, waited: float | None, *registered: int) -> None:
    """Set the launcher's report on its data workers from now on."""
    w.launcher_says("Running", 12)
    workers = [{"index": i, "pod": w.name(f"data-{i}"), "registered": True} for i in registered]
    w.report["data"] = {"wanted": 2, "registered": len(registered), "workers": workers, "waitFraction": waited}
    w.settle()


def data_pods(w: World) -> list[str]:
    """Names of the data workers' pods."""
    return sorted(name for name in w.pods if "-data-" in name)


def shape(w: World) -> tuple[int, int, float | None]:
    """The field dataWorkers of the status."""
    assert w.status.data_workers is not None
    found = w.status.data_workers
    return found.desired, found.ready, found.wait_fraction


@pytest.fixture
def w() -> World:
    return served()


def test_they_are_made_with_the_gang_and_after_it() -> None:
    """The gang's pods come first; theirs have no attempt."""
    w = settled(job(dataWorkers={"replicas": 2}))
    assert list(w.pods)[-2:] == NAMES
    assert "ringtrain.dev/attempt" not in w.pods[NAMES[0]]["metadata"]["labels"]
    assert w.status.data_workers is not None


def test_the_gang_waits_for_none_of_them() -> None:
    """It runs while they are Pending; that ranks wait for input is said, without an event at a mere start."""
    w = settled(job(dataWorkers={"replicas": 2}))
    for name in ("digits-launcher", "digits-worker-0", "digits-worker-1"):
        w.pod_runs(name)
    input_is(w, None)
    assert w.status.state == "Running"
    assert condition(w, "InputStalled")[:2] == ("True", "DataWorkersStarting")
    assert "InputStalled" not in w.reasons()


@pytest.mark.parametrize("how", ["failed", "ended well", "evicted", "deleted", "gone"])
def test_one_that_is_lost_is_made_anew_and_nothing_else_changes(w: World, how: str) -> None:
    """After each kind of loss, the data worker is replaced; the attempt, its restarts and all other pods stay."""
    before = w.uids()
    victim = NAMES[1]
    match how:
        case "failed":
            w.pod_ends(victim, 1)
        case "ended well":
            w.pod_ends(victim, 0)
        case "evicted":
            w.evict(victim)
        case "deleted":
            w.user_deletes(victim)
        case "gone":
            del w.pods[victim]
    w.go_on()
    assert {name for name, uid in w.uids().items() if before[name] != uid} == {victim}
    assert (w.status.attempt, w.status.restarts, w.status.disruptions, w.status.state) == (1, 0, 0, "Running")
    assert len(w.messages("DataWorkerLost")) == (how in ("failed", "ended well"))


@pytest.mark.slow
def test_one_that_ends_again_and_again_waits_longer_each_time(w: World) -> None:
    """At once after the first end, 1 s after the second, 2 s after the third, up to 300 s."""
    pauses = []
    for _ in range(12):
        w.pod_ends(NAMES[0], 1)
        w.settle()
        waited = 0
        while NAMES[0] not in w.pods:
            w.run(seconds=1)
            waited += 1
        pauses.append(waited)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_the_plan_asks_to_be_woken_for_the_next_pod(w: World) -> None:
    """Nothing else may happen meanwhile."""
    for _ in range(5):
        w.pod_ends(NAMES[0], 1)
        w.settle()
        w.run(seconds=9)
    w.pod_ends(NAMES[0], 1)
    w.settle()
    assert w.plan().requeue_after_s == 16
    w.launcher_ends(0)
    w.run(seconds=10)
    w.go_on()
    assert w.plan().requeue_after_s is None, "a job that has ended makes no pod"


@pytest.mark.parametrize("writes", range(4))
def test_an_end_counts_once_wherever_the_operator_dies(w: World, writes: int) -> None:
    """Noted before the pod is deleted: who looks next neither counts it again nor forgets it."""
    w.pod_ends(NAMES[0], 1)
    w.apply(w.plan(), writes=writes)
    w.settle()
    (note,) = w.status.ledger.ended_pods
    assert (note.pod, note.failures) == (NAMES[0], 1)
    assert NAMES[0] in w.pods


def test_an_operator_that_remembers_nothing_keeps_their_secret(w: World) -> None:
    """Between attempts only they show that the Secret is the job's own."""
    w.launcher_ends(1)
    w.pods_go()
    w.objects = {}
    w.run(seconds=5)
    assert not [ref for ref in w.objects if ref.kind == "Secret"]
    assert w.status.ledger.credentials == 0


def test_strangers_to_the_gang_are_replaced(w: World) -> None:
    """One that mounts another Secret than the gang could not register."""
    w.pods[NAMES[0]]["spec"]["volumes"][0]["secret"]["secretName"] = "digits-older"
    before = w.uids()
    w.go_on()
    assert w.uids()[NAMES[0]] != before[NAMES[0]]


def test_replicas_may_change_in_life(w: World) -> None:
    """More are added, the last ones are taken away; the gang does not notice."""
    gang = {name: uid for name, uid in w.uids().items() if name not in NAMES}
    w.change(dataWorkers={"replicas": 4})
    assert len(data_pods(w)) == 4
    w.change(dataWorkers={"replicas": 1})
    w.go_on()
    assert data_pods(w) == NAMES[:1]
    assert gang.items() <= w.uids().items()


def test_all_lost_is_said(w: World) -> None:
    """InputStalled names the pod and what became of it, as an event, too; it passes with the first one back."""
    for name in NAMES:
        w.pod_ends(name, 1, "MemoryError: decoding")
    input_is(w, 1.0)
    status, reason, message = condition(w, "InputStalled")
    assert (status, reason) == ("True", "DataWorkersLost")
    assert "digits-data" in message
    assert "MemoryError: decoding" in message
    assert w.status.state == "Running"
    assert w.messages("InputStalled") == [message]
    for name in NAMES:
        w.pod_runs(name)
    input_is(w, 0.4, 1)
    assert condition(w, "InputStalled")[:2] == ("False", "DataWorkersReady")
    assert len(w.messages("InputServed")) == 1


def test_another_attempts_launcher_has_to_hear_of_them_first(w: World) -> None:
    """Until then they are starting, whatever became of one long ago; nobody is alarmed."""
    w.pod_ends(NAMES[0], 1)
    w.settle()
    w.pod_runs(NAMES[0])
    w.launcher_ends(1)
    w.go_on(seconds=5)
    for name in ("digits-launcher", "digits-worker-0", "digits-worker-1"):
        w.pod_runs(name)
    input_is(w, None)
    assert (w.status.state, w.status.attempt) == ("Running", 2)
    assert condition(w, "InputStalled")[:2] == ("True", "DataWorkersStarting")
    assert w.messages("InputStalled") == []


def test_what_keeps_them_away_is_said_in_the_words_of_who_does(w: World) -> None:
    """A scheduler, a kubelet, or the API."""
    for name in NAMES:
        w.pod_waits(name, "ImagePullBackOff", "no such image")
    input_is(w, None)
    assert condition(w, "InputStalled")[1:] == (
        "ImagePullBackOff",
        "no data worker is ready, ranks wait for input: digits-data-0: no such image",
    )
    w.refusals = (Refusal(ObjectRef("Pod", NAMES[0]), 403, "Forbidden", "exceeded quota: cpu"),)
    w.settle()
    assert condition(w, "InputStalled")[1] == "CreationRefused"
    assert condition(w, "Running")[:2] == ("True", "GangRunning")


def test_running_without_having_registered_is_not_ready(w: World) -> None:
    """The launcher knows better than the kubelet."""
    input_is(w, 0.9, 1)
    assert shape(w) == (2, 1, 0.9)


def test_the_wait_is_in_the_status(w: World) -> None:
    """As a figure, and in words from 5 % on."""
    input_is(w, 0.231, 0, 1)
    assert shape(w) == (2, 2, 0.23)
    assert w.status.progress_summary == "12/100 (12%), input-bound 23 %"
    input_is(w, 0.9, 0, 1)
    assert w.status.progress_summary == "12/100 (12%), input-bound 90 %"
    input_is(w, 0.05, 0, 1)
    assert w.status.progress_summary == "12/100 (12%), input-bound 5 %"
    input_is(w, 0.04, 0, 1)
    assert w.status.progress_summary == "12/100 (12%)"


@pytest.mark.parametrize("waited", [True, "0.5", float("nan"), float("inf"), [0.5], None])
def test_a_wait_that_is_no_number_is_none(w: World, waited: Any) -> None:
    """A launcher of another version breaks no status."""
    input_is(w, waited, 0, 1)
    assert shape(w) == (2, 2, None)


def test_suspended_there_are_none_and_resumed_they_begin_anew(w: World) -> None:
    """A resumed job forgets the data workers that ended before its suspension."""
    for _ in range(3):
        w.pod_ends(NAMES[0], 1)
        w.settle()
        w.run(seconds=5)
    w.change(runPolicy={"suspend": True})
    w.go_on(seconds=40)
    w.go_on()
    assert w.pods == {}
    assert (shape(w)[:2], condition(w, "InputStalled")[:2]) == ((0, 0), ("False", "Suspended"))
    w.change(runPolicy={"suspend": False})
    assert data_pods(w) == NAMES
    assert w.status.ledger.ended_pods == ()


@pytest.mark.parametrize("policy", ["None", "Running", "All"])
@pytest.mark.parametrize("code", [0, 1])
def test_they_end_with_the_job(policy: str, code: int) -> None:
    """Data workers end with the job under every cleanPodPolicy: none is left running."""
    w = served(runPolicy={"cleanPodPolicy": policy, "backoffLimit": 0})
    w.launcher_ends(code, unseen=True)
    for index in (0, 1):
        w.pod_ends(f"digits-worker-{index}", code)
    w.go_on()
    assert w.status.finished
    assert data_pods(w) == []
    assert shape(w)[:2] == (0, 0)
    assert w.messages("DataWorkerLost") == []


def test_a_job_that_gives_way_keeps_none(w: World) -> None:
    """It waits without pods, theirs among them."""
    w.job["status"]["ledger"]["queuedSince"] = "2026-01-01T00:00:00Z"
    for name in [name for name in w.pods if name not in NAMES]:
        del w.pods[name]
    w.job["status"]["attempt"] = 2
    plan: Plan = w.plan()
    assert {deletion.ref.name for deletion in plan.delete} == set(NAMES)


def test_kueue_admits_them_with_the_job() -> None:
    """A third pod set, for as many as autoscale may want; never more than were admitted."""
    kueue = PlayedKueue()
    data = {"replicas": 2, "autoscale": {"maxReplicas": 3}}
    w = settled(job(scheduling={"queue": "research"}, dataWorkers=data), kueue=kueue)
    sets = {p["name"]: p["count"] for p in kueue.workload["spec"]["podSets"]}
    assert sets == {"launcher": 1, "workers": 2, "data": 3}
    kueue.admit()
    w.start_gang()
    assert data_pods(w) == NAMES
    w.change(dataWorkers={"replicas": 9})
    assert len(data_pods(w)) == 3


def test_in_groups_of_plain_pods_each_is_admitted_by_itself() -> None:
    """A group is an attempt's, and they are replaced at will: none of them is in it, and each is in the queue."""
    w = settled(job(scheduling={"queue": "research"}, dataWorkers={"replicas": 1}))
    labels = {name: pod["metadata"]["labels"] for name, pod in w.pods.items()}
    assert labels["digits-data-0"]["kueue.x-k8s.io/queue-name"] == "research"
    assert "kueue.x-k8s.io/pod-group-name" not in labels["digits-data-0"]
    annotations = w.pods["digits-worker-0"]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/pod-group-total-count"] == "3"


def test_autoscale_adds_and_takes_away() -> None:
    """After a minute of waiting more, after five of none fewer; the number and why are told."""
    w = served(autoscale={"maxReplicas": 8})
    input_is(w, 0.5, 0, 1)
    assert w.plan().requeue_after_s == 60
    w.run(seconds=60)
    assert len(data_pods(w)) == 4
    assert w.messages("DataWorkersScaled") == ["from 2 to 4 data workers; ranks wait for input 50 % of their time"]
    for index in (2, 3):
        w.pod_runs(f"digits-data-{index}")
    input_is(w, 0.0, 0, 1, 2, 3)
    w.run(seconds=300)
    w.go_on()
    assert len(data_pods(w)) == 3
    w.run(seconds=600)
    w.pods_go()
    assert len(data_pods(w)) == 3  # two were too few


def test_autoscale_waits_for_those_that_it_has_asked_for() -> None:
    """Pods that find no room are no reason to ask for more of them."""
    w = served(autoscale={"maxReplicas": 8})
    input_is(w, 0.5, 0)
    w.run(seconds=600)
    assert len(data_pods(w)) == 2


HARMS = ["fail", "evict", "delete", "vanish", "gang fails", "more", "fewer", "time", "suspend"]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(HARMS), st.integers(0, 3), st.integers(0, 4)), max_size=12))
def test_left_to_itself_a_job_has_the_data_workers_that_it_wants(story: list[tuple[str, int, int]]) -> None:
    """An undisturbed job gets all its data workers, after any losses and operator crashes; none counts as a failure."""
    w = served(runPolicy={"backoffLimit": 1000})
    gang_failures = 0
    for harm, index, writes in story:
        name = f"digits-data-{index}"
        if harm == "gang fails" and "digits-launcher" in w.pods:
            gang_failures += 1
            w.launcher_ends(1, unseen=True)
        elif harm in ("more", "fewer"):
            w.change(dataWorkers={"replicas": 4 if harm == "more" else 1}, unseen=True)
        elif harm == "time":
            w.now = w.now.replace(minute=(w.now.minute + 7) % 60, hour=w.now.hour + (w.now.minute >= 53))
        elif harm == "suspend":
            suspend = not w.job["spec"]["runPolicy"].get("suspend", False)
            w.change(runPolicy={"backoffLimit": 1000, "suspend": suspend}, unseen=True)
        elif name in w.pods and "deletionTimestamp" not in w.pods[name]["metadata"]:
            match harm:
                case "fail":
                    w.pod_ends(name, 1)
                case "evict":
                    w.evict(name)
                case "delete":
                    w.user_deletes(name)
                case "vanish":
                    del w.pods[name]
        w.apply(w.plan(), writes=writes)
    w.change(runPolicy={"backoffLimit": 1000, "suspend": False}, unseen=True)
    for _ in range(8):
        w.go_on(seconds=301)
    wanted = w.job["spec"]["dataWorkers"]["replicas"]
    assert data_pods(w) == [f"digits-data-{index}" for index in range(wanted)]
    assert w.status.restarts <= gang_failures


def test_they_outlive_attempts() -> None:
    """The gang restarts; they, and the Secret that they mount, stay."""
    w = served()
    before = w.uids()
    w.launcher_ends(1)
    w.pods_go()
    assert data_pods(w) == NAMES
    w.run(seconds=5)
    assert w.status.attempt == 2
    assert {name: w.uids()[name] for name in NAMES} == {name: before[name] for name in NAMES}
    secrets = [ref.name for ref in w.objects if ref.kind == "Secret"]
    assert len(secrets) == 1


def test_data_workers_that_fell_silent_are_no_mere_start() -> None:
    """They run, and the launcher has lost them: said, as an event, too."""
    w = served()
    input_is(w, 1.0)
    status, reason, message = condition(w, "InputStalled")
    assert (status, reason) == ("True", "DataWorkersSilent")
    assert message.endswith("digits-data-0, digits-data-1 run, but the launcher receives nothing from them")
    assert w.messages("InputStalled") == [message]
