"""Workers of an elastic job that are lost, added and taken away within one attempt."""

from typing import Any

import pytest
from support.jobs import job
from support.planworld import World, condition, elastic, running, settled

from ringtrain_operator import contract
from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.observe.model import Refusal
from ringtrain_operator.workers.incarnations import LOSSES_OF_A_BAD_NODE, incarnations_of

VICTIM = "digits-worker-1"
LAUNCHER = "digits-launcher"


@pytest.fixture
def w() -> World:
    """An elastic job of three workers whose first formation runs."""
    return elastic()


def incarnation(w: World, name: str = VICTIM) -> int:
    """Return the incarnation number in the pod's label."""
    return int(w.pods[name]["metadata"]["labels"][contract.LABEL_INCARNATION])


def replaced(w: World, before: dict[str, str]) -> set[str]:
    """Names of pods that are others than `before`."""
    return {name for name, uid in w.uids().items() if before.get(name) != uid}


def test_first_pods_are_first_incarnations(w: World) -> None:
    """Every worker begins with 1, and so does the launcher."""
    assert [incarnation(w, name) for name in sorted(w.pods)] == [1, 1, 1, 1]
    assert w.status.state == "Running"


@pytest.mark.parametrize("how", ["deleted", "evicted", "gone", "failed"])
def test_a_lost_worker_is_made_anew_within_the_attempt(w: World, how: str) -> None:
    """After each kind of loss, the worker gets its next incarnation in the same attempt; no other pod changes."""
    before = w.uids()
    match how:
        case "deleted":
            w.user_deletes(VICTIM)
        case "evicted":
            w.evict(VICTIM)
        case "gone":
            del w.pods[VICTIM]
        case "failed":
            w.pod_ends(VICTIM, 137, reason="OOMKilled")
    w.run(seconds=6)
    w.go_on()
    assert replaced(w, before) == {VICTIM}
    assert incarnation(w) == 2
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (1, 0, 0)
    assert w.status.state == "Running"
    (text,) = w.messages("WorkerLost")
    assert VICTIM in text
    assert w.status.elastic.lost_workers == 1


def test_a_pod_that_is_ending_is_waited_for(w: World) -> None:
    """A worker's next pod is made when the one before is gone: never two at a time."""
    before = w.uids()
    w.user_deletes(VICTIM)
    w.run(seconds=5)
    assert replaced(w, before) == set()
    w.go_on()
    assert replaced(w, before) == {VICTIM}


def test_a_worker_that_failed_waits_for_the_launchers_word(w: World) -> None:
    """Agents end when the attempt does, the launcher after them: then the attempt has failed, not its workers."""
    w.pod_ends(VICTIM, 1)
    w.settle()
    assert VICTIM in w.pods
    assert w.messages("WorkerLost") == []
    w.launcher_ends(1)
    assert (w.status.attempt, w.status.restarts) == (2, 1)
    assert w.messages("WorkerLost") == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_no_pod_is_made_for_an_attempt_that_ends(w: World, phase: str) -> None:
    """The launcher says so before its pod ends; a worker that is gone meanwhile is not missed."""
    w.launcher_says(phase)
    del w.pods[VICTIM]
    w.run(seconds=10)
    assert VICTIM not in w.pods


def test_workers_that_the_launcher_stopped_wait_longer(w: World) -> None:
    """Exit code 75 says that the attempt ends."""
    w.pod_ends(VICTIM, contract.EXIT_GANG_STOPPED)
    w.run(seconds=20)
    assert w.messages("WorkerLost") == []
    w.run(seconds=11)
    assert len(w.messages("WorkerLost")) == 1


def test_a_worker_that_ended_well_is_left_alone(w: World) -> None:
    """Its ranks are through; the others go on to their end."""
    before = w.uids()
    w.pod_ends(VICTIM, 0)
    w.run(hours=1)
    assert w.uids() == before
    assert w.status.state == "Running"


