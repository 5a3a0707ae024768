"""A job whose logs an object store does not take says so, and says when it does again."""

import json
from typing import Any

import pytest
from support.jobs import job
from support.planworld import World, condition, started

WHY = "s3://logs/x cannot be written: refused"


def shipping(w: World, problem: str | None) -> None:
    """Set the launcher's report on its logs from now on."""
    w.launcher_says("Running", 12)
    told = {"uri": "s3://logs/x", "pendingBytes": 70, "problem": problem, "since": 5.0 if problem else None}
    w.report["logs"] = {"lines": 1, "dropped": 0, "shipping": told}
    w.settle()


def ends(w: World, code: int, unshipped: dict[str, Any] | None) -> None:
    """The launcher has ended; what it says of its logs is in its last words."""
    w.launcher_ends(code, unseen=True)
    (container,) = w.pods["digits-launcher"]["status"]["containerStatuses"]
    ended = container["state"]["terminated"]
    ended["message"] = json.dumps({**json.loads(ended["message"]), "unshipped": unshipped})
    w.settle()


@pytest.fixture
def world() -> World:
    """A job that ships its logs, and runs."""
    w = World(job(logs={"uri": "s3://logs/x"}))
    w.start_gang()
    shipping(w, None)
    return w


def test_it_is_said_while_the_job_runs_and_cleared_when_the_store_is_back(world: World) -> None:
    """The job runs on; one event each way, and none while nothing is wrong."""
    assert condition(world, "LogsNotShipped")[:2] == ("False", "Shipping")
    assert "LogsShipped" not in world.reasons()
    shipping(world, WHY)
    status, reason, message = condition(world, "LogsNotShipped")
    assert (status, reason, world.status.state) == ("True", "StoreUnavailable", "Running")
    assert WHY in message
    world.report = None  # nobody knows better
    world.settle()
    assert condition(world, "LogsNotShipped")[0] == "True"
    shipping(world, None)
    assert condition(world, "LogsNotShipped")[0] == "False"
    assert world.reasons().count("LogsNotShipped") == world.reasons().count("LogsShipped") == 1


@pytest.mark.parametrize("unshipped", [None, {"pendingBytes": 70, "problem": WHY}], ids=["shipped", "left"])
def test_the_end_has_the_last_word(world: World, unshipped: dict[str, Any] | None) -> None:
    """A job that has ended keeps saying what only a volume has; what came into the store meanwhile is shipped."""
    shipping(world, WHY)
    ends(world, 0, unshipped)
    assert world.status.state == "Succeeded"
    status, reason, message = condition(world, "LogsNotShipped")
    if unshipped is None:
        assert (status, reason) == ("False", "Shipped")
    else:
        assert (status, reason) == ("True", "NotShipped")
        assert "attempt 1 ended with 70 bytes of logs that are only on its launcher's volume" in message


def test_an_attempt_that_fails_has_it_told_before_the_next_one(world: World) -> None:
    """Its pod goes, and an event says which bytes went with it."""
    ends(world, 1, {"pendingBytes": 70, "problem": WHY})
    told = [event.message for event in world.events if event.reason == "LogsNotShipped"]
    assert len(told) == 1
    assert "attempt 1 ended with 70 bytes" in told[0]


def test_a_job_without_a_store_says_nothing() -> None:
    """Neither does one whose launcher has not told yet."""
    plain = started(job())
    silent = started(job(logs={"uri": "s3://logs/x"}))
    assert all(w.status.condition("LogsNotShipped") is None for w in (plain, silent))
