"""What holds whatever happens, in whatever order, and wherever the operator dies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.jobs import job
from support.planworld import World

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
            w.launcher_ends(1 + number, reason="AgentLost" if number % 2 else "RankFailed")
        case "launcher-succeeds" if launcher in w.pods and not _ended(w.pods[launcher]) and number == 0:
            w.launcher_ends(0)
        case "worker-fails" if name and name != launcher and not _ended(w.pods[name]):
            w.pod_ends(name, 1 + number)
        case "evict" if name and not _ended(w.pods[name]):
            w.evict(name)
        case "delete-pod" if name:
            w.user_deletes(name)
        case "lose-pod" if name:
            del w.pods[name]
        case "suspend" | "resume":
            w.change(runPolicy={"suspend": action == "suspend", "backoffLimit": BACKOFF_LIMIT})
        case "scale":
            w.job["spec"]["worker"]["replicas"] = 1 + number % 3
            w.change()
        case "second" | "hour":
            w.run(**{f"{action}s": 1})
        case "plan":
            w.apply(w.plan())
        case "plan-and-die":
            w.apply(w.plan(), writes=number % 4)


def _ended(pod: dict[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def lives(history: list[tuple[str, int]]) -> Iterator[World]:
    """The world of a running gang after each step of `history`."""
    w = World(job(runPolicy={"backoffLimit": BACKOFF_LIMIT}))
    w.start_gang()
    yield w
    for action, number in history:
        act(w, action, number)
        yield w


def after(history: list[tuple[str, int]]) -> World:
    """The world after the whole of `history`."""
    *_, last = lives(history)
    return last


quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(steps)
def test_never_two_attempts_at_once(history: list[tuple[str, int]]) -> None:
    """Pods of two attempts never exist together, whatever is lost and wherever the operator dies."""
    for w in lives(history):
        attempts = {pod["metadata"]["labels"]["ringtrain.dev/attempt"] for pod in w.pods.values()}
        assert len(attempts) <= 1


@quick
@given(steps)
def test_never_more_restarts_than_allowed(history: list[tuple[str, int]]) -> None:
    """Counted restarts never exceed backoffLimit, and attempts never go back."""
    attempt = 0
    for w in lives(history):
        assert w.status.restarts <= BACKOFF_LIMIT
        assert w.status.attempt >= attempt
        attempt = w.status.attempt


@quick
@given(steps)
def test_terminal_is_sticky(history: list[tuple[str, int]]) -> None:
    """A job that has ended never runs, restarts, or creates anything again."""
    state = None
    for w in lives(history):
        if state in ("Succeeded", "Failed"):
            assert w.status.state == state
            assert not w.plan().create
        state = w.status.state


@quick
@given(steps)
def test_the_plan_converges(history: list[tuple[str, int]]) -> None:
    """Applied, and with nothing happening, the plan has soon nothing more to do."""
    after(history).settle(rounds=6)


@quick
@given(steps)
def test_conditions_agree(history: list[tuple[str, int]]) -> None:
    """At most one of Running, Suspended, Succeeded, Failed is True, and state names it."""
    for w in lives(history):
        true = [
            c.type for c in w.status.conditions if c.status == "True" and c.type not in ("Accepted", "Restarting")
        ]
        assert len(true) <= 1
        if true:
            assert w.status.state == true[0]


@quick
@given(steps)
def test_a_dead_operator_changes_nothing_but_time(history: list[tuple[str, int]]) -> None:
    """However often it dies between two writes, a job left to itself then gets all its pods, or has ended."""
    w = after(history)
    w.change(runPolicy={"backoffLimit": BACKOFF_LIMIT})
    for _ in range(4):
        w.pods_go()
        w.run(hours=1)
    if w.status.state not in ("Succeeded", "Failed"):
        assert set(w.pods) == {
            w.name("launcher"),
            *(w.name(f"worker-{i}") for i in range(w.status.ledger.attempt_workers)),
        }
