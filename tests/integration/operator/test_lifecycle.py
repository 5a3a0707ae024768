"""A job's life under the operator, with nodes that run containers by script."""

from pathlib import Path

from support.cluster import OpenCluster
from support.jobs import job, state, termination_message
from support.kubelet import Kubelet, ScriptedRuntime
from support.operating import running_operator

from ringtrain_operator.cluster.api import JOBS, PODS


async def test_a_job_runs_to_succeeded(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Launcher and workers are made and run; when all end well, the job has succeeded."""
    async with open_cluster() as c:
        ns = await c.new_namespace()
        runtime = ScriptedRuntime()
        async with (
            Kubelet(c.api, runtime, tmp_path, namespace=ns),
            running_operator(c.connection, namespaces=(ns,)),
        ):
            await c.api.create(JOBS, ns, job())
            for pod in ("digits-launcher", "digits-worker-0", "digits-worker-1"):
                await c.until(PODS, ns, pod, lambda p: p and p["status"]["phase"] == "Running")
            for pod in ("digits-worker-0", "digits-worker-1"):
                runtime.finish(pod)
            runtime.finish("digits-launcher", message=termination_message())
            done = await c.until(JOBS, ns, "digits", lambda j: state(j) in ("Succeeded", "Failed"))
            assert state(done) == "Succeeded", done["status"]
