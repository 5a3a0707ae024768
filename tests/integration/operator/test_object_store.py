"""The sample with an object store in the place of volumes: all that is left of it is read there, by `dtj logs`."""

import asyncio
import base64
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from support.cluster import Cluster, OpenCluster, namespace_of
from support.jobs import condition, state
from support.kubelet import Kubelet, ProcessRuntime
from support.objectstore import Server, environment
from support.operating import running_operator

from ringtrain.shared.storage import ObjectStore
from ringtrain_operator.build.log_reader import LABEL_READER
from ringtrain_operator.cluster.api.resources import JOBS, PODS, SECRETS

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "manifests" / "samples" / "digits-s3.yaml"


async def dtj_logs(c: Cluster, folder: Path, namespace: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `dtj logs digits-s3`, which knows the cluster and nothing of the store."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    command = ("logs", "digits-s3", "--namespace", namespace, *arguments)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ringtrain_client.cli", *command),
        env={**quiet, "KUBECONFIG": str(c.kubeconfig(folder))},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def objects_of_checkpoints(s3: Server) -> list[str]:
    """Manifests below the job's URI."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(s3.url).items():
            patch.setenv(name, value)
        store = ObjectStore("s3://my-bucket/checkpoints")
        try:
            return [name for name in store.names() if name.endswith("manifest.json")]
        finally:
            store.close()


async def test_a_job_leaves_all_in_its_bucket(
    one_cluster: OpenCluster, tmp_path: Path, runtime: ProcessRuntime, s3: Server
) -> None:
    """Its pods and their files are gone; the Secret of the manifest opens the bucket, also for its reader."""
    s3.make_bucket("my-bucket")
    sample = yaml.safe_load(SAMPLE.read_text())
    container = sample["spec"]["worker"]["template"]["spec"]["containers"][0]
    container["args"] = ["--epochs", "1"]
    keys = {k: base64.b64encode(v.encode()).decode() for k, v in environment(s3.url).items()}
    async with namespace_of(one_cluster()) as (c, ns):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-keys"}, "data": keys}
        await c.api.create(SECRETS, ns, secret)
        async with (
            Kubelet(c.api, runtime, tmp_path / "nodes", namespace=ns),
            running_operator(c.operator_connection, namespaces=(ns,)),
        ):
            await c.api.create(JOBS, ns, sample)
            ended = await c.until(JOBS, ns, "digits-s3", lambda j: state(j) in ("Succeeded", "Failed"))
            assert state(ended) == "Succeeded", ended["status"]
            assert condition(ended, "LogsNotShipped")["status"] == "False"
            for name in ("launcher", "worker-0", "worker-1"):
                await c.until_gone(PODS, ns, f"digits-s3-{name}")
            for logs in list((tmp_path / "nodes").rglob("job.log")):
                shutil.rmtree(logs.parent)
            assert ended["status"]["progress"]["startedFrom"] == "nothing: there was no checkpoint"
            assert objects_of_checkpoints(s3)
            code, merged, told = await dtj_logs(c, tmp_path, ns)
            assert (code, "[0] test accuracy: 0." in merged) == (0, True), told
            code, own, told = await dtj_logs(c, tmp_path, ns, "--rank=0", "--tail=1")
            assert code == 0, told
            assert own.startswith("test accuracy: 0.")
            code, followed, told = await dtj_logs(c, tmp_path, ns, "--follow")
            assert (code, followed) == (0, merged), told
            code, _, told = await dtj_logs(c, tmp_path, ns, "--rank=0", "--attempt=7")
            assert code == 1
            assert "it has logs of attempts 1" in told
            readers = await c.api.select(PODS, ns, labels=f"{LABEL_READER}=digits-s3")
            assert [pod for pod in readers if "deletionTimestamp" not in pod["metadata"]] == []