def test_a_silent_worker_is_deleted(w: World) -> None:
    """A pod that runs and whose agent the launcher has given up is made anew."""
    w.report["workers"][1]["lost"] = True
    w.settle()
    assert "deletionTimestamp" in w.pods[VICTIM]["metadata"]
    w.go_on(hours=1)
    assert incarnation(w) == 2, "what is said of the old pod's agent is not said of the new one's"


@pytest.mark.parametrize("incarnation", [1, 2], ids=["its-agent", "another-pods"])
def test_a_worker_has_joined_by_what_is_said_of_its_own_agent(w: World, incarnation: int) -> None:
    """Only a worker that has joined is deleted when it falls silent: one that never registered is waited for."""
    w.job["status"]["ledger"]["incarnations"]["joined"] = [False] * 3
    w.report["workers"] = [{"index": 0, "to": 2, "incarnation": incarnation, "registered": True, "lost": False}]
    w.settle()
    w.report["workers"][0]["lost"] = True
    w.settle()
    assert ("deletionTimestamp" in w.pods[VICTIM]["metadata"]) == (incarnation == 1)


def lose_launcher(w: World, how: str) -> None:
    """The launcher's pod is taken away; it does not answer any more."""
    match how:
        case "deleted":
            w.user_deletes(LAUNCHER)
        case "evicted":
            w.evict(LAUNCHER)
        case "gone":
            del w.pods[LAUNCHER]
        case "killed":
            w.pod_ends(LAUNCHER, 137, reason="OOMKilled")
        case "asked-to-stop":
            w.pod_ends(LAUNCHER, 143, '{"version":1,"attempt":1,"outcome":"Stopped"}')
    w.report = None
    w.settle()


@pytest.mark.parametrize("how", ["deleted", "evicted", "gone", "killed", "asked-to-stop"])
def test_a_lost_launcher_is_made_anew_within_the_attempt(w: World, how: str) -> None:
    """After each kind of loss, the next launcher gets the world's generation; no worker and no counter changes."""
    before = w.uids()
    lose_launcher(w, how)
    status, reason, message = condition(w, "Degraded")
    assert (status, reason) == ("True", "LauncherLost")
    assert message.startswith(f"{LAUNCHER} ")
    w.go_on()
    assert replaced(w, before) == {LAUNCHER}
    assert incarnation(w, LAUNCHER) == 2
    env = {e["name"]: e.get("value") for e in w.pods[LAUNCHER]["spec"]["containers"][0]["env"]}
    assert env[contract.ENV_ELASTIC_FORMATION] == "1"
    w.pod_runs(LAUNCHER)
    w.launcher_says("Waiting")
    w.run(seconds=30)
    assert condition(w, "Degraded")[1] == "LauncherLost", "it runs, and has not learned the world yet"
    w.world_is(2, 3, unseen=True)
    w.run(hours=1)
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (1, 0, 0)
    assert (w.status.state, condition(w, "Degraded")[:2]) == ("Running", ("False", "Complete"))
    (text,) = w.messages("LauncherLost")
    assert text.startswith(LAUNCHER)
    assert text.endswith("; it will be replaced")
    assert w.status.elastic.lost_workers == 0
    assert w.messages("WorkerLost") == []


def test_a_launcher_that_does_not_come_back_restarts_the_gang_uncounted(w: World) -> None:
    """The gang restarts uncounted if no new launcher learns the world within startTimeoutSeconds."""
    lose_launcher(w, "gone")
    w.run(seconds=590)
    assert (w.status.attempt, incarnation(w, LAUNCHER)) == (1, 2)
    w.pod_runs(LAUNCHER)
    w.launcher_says("Waiting")
    w.run(seconds=11)
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 1)
    found = w.status.condition("Restarting")
    assert "no new one has learned the world within 600 s" in found.message


def test_a_launcher_that_is_lost_with_all_workers_restarts_the_gang_uncounted(w: World) -> None:
    """Nobody is left who knows the world."""
    for name in list(w.pods):
        w.user_deletes(name)
    w.report = None
    w.settle()
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 1)


