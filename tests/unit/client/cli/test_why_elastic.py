"""Losses of an elastic job in `dtj why` and the metrics."""

import json

from support.planworld import elastic

from ringtrain_client.jobs.causes import explain_job
from ringtrain_operator.cluster.metrics import OperatorMetrics
from ringtrain_operator.cluster.poll import LauncherPollEndpoint
from ringtrain_operator.cluster.reconcile import wanted_workers

VICTIM = "digits-worker-1"


def test_why_tells_the_losses() -> None:
    """The output has the missing worker, the cause and the cost of its loss."""
    w = elastic()
    w.evict(VICTIM)
    w.settle()
    w.world_is(2, 2, lostSteps=1, recoveries=1, lastRecoverySeconds=1.5)
    told = "\n".join(explain_job(json.loads(json.dumps(w.job)), [], []))
    assert "Degraded=True" in told
    assert "2 of 3 ranks train: digits-worker-1" in told
    assert "1 worker lost, 1 step repeated; recovered from 1 interruption, the last within 1.5 s" in told
    assert f"{VICTIM} (incarnation 1) on node node-of-{VICTIM} was disrupted (TerminationByKubelet)" in told


def test_why_counts_no_recovery_of_a_worker_that_left_in_order() -> None:
    """The ranks of a deleted pod leave at a commit: its loss does not interrupt training."""
    w = elastic()
    w.user_deletes(VICTIM)
    w.world_is(2, 2)
    w.go_on()
    w.world_is(3, 3)
    told = "\n".join(explain_job(json.loads(json.dumps(w.job)), [], []))
    assert "  1 worker lost, 0 steps repeated\n" in told


def test_a_lost_state_is_told_in_the_status() -> None:
    """Simultaneous loss of owner and replica appears once in status.failure, an event and `dtj why`."""
    w = elastic()
    message = "no rank of formation 1 is left: training begins at its last checkpoint"
    lost = {
        "reason": "StateLost",
        "message": message,
        "rank": 2,
        "pod": VICTIM,
        "logTail": ["StateLost: ranks [2]"],
    }
    for formation in (2, 3):
        w.world_is(formation, 3, stateLost=lost, unseen=True)
        w.run(seconds=5)
    failure = w.status.failure
    assert (failure.reason, failure.rank, failure.pod, failure.attempt) == ("StateLost", 2, VICTIM, 1)
    assert (w.status.state, w.status.attempt, w.status.restarts) == ("Running", 1, 0)
    assert w.reasons().count("StateLost") == 1
    told = "\n".join(explain_job(json.loads(json.dumps(w.job)), [], []))
    assert f"last failure (attempt 1): StateLost: {message} in {VICTIM}" in told
    assert "| StateLost: ranks [2]" in told


def test_losses_are_counted() -> None:
    """Each loss is counted once, by the change of the status."""
    metrics, w = OperatorMetrics(), elastic()
    before = w.job["status"]
    w.evict(VICTIM)
    w.settle()
    w.world_is(3, 2, lostSteps=1, recoveries=2)
    metrics.status_changed(before, w.job["status"])
    metrics.status_changed(w.job["status"], w.job["status"])
    text = metrics.text().decode()
    for name, value in (("workers_lost", 1), ("recoveries", 2), ("steps_lost", 1), ("formations", 2)):
        assert f"ringtrain_job_{name}_total {value}.0\n" in text


def test_an_elastic_jobs_launcher_is_told_and_no_other() -> None:
    """An elastic job's launcher gets the number of workers of the status; the launcher of another job gets none."""
    w = elastic(workers=3)
    assert wanted_workers(w.job) == 3
    del w.job["spec"]["elastic"]
    assert wanted_workers(w.job) is None
    assert LauncherPollEndpoint("http://10.0.0.7:7351/status").url_of("/workers") == "http://10.0.0.7:7351/workers"
