"""JAX's own collectives over `jax.distributed`, on the ranks of a job that names a template."""

from pathlib import Path
from typing import Any

from support.cluster import OpenCluster
from support.jobs import state
from support.kubelet import ProcessRuntime
from support.needs import need
from support.scenario import operated

from ringtrain_operator.cluster.api.resources import JOBS, TEMPLATES

need("jax")
ENDED_WITHIN_S = 200.0  # some 20 s on an idle machine
# In its first attempt process 1 ends in the middle.
SCRIPT = """
import os, jax, jax.numpy as jnp, numpy as np, ringtrain.jax
from jax.sharding import NamedSharding, PartitionSpec
jax.distributed.initialize()
mesh = jax.make_mesh((2,), ("data",))
own = np.array([10.0 ** jax.process_index()], "float32")
rows = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("data")), own)
total = float(jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(rows))
if (os.environ["RINGTRAIN_ATTEMPT"], jax.process_index()) == ("1", 1):
    os._exit(3)
print("process", jax.process_index(), "of", jax.process_count(), "has", total, flush=True)
jax.distributed.shutdown()
"""
API: dict[str, Any] = {"apiVersion": "ringtrain.dev/v1alpha1"}


async def test_processes_find_each_other_in_every_attempt(
    one_cluster: OpenCluster, tmp_path: Path, runtime: ProcessRuntime
) -> None:
    """initialize() has no arguments, and sums are those of all processes; also after a restart."""
    containers = [{"name": "train", "image": "jax", "env": [{"name": "JAX_PLATFORMS", "value": "cpu"}]}]
    template = {
        **API,
        "kind": "TrainingTemplate",
        "metadata": {"name": "jax"},
        "spec": {
            "job": {"worker": {"template": {"spec": {"containers": containers}}}, "runPolicy": {"backoffLimit": 1}}
        },
    }
    job = {
        **API,
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "mine"},
        "spec": {
            "templateRef": {"kind": "TrainingTemplate", "name": "jax"},
            "worker": {
                "replicas": 2,
                "template": {"spec": {"containers": [{"command": ["python", "-c", SCRIPT]}]}},
            },
        },
    }
    async with operated(one_cluster(), runtime, tmp_path) as (c, ns):
        await c.api.create(TEMPLATES["TrainingTemplate"], ns, template)
        await c.api.create(JOBS, ns, job)
        done = await c.until(JOBS, ns, "mine", lambda j: state(j) in ("Succeeded", "Failed"), ENDED_WITHIN_S)
        log = b"".join([line async for line in c.api.pod_log(ns, "mine-launcher")]).decode()
    assert state(done) == "Succeeded", f"{done['status']}\n{log}"
    assert done["status"]["restarts"] == 1
    for process in (0, 1):
        assert f"[{process}] process {process} of 2 has 11.0" in log, log
