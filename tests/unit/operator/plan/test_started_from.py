"""The checkpoint that an attempt continued from is reported once, and stays in the status."""

from support.jobs import job
from support.planworld import started

from ringtrain_client.jobs.causes import explain_job

TOLD = "step 140 of /checkpoints/a-uid/attempt-0001/ckpt-0000000140.npz"


def test_it_is_an_event_and_in_why() -> None:
    """From the launcher's first word of it, before any step."""
    w = started(job())
    w.report = {
        "version": 1,
        "attempt": 1,
        "phase": "Running",
        "worldSize": 2,
        "progress": {"step": 140, "startedFrom": TOLD},
    }
    w.settle()
    w.settle()
    assert [e.message for e in w.events if e.reason == "StartedFrom"] == [f"attempt 1 continued from {TOLD}"]
    assert w.status.progress.started_from == TOLD
    assert any(TOLD in line for line in explain_job(w.job, [], []))
