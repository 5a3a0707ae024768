"""Invariants that hold for any events, in any order, and for an operator crash at any point."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.jobs import job
from support.planworld import World, started

from ringtrain_operator import contract
from ringtrain_operator.placement.gangs import GangsView
from ringtrain_operator.workers.incarnations import incarnations_of, worker_incarnation_number

pytestmark = pytest.mark.slow

BACKOFF_LIMIT = 2

# What kubelets, nodes, users and time do to a job; an action that does not fit the moment does nothing.
ACTIONS = (
    "pods-run",
    "gang-runs",
    "pods-go",
    "launcher-fails",
    "launcher-succeeds",
    "worker-fails",
    "evict",
    "delete-pod",
    "lose-pod",
    "suspend",
    "resume",
    "scale",
    "second",
    "hour",
    "plan",
    "plan-and-die",
)

# What a launcher says of an elastic job besides.
ELASTIC_ACTIONS = (*ACTIONS, "world", "silent-worker", "launcher-comes-back", "launcher-is-lost")

steps = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9)), max_size=40)


def act(w: World, action: str, number: int) -> None:
    """Let one thing happen."""
    names = sorted(w.pods)
    name = names[number % len(names)] if names else ""
    launcher = w.name("launcher")
    match action:
        case "pods-run":
            for pod in names:
                if not _ended(w.pods[pod]):
                    w.pod_runs(pod)
        case "gang-runs" if len(names) == w.status.ledger.attempt_workers + 1:
            w.launcher_says("Running", step=number)
        case "pods-go":
            w.pods_go()
        case "launcher-fails" if launcher in w.pods and not _ended(w.pods[launcher]):
            w.launcher_ends(1 + number, reason="AgentLost" if number % 2 else "RankFailed", unseen=True)
        case "launcher-succeeds" if launcher in w.pods and not _ended(w.pods[launcher]) and number == 0:
            w.launcher_ends(0, unseen=True)
        case "worker-fails" if name and name != launcher and not _ended(w.pods[name]):
            w.harm(name)
            w.pod_ends(name, 1 + number)
        case "evict" if name and not _ended(w.pods[name]):
            w.harm(name)
            w.evict(name)
        case "delete-pod" if name:
            w.harm(name)
            w.user_deletes(name)
        case "lose-pod" if name:
            w.harm(name)
            del w.pods[name]
        case "suspend" | "resume":
            w.change(runPolicy={"suspend": action == "suspend", "backoffLimit": BACKOFF_LIMIT}, unseen=True)
        case "scale":
            w.job["spec"]["worker"]["replicas"] = 1 + number % 3
            w.change(unseen=True)
        case "world" if w.report is not None and w.report["phase"] == "Running":
            w.world_is(1 + number, max(1, w.status.ledger.attempt_workers - number % 2), lostSteps=number, unseen=True)
        case "silent-worker" if w.report is not None and w.report["phase"] == "Running":
            index = number % len(w.report["workers"])
            if w.name(f"worker-{index}") in w.pods:
                w.harm(w.name(f"worker-{index}"))
                w.report["workers"][index]["lost"] = True
        case "launcher-comes-back" if launcher in w.pods and not _ended(w.pods[launcher]):
            w.harm(launcher)  # unless it comes back
            w.pod_ends(launcher, 137)
            w.pods[launcher]["status"]["phase"] = "Running"
            w.report = None
        case "launcher-is-lost" if launcher in w.pods:
            w.harm(launcher)
            if number % 2:
                w.user_deletes(launcher)
            else:
                del w.pods[launcher]
            w.report = None
        case "second" | "hour":
            w.run(**{f"{action}s": 1})
        case "plan":
            w.apply(w.plan())
        case "plan-and-die":
            w.apply(w.plan(), writes=number % 4)


def _ended(pod: dict[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


# A gang scheduler in each world: a job without a queue gets a group for each of its attempts.
GANGS = GangsView({"Kubernetes": ""}, {"Kubernetes": "scheduling.k8s.io/v1alpha2"})


def lives(history: list[tuple[str, int]], **spec: Any) -> Iterator[World]:
    """The world of a running gang after each step of `history`; `spec` makes it elastic."""
    w = started(job(runPolicy={"backoffLimit": BACKOFF_LIMIT}, **spec), schedulers=GANGS)
    yield w
    for action, number in history:
        act(w, action, number)
        yield w


def after(history: list[tuple[str, int]], **spec: Any) -> World:
    """The world after the whole of `history`."""
    *_, last = lives(history, **spec)
    return last


elastic_steps = st.lists(st.tuples(st.sampled_from(ELASTIC_ACTIONS), st.integers(0, 9)), max_size=40)
ELASTIC = {"elastic": {"maxReplicas": 3}}
kinds = st.one_of(
    st.tuples(st.just({}), steps),
    st.tuples(st.just(ELASTIC), elastic_steps),
)

quick = settings(max_examples=150)


@quick
@given(kinds)
def test_never_two_attempts_at_once(case: tuple[dict[str, Any], list[tuple[str, int]]]) -> None:
    """Pods of two attempts never exist together, whatever is lost and wherever the operator dies."""
    for w in lives(case[1], **case[0]):
        attempts = {pod["metadata"]["labels"]["ringtrain.dev/attempt"] for pod in w.pods.values()}
        assert len(attempts) <= 1


@quick
@given(kinds)
def test_never_more_restarts_than_allowed(case: tuple[dict[str, Any], list[tuple[str, int]]]) -> None:
    """Counted restarts never exceed backoffLimit, and attempts never go back."""
    attempt = 0
    for w in lives(case[1], **case[0]):
        assert w.status.restarts <= BACKOFF_LIMIT
        assert w.status.attempt >= attempt
        attempt = w.status.attempt


@quick
@given(kinds)
def test_terminal_is_sticky(case: tuple[dict[str, Any], list[tuple[str, int]]]) -> None:
    """A job that has ended never runs, restarts, or creates anything again."""
    state = None
    for w in lives(case[1], **case[0]):
        if state in ("Succeeded", "Failed"):
            assert w.status.state == state
            assert not w.plan().create
        state = w.status.state


@quick
@given(kinds)
def test_the_plan_converges(case: tuple[dict[str, Any], list[tuple[str, int]]]) -> None:
    """Applied, and with nothing happening, the plan has soon nothing more to do."""
    after(case[1], **case[0]).settle(rounds=6)


@quick
@given(kinds)
def test_conditions_agree(case: tuple[dict[str, Any], list[tuple[str, int]]]) -> None:
    """At most one of Running, Suspended, Succeeded, Failed is True, and state names it."""
    for w in lives(case[1], **case[0]):
        true = [
            c.type
            for c in w.status.conditions
            if c.status == "True" and c.type not in ("Accepted", "Restarting", "Degraded")
        ]
        assert len(true) <= 1
        if true:
            assert w.status.state == true[0]


@quick
@given(kinds)
def test_a_dead_operator_changes_nothing_but_time(case: tuple[dict[str, Any], list[tuple[str, int]]]) -> None:
    """After any operator crashes between two writes, an undisturbed job gets all its pods, or has ended."""
    w = after(case[1], **case[0])
    w.change(runPolicy={"backoffLimit": BACKOFF_LIMIT}, unseen=True)
    for _ in range(4):
        w.pods_go()
        w.run(hours=1)
    if w.status.state not in ("Succeeded", "Failed"):
        assert set(w.pods) == {
            w.name("launcher"),
            *(w.name(f"worker-{i}") for i in range(w.status.ledger.attempt_workers)),
        }


@quick
@given(kinds)
def test_no_group_is_left_behind(case: tuple[dict[str, Any], list[tuple[str, int]]]) -> None:
    """After any operator crashes, only the current attempt's group exists; each pod is in its own attempt's group."""
    w = after(case[1], **case[0])
    w.settle()
    of_attempt = f"{w.job['metadata']['name']}-{w.job['metadata']['uid'][:8]}-"
    groups = [ref.name for ref in w.groups]
    attempts = {pod["metadata"]["labels"][contract.LABEL_ATTEMPT] for pod in w.pods.values()}
    if w.status.finished or w.status.is_true("Suspended"):
        assert groups == []
    elif str(w.status.attempt) in attempts:
        assert groups == [f"{of_attempt}{w.status.attempt}"]
    assert set(groups) <= {f"{of_attempt}{w.status.attempt}"}
    for pod in w.pods.values():
        attempt = pod["metadata"]["labels"][contract.LABEL_ATTEMPT]
        assert pod["spec"]["schedulingGroup"]["podGroupName"] == f"{of_attempt}{attempt}"


@quick
@given(elastic_steps)
def test_an_elastic_jobs_pods_are_numbered(history: list[tuple[str, int]]) -> None:
    """Never two pods of one index, or two launchers, of one incarnation; incarnations and formations only grow."""
    formation, w = (0, 0), None
    for w in lives(history, **ELASTIC):
        now = (w.status.attempt, w.status.elastic.formation if w.status.elastic else 0)
        assert now >= formation
        formation = now
    newest: dict[str, int] = {}
    for name, number, _uid in w.made:
        assert number > newest.get(name, 0)
        newest[name] = number


@quick
@given(elastic_steps)
def test_what_is_told_of_losses_is_true(history: list[tuple[str, int]]) -> None:
    """A pod that the operator itself took away, or never made, is not told as lost."""
    for w in lives(history, **ELASTIC):
        lost = {(loss.pod, loss.incarnation) for loss in incarnations_of(w.status).losses}
        assert lost <= w.harmed


@quick
@given(elastic_steps)
def test_an_elastic_job_left_to_itself_is_complete(history: list[tuple[str, int]]) -> None:
    """After any operator crashes between two writes, exactly the last pod of each worker and the last launcher
    exist."""
    w = after(history, **ELASTIC)
    w.change(runPolicy={"backoffLimit": BACKOFF_LIMIT}, unseen=True)
    for _ in range(4):
        w.pods_go()
        w.run(hours=1)
    if w.status.state in ("Succeeded", "Failed"):
        return
    assert w.status.ledger.attempt_workers == w.job["spec"]["worker"]["replicas"]
    numbers = {name: int(pod["metadata"]["labels"][contract.LABEL_INCARNATION]) for name, pod in w.pods.items()}
    wanted = range(w.status.ledger.attempt_workers)
    assert numbers == {
        w.name("launcher"): incarnations_of(w.status).launcher,
        **{w.name(f"worker-{i}"): worker_incarnation_number(w.status, i) for i in wanted},
    }
