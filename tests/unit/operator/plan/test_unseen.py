"""The launcher's pod is removed before anybody has read how it ended: its workers know."""

from typing import Any

import pytest
from support.jobs import job, termination_message
from support.planworld import World, condition, elastic, running, started

# A worker's termination message; None: its container left none.
SAYS, FAILED = termination_message(), termination_message("Failed", rank=1, exitCode=3, reason="RankFailed")


def removed(w: World, *workers: tuple[int, str] | None) -> World:
    """The launcher's pod is no more; each worker has ended with a code and a message, or None: it still runs."""
    del w.pods["digits-launcher"]
    w.report = None
    for index, end in enumerate(workers):
        if end is not None:
            w.pod_ends(f"digits-worker-{index}", *end)
    return w


@pytest.mark.parametrize(
    "workers",
    [((0, SAYS), (0, SAYS)), ((0, SAYS), None), (None, (0, SAYS)), ((0, SAYS), (137, "")), ((0, ""), (0, ""))],
    ids=["all-say-so", "first-says-so", "second-says-so", "the-other-was-killed", "exit-codes"],
)
def test_a_success_that_nobody_saw(workers: Any) -> None:
    """The job has succeeded: nothing runs again."""
    w = running()
    before = w.uids()
    removed(w, *workers).go_on(seconds=600)
    assert (w.status.state, w.status.attempt, w.status.restarts) == ("Succeeded", 1, 0)
    assert condition(w, "Succeeded")[1] == "AllRanksSucceeded"
    assert "the launcher's pod was deleted before its end was read" in condition(w, "Succeeded")[2]
    assert w.uids().items() <= before.items()


def test_a_success_of_an_elastic_job_that_nobody_saw() -> None:
    """No other launcher is made for it."""
    w = elastic()
    removed(w, (0, termination_message(world=3)), (143, ""), None).go_on(seconds=600)
    assert (w.status.state, w.status.attempt) == ("Succeeded", 1)
    assert "digits-launcher" not in w.pods


@pytest.mark.parametrize(
    "workers",
    [
        ((0, termination_message(attempt=2)), None),
        ((0, ""), None),
        ((0, ""), (75, "")),
        ((0, termination_message("Stopped")), (0, "")),
        (None, None),
    ],
    ids=["of-another-attempt", "without-a-message", "one-of-two", "says-something-else", "all-run"],
)
def test_what_is_no_success(workers: Any) -> None:
    """The gang starts again, as without its launcher's pod it has to."""
    w = removed(running(), *workers)
    w.settle()
    assert (w.status.state, w.status.attempt, w.status.disruptions) == ("Restarting", 2, 1)


def test_a_job_without_workers_pods_has_not_succeeded() -> None:
    """All pods of the gang were removed: nobody knows anything."""
    w = running()
    w.pods.clear()
    w.settle()
    assert (w.status.state, w.status.attempt) == ("Restarting", 2)


def test_a_failure_that_nobody_saw() -> None:
    """It counts, and the rules for failures hold: the workers say what it was."""
    w = started(job(runPolicy={"failureRules": [{"action": "FailJob", "onExitCodes": {"values": [3]}}]}))
    removed(w, (75, FAILED), (3, FAILED)).run(seconds=60)
    assert (w.status.state, w.status.failure.exit_code, w.status.failure.rank) == ("Failed", 3, 1)


@pytest.mark.parametrize("reason", ["LauncherFailed", "NotAssembled"])
def test_workers_that_only_miss_their_launcher(reason: str) -> None:
    """Its pod was taken away: that is no failure of the job's."""
    w = running(backoffLimit=0)
    alone = termination_message("Failed", reason=reason, pod="digits-worker-0", message="it has not answered for 60 s")
    removed(w, (75, alone), (75, alone)).settle()
    assert (w.status.state, w.status.attempt, w.status.disruptions) == ("Restarting", 2, 1)
