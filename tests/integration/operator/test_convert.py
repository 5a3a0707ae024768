"""`dtj convert` of a TrainJob whose runtime is on the cluster."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.apiserver import ControlPlane, install_crd
from support.cluster import Cluster, namespace_of, real_cluster
from support.objects import CUSTOM_RESOURCE_DEFINITIONS

from ringtrain_convert.trainjob import GROUP, RUNTIMES, VERSION
from ringtrain_operator.cluster.api.resources import ApiResource

pytestmark = pytest.mark.apiserver
Json = dict[str, Any]
FILE = Path(__file__).parents[2] / "corpus/trainjobs/torch.yaml"


def definition(kind: str) -> Json:
    """A CRD of one of Kubeflow's runtimes; what is in a runtime is not looked at."""
    plural = RUNTIMES[kind]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if kind == "TrainingRuntime" else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@asynccontextmanager
async def with_runtimes(c: Cluster) -> AsyncIterator[None]:
    """Kubeflow's kinds of runtimes are on the cluster."""
    crds = [definition(kind) for kind in RUNTIMES]
    try:
        for crd in crds:
            await install_crd(c.api, crd)
        yield
    finally:
        for crd in crds:
            await c.api.delete(CUSTOM_RESOURCE_DEFINITIONS, None, crd["metadata"]["name"])


async def convert(c: Cluster, folder: Path, job: Json) -> tuple[Json, str]:
    """Run `dtj convert` on a file with only the job; return the converted job and the text on stderr."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    options = ("--kubeconfig", str(c.kubeconfig(folder)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ringtrain_client.cli", "convert", str(path), *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return yaml.safe_load(out) or {}, err.decode()


async def test_a_runtime_is_read_from_the_cluster(control_plane: ControlPlane, tmp_path: Path) -> None:
    """A cluster's own and a namespace's; one that is missing is named, and a cluster that knows no runtimes."""
    job, runtime = yaml.safe_load_all(FILE.read_text())
    async with namespace_of(real_cluster(control_plane)) as (c, namespace):
        _, said = await convert(c, tmp_path, job)
        assert "torch-distributed is neither in the file nor in a cluster: used as in Trainer 2.3" in said
        async with with_runtimes(c):
            cluster_wide = ApiResource(
                f"{GROUP}/{VERSION}", "ClusterTrainingRuntime", RUNTIMES["ClusterTrainingRuntime"]
            )
            await c.api.create(cluster_wide, None, runtime)
            made, said = await convert(c, tmp_path, job)
            command = ["python", "-u", "train.py", "--epochs", "3"]
            assert made["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] == command, said

            own = ApiResource(f"{GROUP}/{VERSION}", "TrainingRuntime", RUNTIMES["TrainingRuntime"])
            runtime["kind"] = job["spec"]["runtimeRef"]["kind"] = "TrainingRuntime"
            runtime["spec"]["mlPolicy"]["numNodes"] = 7
            del job["spec"]["trainer"]["numNodes"]
            await c.api.create(own, namespace, runtime)
            job["metadata"]["namespace"] = namespace
            made, said = await convert(c, tmp_path, job)
            assert made["spec"]["worker"]["replicas"] == 7, said

            job["spec"]["runtimeRef"]["name"] = "other"
            _, said = await convert(c, tmp_path, job)
            assert "TrainingRuntime other is needed" in said
            assert 'trainingruntimes.trainer.kubeflow.org "other" not found' in said
