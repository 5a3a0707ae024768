"""The sample job with the real runtime in its containers, from the resource to the weights."""

import os
from pathlib import Path

import pytest
import yaml
from support.cluster import OpenCluster, can_open
from support.jobs import state
from support.kubelet import Kubelet, ProcessRuntime
from support.operating import running_operator

from ringtrain_operator.cluster.api.resources import JOBS, PODS

ROOT = Path(__file__).parents[3]
TRAINED_WITHIN_S = 200.0  # some 20 s on an idle machine


@pytest.mark.sampled(1, of="open_cluster", can_run=can_open)
async def test_the_digits_job_trains(open_cluster: OpenCluster, tmp_path: Path, venv_bin: Path) -> None:
    """From its manifest to Succeeded, with progress in its status and the ranks' output in the launcher's log."""
    sample = yaml.safe_load((ROOT / "manifests" / "samples" / "digits-ring.yaml").read_text())
    sample["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] += ["--epochs", "2"]
    runtime = ProcessRuntime(ROOT, {"PATH": f"{venv_bin}:{os.environ['PATH']}"})
    async with open_cluster() as c:
        ns = await c.new_namespace()
        async with (
            Kubelet(c.api, runtime, tmp_path, namespace=ns),
            running_operator(c.operator_connection, namespaces=(ns,)),
        ):
            await c.api.create(JOBS, ns, sample)
            done = await c.until(JOBS, ns, "digits", lambda j: state(j) in ("Succeeded", "Failed"), TRAINED_WITHIN_S)
            log = b"".join([line async for line in c.api.pod_log(ns, "digits-launcher")]).decode()
            assert state(done) == "Succeeded", f"{done['status']}\n{log}"
            assert done["status"]["restarts"] == 0
            assert done["status"]["progress"]["step"] > 0
            assert "all workers are here; ranks: 4" in log
            assert "[0] test accuracy: 0.9" in log
            for name in ("digits-launcher", "digits-worker-0", "digits-worker-1"):  # workers may end after the job
                await c.until(PODS, ns, name, lambda pod: pod and pod["status"]["phase"] == "Succeeded")