def test_a_launcher_that_has_said_how_the_attempt_ended_is_not_lost(w: World) -> None:
    """Its word counts, also when its pod is deleted then."""
    w.launcher_ends(1, unseen=True)
    w.user_deletes(LAUNCHER)
    w.settle()
    assert (w.status.attempt, w.status.restarts) == (2, 1)
    assert w.messages("LauncherLost") == []


def test_a_launcher_that_is_lost_before_the_gang_began_restarts_it_uncounted() -> None:
    """There is no world that could be lost with it."""
    w = settled(job(elastic={"maxReplicas": 3}))
    w.pods_run()
    w.launcher_says("Waiting")
    w.user_deletes(LAUNCHER)
    w.settle()
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 1)


def test_a_launcher_that_is_lost_again_and_again_is_made_after_a_pause(w: World) -> None:
    """At once, after 1 s, 2 s; Degraded says when."""
    for pause_s in (0, 1, 2):
        lose_launcher(w, "gone")
        assert (LAUNCHER in w.pods) == (pause_s == 0)
        assert ("will be created at" in condition(w, "Degraded")[2]) == (pause_s > 0)
        w.run(seconds=pause_s)
        w.pod_runs(LAUNCHER)
        w.world_is(1, 3)
    assert (w.status.attempt, incarnation(w, LAUNCHER)) == (1, 4)
    lose_launcher(w, "gone")
    assert w.plan().requeue_after_s == 4
    w.change(runPolicy={"suspend": True})
    w.go_on()
    assert (w.pods, w.plan().requeue_after_s) == ({}, None)


def test_sums_go_on_over_launchers(w: World) -> None:
    """A new launcher that found no notes counts from 0; what was lost before is not forgotten."""
    w.world_is(4, 3, lostSteps=2, recoveries=3)
    lose_launcher(w, "gone")
    w.pod_runs(LAUNCHER)
    w.world_is(5, 3, lostSteps=1, recoveries=0)
    w.world_is(6, 3, lostSteps=2, recoveries=1)
    found = w.status.elastic
    assert (found.formation, found.lost_steps, found.recoveries) == (6, 4, 4)


def test_a_killed_launcher_may_come_back_in_its_pod(w: World) -> None:
    """For a minute its container is expected to run again; then its pod is made anew."""
    w.pod_ends("digits-launcher", 137)
    w.pods["digits-launcher"]["status"]["phase"] = "Running"
    w.report = None
    w.run(seconds=50)
    assert w.status.attempt == 1
    w.pod_runs("digits-launcher")
    w.world_is(2, 3, unseen=True)
    w.run(hours=1)
    assert (w.status.attempt, w.status.state) == (1, "Running")
    w.pod_ends("digits-launcher", 137)
    w.pods["digits-launcher"]["status"]["phase"] = "Running"
    w.report = None
    w.run(seconds=59)
    assert incarnation(w, LAUNCHER) == 1
    w.run(seconds=1)
    w.go_on()
    assert (w.status.attempt, incarnation(w, LAUNCHER)) == (1, 2), "the kubelet did not: it gets another pod"


def test_a_launcher_that_came_back_and_waits_for_agents_has_lost_no_gang(w: World) -> None:
    """The job runs, and an agent that gave up on the launcher meanwhile is one lost worker."""
    w.launcher_says("Waiting")
    w.settle()
    assert w.status.state == "Running"
    w.pod_ends(VICTIM, contract.EXIT_GANG_STOPPED)
    w.run(seconds=31)
    w.run(seconds=1)
    assert (w.status.attempt, w.status.restarts, incarnation(w)) == (1, 0, 2)


def test_incarnations_go_on_over_attempts(w: World) -> None:
    """The next attempt's pods have the next numbers: a number and an index are one pod in all of a job's life."""
    w.launcher_ends(1)
    w.go_on(seconds=5)
    assert w.status.attempt == 2
    assert [incarnation(w, f"digits-worker-{i}") for i in range(3)] == [2, 2, 2]
    assert w.messages("WorkerLost") == []


