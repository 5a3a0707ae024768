"""Termination messages that no launcher of ours has written."""

import json

import pytest
from support.jobs import job
from support.planworld import started


@pytest.mark.parametrize(
    "words",
    [
        {"failure": {"reason": "RankFailed", "logTail": 5}},
        {"failure": {"reason": "RankFailed", "rank": 2**70, "exitCode": "many"}},
        {"failure": [1]},
        {"progress": {"step": 3, "metrics": [0.5]}},
        {"progress": {"step": 2**70, "totalSteps": 2**70}},
        {"progress": "far"},
    ],
    ids=lambda words: json.dumps(words)[:60],
)
def test_termination_messages_that_make_no_sense(words: dict[str, object]) -> None:
    """Any program in the pod can write its termination message: the attempt has failed, whatever is in it."""
    w = started(job(runPolicy={"backoffLimit": 0}))
    message = {"version": 1, "attempt": 1, "outcome": "Failed", "worldSize": 2, "ranksSucceeded": 0, **words}
    w.pod_ends("digits-launcher", 3, json.dumps(message))
    w.settle()
    assert w.status.state == "Failed"
    numbers = (w.status.failure.rank or 0, w.status.progress.step if w.status.progress else 0)
    assert max(numbers) < 2**63
