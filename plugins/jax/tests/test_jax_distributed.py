"""JAX's own world in a converted TrainJob of the runtime jax, as docs/what-your-job-gets.md has it."""

import os
import re
import sys
from pathlib import Path

import yaml
from support.commands import completed
from support.needs import need

need("jax")

ROOT = Path(__file__).parents[3]
DTJ = Path(sys.executable).with_name("dtj")
PROGRAM = """
import os, jax, numpy
from jax.experimental import multihost_utils
{lines}
mine, size = jax.process_index(), jax.process_count()
print("process", mine, "of", size, "sum", multihost_utils.process_allgather(numpy.array([mine + 1])).sum())
"""


def lines_of_the_page() -> str:
    """Return the documentation's lines by which a script finds its world."""
    page = (ROOT / "docs/what-your-job-gets.md").read_text()
    found = re.search(r"```python\n(.*?jax.distributed.initialize.*?)```", page, re.S)
    assert found is not None
    return found[1]


def trainjob() -> str:
    """Two nodes of the runtime jax, whose program is this."""
    command = [sys.executable, "-c", PROGRAM.format(lines=lines_of_the_page())]
    node = {"spec": {"containers": [{"name": "node", "image": "jax:1"}]}}
    ancestor = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    replicated = {"name": "node", "template": {"metadata": ancestor, "spec": {"template": node}}}
    runtime = {"mlPolicy": {"numNodes": 2, "jax": {}}, "template": {"spec": {"replicatedJobs": [replicated]}}}
    job = {"runtimeRef": {"name": "jax-distributed"}, "trainer": {"command": command}}
    api = {"apiVersion": "trainer.kubeflow.org/v1alpha1"}
    objects = [
        {**api, "kind": "ClusterTrainingRuntime", "metadata": {"name": "jax-distributed"}, "spec": runtime},
        {**api, "kind": "TrainJob", "metadata": {"name": "jax"}, "spec": job},
    ]
    return yaml.safe_dump_all(objects)


def test_two_processes_are_one_world(tmp_path: Path) -> None:
    """Each knows its number, and a gather over both has what both gave."""
    made = completed([DTJ, "convert", "-"], input=trainjob(), check=True)
    (tmp_path / "job.yaml").write_text(made.stdout)
    done = completed(
        [DTJ, "local", "--logs", "--plain", "job.yaml"],
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {f"[{rank}] process {rank} of 2 sum 3" for rank in range(2)} <= set(done.stdout.splitlines())
