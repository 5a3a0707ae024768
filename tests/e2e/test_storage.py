"""Logs and checkpoints on a claim and in a bucket, and jobs that leave nothing behind."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from e2e.conftest import BARE, ROOT, WORKER, Kubectl, job, nodes
from e2e.programs import MEETING

S3 = os.environ.get("E2E_S3_IMAGE", "motoserver/moto:5.1.4")
KEYS = {"AWS_ACCESS_KEY_ID": "e2e", "AWS_SECRET_ACCESS_KEY": "e2e", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def claim(kubectl: Kubectl, privileged: Kubectl, containers: None) -> Iterator[str]:
    """A claim of the cluster's default class; without one, of a folder of a node which anyone may write to."""
    has_default = "storageclass.kubernetes.io/is-default-class:true" in kubectl(
        "get", "storageclass", "--output=jsonpath={.items[*].metadata.annotations}"
    ).replace('"', "")
    node, *_ = nodes("{.metadata.name}")
    volume = f"{kubectl.namespace}-volume"
    spec: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Mi"}}}
    if has_default:
        spec["accessModes"] = ["ReadWriteOnce"]
    else:
        folder = {"path": f"/var/tmp/ringtrain-{volume}", "type": "DirectoryOrCreate"}
        _run(privileged, node, folder, "chmod 777 /folder")
        on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    "capacity": {"storage": "100Mi"},
                    "accessModes": ["ReadWriteMany"],
                    "hostPath": folder,
                    "claimRef": {"namespace": kubectl.namespace, "name": "claim"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
                },
            }
        )
        spec |= {"storageClassName": "", "volumeName": volume}
    kubectl.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim"}, "spec": spec})
    yield "claim"
    if not has_default:
        _run(privileged, node, folder, "rm -r /folder/*")
        kubectl("delete", "persistentvolume", volume, "--wait=false")


def _run(kubectl: Kubectl, node: str, folder: dict[str, str], command: str) -> None:
    """Run a shell on a node as root, in its folder."""
    container = {
        "name": "shell",
        "image": BARE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", command],
        "volumeMounts": [{"name": "folder", "mountPath": "/folder"}],
    }
    volumes = [{"name": "folder", "hostPath": folder}]
    spec = {"nodeName": node, "restartPolicy": "Never", "containers": [container], "volumes": volumes}
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "on-node"}, "spec": spec})
    kubectl.wait("pod", "on-node", "jsonpath={.status.phase}=Succeeded")
    kubectl("delete", "pod", "on-node")


SAVES = """
import itertools, os, time
import numpy as np
import ringtrain as rt
from ringtrain.checkpoint import Checkpoints, job_directory
rt.init()
checkpoints = Checkpoints(job_directory())
saved = checkpoints.latest()
first = saved.step + 1 if saved else 0
print(f"attempt {os.environ['RINGTRAIN_ATTEMPT']} begins with step {first}", flush=True)
for step in range(first, first + 1000 if os.environ["RINGTRAIN_ATTEMPT"] == "1" else first + 3):
    rt.allreduce(np.ones(1, np.float32))
    checkpoints.save(step, {"step": step})
    rt.report(step=step, loss=1.0)
    time.sleep(0.1)
rt.shutdown()
"""


def test_logs_and_checkpoints_on_a_claim(kubectl: Kubectl, claim: str) -> None:
    """A gang that restarts goes on from its checkpoint; when no pod is left, `dtj logs` reads the claim."""
    on_claim = {"persistentVolumeClaim": {"claimName": claim}}
    kubectl.apply(
        job("saves", "python", "-c", SAVES, logs=on_claim, checkpoint=on_claim, runPolicy={"cleanPodPolicy": "All"})
    )
    kubectl.until(
        lambda: kubectl("get", "dtj", "saves", "--output=jsonpath=loss {.status.progress.loss}"), says="loss 1"
    )
    kubectl("delete", "pod", "saves-worker-0", "--wait=false")
    status = kubectl.ended("saves")
    assert (status["state"], status["attempt"]) == ("Succeeded", 2)
    kubectl("wait", "pods", "--all", "--for=delete", "--timeout=60s")
    assert "attempt 1 begins with step 0" in kubectl.dtj("logs", "saves", "--attempt=1", "--rank=1")
    output = kubectl.dtj("logs", "saves", "--rank=1")
    assert "attempt 2 begins with step" in output
    assert "begins with step 0\n" not in output


