"""Objects by kind and name; names and labels of a job's objects, the same in every attempt."""

import hashlib
from dataclasses import dataclass
from typing import Any

from .. import contract
from ..spec.job import Job

# The API server takes no longer value of a label.
LONGEST_LABEL = 63
# Of nodes' ports those below NodePorts of Services (30000) and what Linux gives to clients (32768).
_NODE_PORTS, _NODE_PORT_PAIRS = 20000, 5000


@dataclass(frozen=True)
class ObjectRef:
    """An object by kind and name, in the job's namespace.

    `api_version`: of a kind that is not always served, or in several versions; empty: its kind says it.
    """

    kind: str
    name: str
    api_version: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def launcher_name(job: Job) -> str:
    """Name of the launcher's pod."""
    return f"{job.name}-launcher"


def worker_name(job: Job, index: int) -> str:
    """Name of the pod of worker `index`."""
    return f"{job.name}-worker-{index}"


def gang_names(job: Job, workers: int) -> tuple[str, ...]:
    """Names of an attempt's pods, the launcher first."""
    return (launcher_name(job), *(worker_name(job, index) for index in range(workers)))


def data_worker_name(job: Job, index: int) -> str:
    """Name of the pod of data worker `index`."""
    return f"{job.name}-data-{index}"


def evaluator_name(job: Job) -> str:
    """Name of the evaluator's pod."""
    return f"{job.name}-evaluator"


def secret_name(job: Job, serial: int = 0) -> str:
    """Name of the job's Secret number `serial`: the operator takes the next number where a name is taken."""
    return f"{job.name}-{job.uid[:8]}" + (f"-{serial}" if serial else "")


def checkpoint_folder(job: Job) -> str:
    """Name of the job's folder on its checkpoints' claim. With the uid in it no other job finds it as its own."""
    return f"{job.name}-{job.uid}"


def launcher_address(job: Job) -> str:
    """`host:port` of the launcher's control service, for the job's own namespace.

    Short, because resolvers append each of their search domains, which end in the namespace: of long names that a
    longer address would make more than the 253 characters that a name may have, and some give up at the first.
    """
    return f"{launcher_name(job)}.{job.name}:{launcher_ports(job)[0]}"


def launcher_ports(job: Job) -> tuple[int, int]:
    """The launcher's ports for control and status.

    In its node's network they are two of the job's own, so that launchers share a node: workers are told the
    address before there is a launcher that could register a port. Two jobs may get the same; the pod declares its
    ports, and so the scheduler gives those two different nodes.
    """
    if not (job.spec.launcher.template.get("spec") or {}).get("hostNetwork"):
        return contract.PORT_LAUNCHER, contract.PORT_STATUS
    number = int.from_bytes(hashlib.sha256(job.uid.encode()).digest()[:4]) % _NODE_PORT_PAIRS
    return _NODE_PORTS + 2 * number, _NODE_PORTS + 2 * number + 1


def job_labels(job: Job) -> dict[str, str]:
    """Labels of every object of the job."""
    return {
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_NAME: job.name,
        contract.LABEL_JOB: job.name,
    }


def pod_labels(job: Job, role: str, attempt: int) -> dict[str, str]:
    """Labels of a pod of one role in one attempt."""
    return {**job_labels(job), contract.LABEL_ROLE: role, contract.LABEL_ATTEMPT: str(attempt)}


def lasting_pod_labels(job: Job, role: str) -> dict[str, str]:
    """Labels of a pod that outlives attempts."""
    return {**job_labels(job), contract.LABEL_ROLE: role}


def worker_selector(job: Job) -> str:
    """Selector of the job's worker pods, as the scale subresource wants it."""
    return f"{contract.LABEL_JOB}={job.name},{contract.LABEL_ROLE}={contract.ROLE_WORKER}"


def owner_references(job: Job) -> list[dict[str, Any]]:
    """The job as the controller of what it makes; the API server deletes it all with the job."""
    return [
        {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "name": job.name,
            "uid": job.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def metadata(job: Job, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Metadata of an object of the job."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": labels,
        "ownerReferences": owner_references(job),
    }


def group_name(name: str, uid: str, attempt: int) -> str:
    """Name of what an attempt's pods are queued or placed as; no other job has it, and no other attempt.

    Pods have it as a label, whose values end at 63 characters: of a long name the end is left out.
    """
    own = f"-{uid[:8]}-{attempt}"
    return f"{name[: LONGEST_LABEL - len(own)]}{own}"