def test_scaled_up_within_the_attempt(w: World) -> None:
    """New pods at the end, nothing else changes."""
    before = w.uids()
    w.scale(5)
    assert replaced(w, before) == {"digits-worker-3", "digits-worker-4"}
    assert (w.status.attempt, w.status.ledger.attempt_workers) == (1, 5)
    assert w.messages("Scaled") == ["worker.replicas changed from 3 to 5; workers join and leave"]


def test_scaled_down_within_the_attempt(w: World) -> None:
    """The highest indexes are asked to end, which is no loss; scaled up again, they are new incarnations."""
    w.scale(1)
    ending = {name for name, pod in w.pods.items() if "deletionTimestamp" in pod["metadata"]}
    assert ending == {"digits-worker-1", "digits-worker-2"}
    w.scale(2)
    w.go_on()
    assert set(w.pods) == {"digits-launcher", "digits-worker-0", "digits-worker-1"}
    assert incarnation(w) == 2
    assert w.messages("WorkerLost") == []
    assert w.status.attempt == 1


def test_the_world_of_a_launcher_that_no_longer_answers(w: World) -> None:
    """The condition has the last known world, not the requested one; before the first world it has no number."""
    w.world_is(3, 2)
    w.scale(4, unseen=True)
    w.report = None
    w.run(seconds=1)
    assert condition(w, "Running")[2] == "attempt 1 runs with 2 of 4 ranks, generation 3"
    w.launcher_ends(1)
    w.go_on()
    w.launcher_says("Running")
    w.settle()
    assert condition(w, "Running")[2] == "attempt 2 runs"


def test_scaled_down_is_written_before_pods_are_touched(w: World) -> None:
    """An operator that died before the deletions is followed by one that knows whose they were."""
    w.scale(2, unseen=True)
    w.apply(w.plan(), writes=1)
    assert w.status.ledger.attempt_workers == 2
    assert "digits-worker-2" in w.pods
    w.go_on()
    assert "digits-worker-2" not in w.pods
    assert w.messages("WorkerLost") == []


def test_an_operator_that_died_before_it_made_a_pod_infers_no_loss(w: World) -> None:
    """A pod that was never seen may never have been made: the next number, and no word of a loss."""
    w.scale(4, unseen=True)
    w.apply(w.plan(), writes=1)
    assert "digits-worker-3" not in w.pods
    w.settle()
    assert incarnation(w, "digits-worker-3") == 2
    assert w.messages("WorkerLost") == []


@pytest.mark.parametrize(
    ("refused", "number"),
    [(ObjectRef("Pod", VICTIM), 2), (ObjectRef("Secret", "digits-0a1b2c3d"), 2), (ObjectRef("Pod", "other"), 4)],
    ids=["pod", "secret", "another-pod"],
)
def test_a_refused_pod_keeps_its_number(w: World, refused: ObjectRef, number: int) -> None:
    """As long as the API refuses it, or what all pods need, nothing changes in the status, and Degraded says why.

    Of a pod that the API did not refuse, each try has another number: the operator cannot know that it never ran.
    """
    del w.pods[VICTIM]
    w.apply(w.plan(), writes=1)
    w.world_is(2, 2, unseen=True)
    w.refusals = (Refusal(refused, 403, "Forbidden", "exceeded quota"),)
    w.apply(w.plan(), writes=1)
    first = w.plan()
    assert (first.status is None) == (number == 2)
    assert [obj["metadata"]["labels"][contract.LABEL_INCARNATION] for obj in first.create][-1:] == [str(number)]
    if number == 2:
        assert condition(w, "Degraded")[:2] == ("True", "CreationRefused")


def test_losses_of_one_worker_are_followed_by_longer_and_longer_pauses(w: World) -> None:
    """A worker that ends at once is not made anew without a pause: at once, after 1 s, 2 s, 4 s."""
    for pause_s in (0, 1, 2, 4):
        w.pod_ends(VICTIM, 1)
        w.run(seconds=5)
        w.go_on()
        assert (VICTIM in w.pods) == (pause_s == 0)
        w.run(seconds=pause_s)
        assert VICTIM in w.pods
        w.pod_runs(VICTIM)
        w.settle()
    assert w.status.attempt == 1


