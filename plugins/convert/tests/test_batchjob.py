"""Variables that Kubernetes and Volcano set in pods, and those of the converted jobs."""

import json
import subprocess
from typing import Any

import pytest

from ringtrain_convert.batchjob import convert_batchjob

# Prints its arguments and these variables.
PRINTED = ("VC_TASK_INDEX", "VK_TASK_INDEX", "VC_MASTER_HOSTS", "VC_MASTER_NUM", "VC_WORKER_HOSTS", "VC_WORKER_NUM")
PROGRAM = ["python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))", *(f"$({name})" for name in PRINTED)]
TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "i", "command": PROGRAM}]}}


def environments(obj: dict[str, Any]) -> list[dict[str, str]]:
    """Return the environment of each rank's program, in the order of ranks. Pod i has the address 10.0.0.i."""
    worker = convert_batchjob({"metadata": {"name": "a"}, **obj}).manifest["spec"]["worker"]
    [container] = worker["template"]["spec"]["containers"]
    pods = worker["replicas"]
    addresses = ",".join(f"10.0.0.{pod}:7400" for pod in range(pods))
    found = []
    for rank in range(pods):
        env = {"PATH": "/usr/bin:/bin", "RANK": str(rank), "RINGTRAIN_RING_ADDRESSES": addresses}
        ran = subprocess.run(container["command"], env=env, capture_output=True, text=True, check=True)
        found.append(json.loads(ran.stdout))
    return found


@pytest.mark.parametrize(("workers", "names"), [(1, ["10.0.0.1"]), (3, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])])
def test_volcano(workers: int, names: list[str]) -> None:
    """pkg/controllers/job/plugins of Volcano: env sets the index in the task, svc the hosts and numbers of tasks."""
    tasks = [{"name": "master", "template": TEMPLATE}, {"name": "worker", "replicas": workers, "template": TEMPLATE}]
    job = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": {"tasks": tasks}}
    found = environments(job)
    for rank, env in enumerate(found):
        expected = {
            "VC_TASK_INDEX": str(max(0, rank - 1)),
            "VK_TASK_INDEX": str(max(0, rank - 1)),
            "VC_MASTER_HOSTS": "10.0.0.0",
            "VC_MASTER_NUM": "1",
            "VC_WORKER_HOSTS": ",".join(names),
            "VC_WORKER_NUM": str(workers),
        }
        assert {name: env[name] for name in PRINTED} == expected, rank
    assert len(found) == workers + 1


@pytest.mark.parametrize(
    ("jobs", "indexes"),
    [
        ([(1, 3)], "012"),
        ([(3, 1)], "000"),
        ([(2, 3)], "012012"),
        ([(1, 1), (2, 2)], "00101"),
        ([(2, 2), (1, 2)], "010101"),
    ],
)
def test_jobset(jobs: list[tuple[int, int]], indexes: str) -> None:
    """The controller of Jobs numbers the pods of each Job. `jobs`: replicas and parallelism of each replicated job."""
    replicated = [
        {"name": f"r{number}", "replicas": replicas, "template": {"spec": {"parallelism": pods, "template": TEMPLATE}}}
        for number, (replicas, pods) in enumerate(jobs)
    ]
    job = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {"replicatedJobs": replicated}}
    assert "".join(env["JOB_COMPLETION_INDEX"] for env in environments(job)) == indexes