def test_an_evaluator(kubectl: Kubectl, claim: str) -> None:
    """The sample: it reads what the ranks save, and ends with the job."""
    for document in yaml.safe_load_all((ROOT / "manifests" / "samples" / "evaluator.yaml").read_text()):
        if document["kind"] == "PersistentVolumeClaim":
            continue
        if document["kind"] == "DistributedTrainingJob":
            document["spec"]["checkpoint"]["persistentVolumeClaim"]["claimName"] = claim
            container = document["spec"]["worker"]["template"]["spec"]["containers"][0]
            container |= {"image": WORKER, "imagePullPolicy": "IfNotPresent"}
            document["spec"]["runPolicy"] = {"cleanPodPolicy": "None"}
        kubectl.apply(document)
    assert kubectl.ended("evaluator")["state"] == "Succeeded"
    kubectl.wait("dtj", "evaluator", "jsonpath={.status.evaluator.state}=Succeeded")
    assert "epoch 5: the error is" in kubectl.dtj("logs", "evaluator", "--evaluator")


@pytest.fixture
def bucket(kubectl: Kubectl, privileged: Kubectl, containers: None) -> str:
    """Name of a Secret that opens the bucket `runs` of moto's server, which is a pod of its own."""
    if not S3:
        pytest.skip("needs E2E_S3_IMAGE, an image of moto's server")
    container = {"name": "moto", "image": S3, "imagePullPolicy": "IfNotPresent", "ports": [{"containerPort": 5000}]}
    privileged.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "moto", "labels": {"app": "moto"}},
            "spec": {"containers": [container]},
        }
    )
    privileged.wait("pod", "moto", "jsonpath={.status.podIP}")
    address = privileged.get("pod", "moto")["status"]["podIP"]
    keys = KEYS | {"AWS_ENDPOINT_URL": f"http://{address}:5000"}
    kubectl("create", "secret", "generic", "s3-keys", *(f"--from-literal={k}={v}" for k, v in keys.items()))
    make = (
        "import os, time, urllib.request\n"
        "request = urllib.request.Request(os.environ['AWS_ENDPOINT_URL'] + '/runs', method='PUT')\n"
        "while True:\n"
        "    try:\n"
        "        urllib.request.urlopen(request).read(); break\n"
        "    except OSError: time.sleep(0.2)\n"
    )
    spec = {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "make",
                "image": WORKER,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-c", make],
                "envFrom": [{"secretRef": {"name": "s3-keys"}}],
            }
        ],
    }
    privileged("create", "secret", "generic", "s3-keys", *(f"--from-literal={k}={v}" for k, v in keys.items()))
    privileged.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "make"}, "spec": spec})
    privileged.wait("pod", "make", "jsonpath={.status.phase}=Succeeded")
    return "s3-keys"


def test_logs_and_checkpoints_in_a_bucket(kubectl: Kubectl, bucket: str) -> None:
    """A job without a volume: a restarted gang goes on, and `dtj logs` reads the bucket when no pod is left."""
    text = (ROOT / "manifests" / "samples" / "digits-s3.yaml").read_text().replace("s3://my-bucket/", "s3://runs/")
    sample = yaml.safe_load(text)
    container = sample["spec"]["worker"]["template"]["spec"]["containers"][0]
    container |= {"image": WORKER, "imagePullPolicy": "IfNotPresent", "args": ["--epochs", "2"]}
    kubectl.apply(sample)
    status = kubectl.ended("digits-s3")
    assert status["state"] == "Succeeded", status
    kubectl("wait", "pods", "--all", "--for=delete", "--timeout=60s")
    assert "test accuracy" in kubectl.dtj("logs", "digits-s3")
    again = sample | {"metadata": {"name": "again"}}
    again["spec"]["checkpoint"]["restoreFrom"] = "digits-s3"
    kubectl.apply(again)
    assert "digits-s3" in kubectl.ended("again")["progress"]["startedFrom"]


def test_deleted_some_time_after_its_end(kubectl: Kubectl) -> None:
    """ttlSecondsAfterFinished: the job and all its objects are gone."""
    kubectl.apply(job("brief", "python", "-c", MEETING, runPolicy={"ttlSecondsAfterFinished": 2}))
    kubectl.wait("dtj", "brief", "jsonpath={.status.state}=Succeeded")
    kubectl.wait("dtj", "brief", "delete")
    kubectl("wait", "pods", "--all", "--for=delete", "--timeout=60s")
    kubectl("wait", "services", "--all", "--for=delete", "--timeout=60s")