def test_losses_that_a_clock_ahead_noted_hold_no_pod_back_for_longer(w: World) -> None:
    """The next operator's clock is right, an hour behind: the pod is made after its pause, counted from now."""
    for _ in range(2):
        w.pod_ends(VICTIM, 1)
        w.run(seconds=5)
        w.go_on()
        if VICTIM in w.pods:
            w.pod_runs(VICTIM)
            w.settle()
    w.run(hours=-1)
    assert VICTIM not in w.pods
    w.run(seconds=1)
    assert VICTIM in w.pods
    assert w.plan().status is None


def test_a_worker_that_fails_before_the_gang_began_fails_the_attempt(w: World) -> None:
    """A bad configuration is told at once, and not after start timeouts."""
    w.launcher_ends(1)
    w.go_on(seconds=5)
    w.pods_run()
    w.launcher_says("Waiting")
    w.pod_ends(VICTIM, contract.EXIT_BAD_CONFIGURATION)
    w.settle()
    assert w.status.state == "Failed"


def test_a_pod_taken_away_before_the_gang_began_is_made_anew(w: World) -> None:
    """Nothing is lost with it, and nothing restarts."""
    w.launcher_ends(1)
    w.go_on(seconds=5)
    before = w.uids()
    w.evict(VICTIM)
    w.settle()
    w.settle()
    assert w.status.attempt == 2
    assert replaced(w, before) == {VICTIM}


def test_too_few_workers_for_too_long_do_not_count(w: World) -> None:
    """The launcher gives the attempt up, which is not the job's fault, unless the worker ended by itself."""
    w.user_deletes(VICTIM)
    w.settle()
    w.launcher_ends(75, reason="AgentLost", pod=VICTIM)
    assert (w.status.attempt, w.status.restarts, w.status.disruptions) == (2, 0, 1)
    w.go_on(seconds=5)
    w.start_gang()
    w.pod_ends(VICTIM, 137, reason="OOMKilled")
    w.run(seconds=6)
    w.launcher_ends(75, reason="AgentLost", pod=VICTIM)
    assert (w.status.attempt, w.status.restarts) == (3, 1)


@pytest.mark.parametrize(("ranks", "state"), [(2, "Succeeded"), (8, "Succeeded"), (1, "Failed"), (9, "Failed")])
def test_success_is_attested_for_the_last_world(ranks: int, state: str) -> None:
    """Of any size within the bounds."""
    w = elastic(minReplicas=2)
    message = f'{{"version":1,"attempt":1,"outcome":"Succeeded","worldSize":{ranks},"ranksSucceeded":{ranks}}}'
    w.pod_ends("digits-launcher", 0, message)
    w.change(runPolicy={"backoffLimit": 0})
    assert w.status.state == state


def test_only_wanted_workers_are_waited_for(w: World) -> None:
    """The launcher tells of all that there may ever be."""
    w.launcher_ends(1)
    w.go_on(seconds=5)
    w.pods_run()
    w.launcher_says("Waiting")
    w.report["workers"] = [{"index": i, "registered": i < 2} for i in range(8)]
    w.settle()
    assert condition(w, "Running")[2] == "2 of 3 workers registered; not yet: digits-worker-2"


def test_degraded_while_the_world_is_too_small(w: World) -> None:
    """With the worker that is missing and what became of it; over when all are in."""
    assert condition(w, "Degraded")[:2] == ("False", "Complete")
    w.evict(VICTIM)
    w.world_is(2, 2, lostSteps=1, recoveries=1, lastRecoverySeconds=1.5)
    w.settle()
    status, reason, message = condition(w, "Degraded")
    assert (status, reason) == ("True", "WorkerLost")
    assert "2 of 3 ranks" in message
    assert "low on resource" in message
    w.pod_runs(VICTIM)
    w.settle()
    assert condition(w, "Degraded")[:2] == ("True", "WorkersJoining")
    w.world_is(3, 3, lostSteps=1, recoveries=1, lastRecoverySeconds=1.5)
    assert condition(w, "Degraded")[:2] == ("False", "Complete")
    found = w.status.elastic
    assert (found.formation, found.ranks, found.workers) == (3, 3, 3)
    assert (found.lost_steps, found.recoveries, found.last_recovery_seconds) == (1, 1, 1.5)
    assert w.messages("FormationChanged") == [
        "attempt 1: generation 2 has 2 ranks",
        "attempt 1: generation 3 has 3 ranks",
    ]


