"""A job whose loss is not finite, from its rank to the job's status."""

from pathlib import Path

import pytest
from support.apiserver import ControlPlane
from support.cluster import real_cluster
from support.jobs import condition, python_job, state
from support.kubelet import ProcessRuntime
from support.scenario import operated

from ringtrain_client.jobs.causes import explain_job
from ringtrain_operator.cluster.api.resources import JOBS

pytestmark = pytest.mark.apiserver
PROGRAM = """
import os, time
import ringtrain as rt
rt.report(7, loss=float("inf") if os.environ["RANK"] == "1" else 0.5)
time.sleep(300)
"""


async def test_a_job_fails_by_its_loss(control_plane: ControlPlane, tmp_path: Path, runtime: ProcessRuntime) -> None:
    """With failOnNaN: the reason is its own, the message names the rank and the step, and no attempt follows."""
    job = python_job("diverges", PROGRAM, tmp_path, slotsPerWorker=2, runPolicy={"failOnNaN": True})
    async with operated(real_cluster(control_plane), runtime, tmp_path / "nodes") as (c, ns):
        await c.api.create(JOBS, ns, job)
        failed = await c.until(JOBS, ns, "diverges", lambda j: state(j) in ("Succeeded", "Failed"))
    assert condition(failed, "Failed")["reason"] == "NotFinite"
    assert (failed["status"]["restarts"], failed["status"]["attempt"]) == (0, 1)
    told = "\n".join(explain_job(failed, [], []))
    assert "the loss reported by rank 1 is Infinity since step 7 (spec.runPolicy.failOnNaN)" in told
