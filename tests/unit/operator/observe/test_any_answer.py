"""Termination messages and /status of any content: an attempt ends as its exit codes say."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.jobs import job
from support.lines import JSON_VALUES, TEXTS, nested
from support.planworld import World, started

from ringtrain_operator.observe.pods import by_index, read_report

UNLIMITED = settings(max_examples=60)
SAID: dict[str, Any] = {"version": 1, "attempt": 1, "worldSize": 2, "ranksSucceeded": 2}
RUNNING: dict[str, Any] = {"version": 1, "attempt": 1, "phase": "Running", "worldSize": 2}
PROGRESS = st.fixed_dictionaries(
    {"step": st.integers(0, 9) | JSON_VALUES},
    optional=dict.fromkeys(("totalSteps", "epoch", "samplesPerSecond", "unit", "loss", "metrics"), JSON_VALUES),
)
FAILURE = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("rank", "pod", "node", "exitCode", "signal", "message", "logTail"), JSON_VALUES),
)
ENTRIES = st.fixed_dictionaries({"index": st.integers(-2, 9)}, optional={"to": st.integers(-2, 12)})


@pytest.mark.slow
@UNLIMITED
@given(progress=PROGRESS | JSON_VALUES)
@example(progress={"step": 1, "loss": 10**400, "metrics": {"a": 10**400}})
@example(progress={"step": 1, "unit": "\ud800"})
def test_a_success_whatever_its_progress_says(progress: object) -> None:
    """A launcher that exited 0 and attests all ranks has succeeded."""
    w = started(job())
    w.pod_ends("digits-launcher", 0, json.dumps({**SAID, "outcome": "Succeeded", "progress": progress}))
    _settles(w)
    assert w.status.state == "Succeeded"


@pytest.mark.slow
@UNLIMITED
@given(failure=FAILURE | JSON_VALUES, raw=st.none() | TEXTS | st.sampled_from([nested(2000), nested(10**5)]))
def test_a_failure_whatever_it_says(failure: object, raw: str | None) -> None:
    """A launcher that exited 3 has failed; what it left may be anything that fits into a message, or no JSON."""
    w = started(job(runPolicy={"backoffLimit": 0}))
    told = json.dumps({**SAID, "outcome": "Failed", "failure": failure}) if raw is None else raw
    w.pod_ends("digits-launcher", 3, told)
    _settles(w)
    assert w.status.state == "Failed"


@pytest.mark.slow
@UNLIMITED
@given(more=st.dictionaries(st.sampled_from(["progress", "lastProgressTime", "workers", "ranks", "logs"]), JSON_VALUES))
@example(more={"lastProgressTime": 10**400})
@example(more={"lastProgressTime": 1e300})
@example(more={"progress": {"step": 1, "loss": 10**400, "samplesPerSecond": float("inf")}})
@example(more={"progress": [1]})
def test_any_status_of_a_launcher(more: dict[str, object]) -> None:
    """It is read, or refused with ValueError; what was read leads to a status that the API stores as it is."""
    answer = json.loads(json.dumps({**RUNNING, **more}))
    try:
        read_report(answer)
    except ValueError:
        return
    w = started(job(runPolicy={"progressDeadlineSeconds": 30}))
    w.report = answer
    _settles(w)
    assert w.status.state in ("Running", "Restarting", "Pending")


@pytest.mark.parametrize(
    "answer", [[], "x", {"attempt": 1}, {**RUNNING, "attempt": [1]}, {**RUNNING, "version": "1"}], ids=repr
)
def test_what_is_no_status(answer: Any) -> None:
    """Says so with ValueError."""
    with pytest.raises(ValueError):
        read_report(answer)


@UNLIMITED
@given(entries=st.lists(JSON_VALUES | ENTRIES), most=st.integers(0, 9))
@example(entries=[{"index": 0, "to": 10**30}] * 3, most=9)
@example(entries=[{"index": -5, "to": 2}, {"index": 3, "to": 1}, {"index": 3}], most=9)
def test_any_list_by_index(entries: list[Any], most: int) -> None:
    """Each index below the bound has at most one entry, which is said of it."""
    found = by_index(entries, most)
    assert all(0 <= index < most for index in found)
    assert all(said["index"] <= index <= said.get("to", said["index"]) for index, said in found.items())


def _settles(w: World) -> None:
    """The plan has nothing more to write, and what it wrote is UTF-8 and strict JSON, as the API keeps it."""
    w.settle()
    status = w.job["status"]
    json.dumps(status, allow_nan=False, ensure_ascii=False).encode()
    assert w.plan().status is None