def test_degraded_names_one_worker_and_counts_the_others(w: World) -> None:
    """Of two lost workers the first is named."""
    w.evict("digits-worker-0")
    w.evict(VICTIM)
    w.world_is(2, 1)
    assert condition(w, "Degraded")[1] == "WorkerLost"
    assert condition(w, "Degraded")[2].startswith("1 of 3 ranks train: digits-worker-0 ")
    assert condition(w, "Degraded")[2].endswith("; 1 more worker missing")


@pytest.mark.parametrize("tail", [["loading", "gone"], None, "gone"], ids=str)
def test_a_state_that_was_lost_is_the_jobs_failure(w: World, tail: Any) -> None:
    """Rank, pod, node and output are those that the launcher reports; an attempt has it once."""
    lost = {
        "message": "ranks 1, 2 are lost",
        "rank": 1,
        "pod": VICTIM,
        "node": "node-b",
        "exitCode": 3,
        "logTail": tail,
    }
    w.world_is(2, 2, stateLost=lost)
    failure = w.status.failure
    assert (failure.reason, failure.message, failure.attempt) == ("StateLost", "ranks 1, 2 are lost", 1)
    assert (failure.rank, failure.pod, failure.node, failure.exit_code) == (1, VICTIM, "node-b", 3)
    assert failure.log_tail == (("loading", "gone") if isinstance(tail, list) else ())
    w.run(seconds=60)
    assert w.status.failure == failure


def test_sums_go_on_over_attempts(w: World) -> None:
    """Formations begin anew with an attempt; what was lost before is not forgotten."""
    w.world_is(4, 3, lostSteps=2, recoveries=3)
    w.launcher_ends(1)
    w.go_on(seconds=5)
    w.start_gang()
    w.world_is(1, 3, lostSteps=1, recoveries=1)
    found = w.status.elastic
    assert (found.formation, found.lost_steps, found.recoveries) == (1, 3, 4)


def test_a_node_that_loses_workers_again_and_again_is_avoided(w: World) -> None:
    """New pods prefer others for an hour; a node that was drained is not to blame."""
    for _ in range(LOSSES_OF_A_BAD_NODE):
        w.user_deletes("digits-worker-0")
        w.evict(VICTIM)
        w.go_on(seconds=300)
        for name in (VICTIM, "digits-worker-0"):
            assert name in w.pods
            w.pod_runs(name)
        w.settle()
    affinity = w.pods[VICTIM]["spec"]["affinity"]["nodeAffinity"]
    (wish,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["preference"]["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": [f"node-of-{VICTIM}"]}
    ]
    (text,) = w.messages("NodeAvoided")
    assert f"node-of-{VICTIM} has lost 3 workers" in text
    w.run(hours=2)
    w.user_deletes(VICTIM)
    w.pods_go()
    w.settle()
    w.run(seconds=300)
    assert "affinity" not in w.pods[VICTIM]["spec"]


def test_suspended_and_resumed(w: World) -> None:
    """A new attempt; pods that the operator took away were not lost."""
    w.change(runPolicy={"suspend": True})
    w.go_on(seconds=60)
    w.pods_go()
    w.change(runPolicy={"suspend": False})
    assert w.status.attempt == 2
    assert incarnation(w) == 2
    assert w.messages("WorkerLost") == []


def test_a_job_that_is_not_elastic_has_no_notes() -> None:
    """Neither in its status nor on its pods."""
    w = running()
    assert w.status.ledger.incarnations is None
    assert w.status.elastic is None
    assert w.status.condition("Degraded") is None
    assert incarnations_of(w.status).numbers == ()
    assert contract.LABEL_INCARNATION not in w.pods["digits-worker-0"]["metadata"]["labels"]
