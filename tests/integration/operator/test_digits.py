"""The sample job with the real runtime in its containers, from the resource to the weights."""

from pathlib import Path

import yaml
from support.cluster import OpenCluster
from support.jobs import state
from support.kubelet import ProcessRuntime
from support.scenario import operated

from ringtrain_operator.cluster.api.resources import JOBS, PODS

ROOT = Path(__file__).parents[3]
TRAINED_WITHIN_S = 200.0  # some 20 s on an idle machine


async def test_the_digits_job_trains(one_cluster: OpenCluster, tmp_path: Path, runtime: ProcessRuntime) -> None:
    """From its manifest to Succeeded, with progress in its status and the ranks' output in the launcher's log."""
    sample = yaml.safe_load((ROOT / "manifests" / "samples" / "digits-ring.yaml").read_text())
    sample["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] += ["--epochs", "2"]
    async with operated(one_cluster(), runtime, tmp_path) as (c, ns):
        await c.api.create(JOBS, ns, sample)
        done = await c.until(JOBS, ns, "digits", lambda j: state(j) in ("Succeeded", "Failed"), TRAINED_WITHIN_S)
        log = b"".join([line async for line in c.api.pod_log(ns, "digits-launcher")]).decode()
        assert state(done) == "Succeeded", f"{done['status']}\n{log}"
        assert done["status"]["restarts"] == 0
        assert done["status"]["progress"]["step"] > 0
        assert "all workers have registered; ranks: 4" in log
        assert "[0] test accuracy: 0.9" in log
        for name in ("digits-launcher", "digits-worker-0", "digits-worker-1"):  # workers may end after the job
            await c.until(PODS, ns, name, lambda pod: pod and pod["status"]["phase"] == "Succeeded")
