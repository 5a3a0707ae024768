"""Names and labels of the objects of a job. They are the same in every attempt."""

import hashlib
from dataclasses import dataclass
from typing import Any

from .. import contract
from ..spec.job import Job

# Maximum length of a label's value in Kubernetes.
LONGEST_LABEL = 63
# A range of ports on nodes below those of NodePort Services (30000) and Linux' client ports (32768).
_NODE_PORTS, _NODE_PORT_PAIRS = 20000, 5000


@dataclass(frozen=True)
class ObjectRef:
    """Reference to an object in the job's namespace, by kind and name.

    `api_version`: only for kinds that are served in several versions or not by every cluster.
    """

    kind: str
    name: str
    api_version: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def launcher_name(job: Job) -> str:
    """Return the name of the launcher's pod."""
    return f"{job.name}-launcher"


def worker_name(job: Job, index: int) -> str:
    """Return the name of the pod of worker `index`."""
    return f"{job.name}-worker-{index}"


def gang_names(job: Job, workers: int) -> tuple[str, ...]:
    """Return the names of the launcher's pod and of the pods of `workers` workers."""
    return (launcher_name(job), *(worker_name(job, index) for index in range(workers)))


def data_worker_name(job: Job, index: int) -> str:
    """Return the name of the pod of data worker `index`."""
    return f"{job.name}-data-{index}"


def evaluator_name(job: Job) -> str:
    """Return the name of the evaluator's pod."""
    return f"{job.name}-evaluator"


def secret_name(job: Job, serial: int = 0) -> str:
    """Return the name of the job's Secret. `serial` is incremented if another owner's Secret has the name."""
    return f"{job.name}-{job.uid[:8]}" + (f"-{serial}" if serial else "")


def checkpoint_folder(job: Job) -> str:
    """Return the name of the job's folder in its checkpoint store. The name contains the job's uid, so that it is
    unique."""
    return f"{job.name}-{job.uid}"


def launcher_address(job: Job) -> str:
    """Return `host:port` of the launcher's control service, for use in the job's namespace.

    The name is short because resolvers append their search domains, which contain the namespace. A long name could
    exceed 253 characters with a search domain, and some resolvers then give up.
    """
    return f"{launcher_name(job)}.{job.name}:{launcher_ports(job)[0]}"


def launcher_ports(job: Job) -> tuple[int, int]:
    """Return the launcher's ports for control and status.

    With hostNetwork they are derived from the job's uid, so that several launchers can share a node. Workers need the
    address before a launcher could register a port. Two jobs may get the same ports; the pod declares them, so the
    scheduler places such launchers on different nodes.
    """
    if not (job.spec.launcher.template.get("spec") or {}).get("hostNetwork"):
        return contract.PORT_LAUNCHER, contract.PORT_STATUS
    number = int.from_bytes(hashlib.sha256(job.uid.encode()).digest()[:4]) % _NODE_PORT_PAIRS
    return _NODE_PORTS + 2 * number, _NODE_PORTS + 2 * number + 1


def job_labels(job: Job) -> dict[str, str]:
    """Return the labels of every object of the job."""
    return {
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_NAME: job.name,
        contract.LABEL_JOB: job.name,
    }


def pod_labels(job: Job, role: str, attempt: int) -> dict[str, str]:
    """Return the labels of a pod of one role in one attempt."""
    return {**job_labels(job), contract.LABEL_ROLE: role, contract.LABEL_ATTEMPT: str(attempt)}


def auxiliary_pod_labels(job: Job, role: str) -> dict[str, str]:
    """Return the labels of an auxiliary pod (data worker or evaluator)."""
    return {**job_labels(job), contract.LABEL_ROLE: role}


def worker_selector(job: Job) -> str:
    """Return the label selector of the job's worker pods as a text, for the scale subresource."""
    return f"{contract.LABEL_JOB}={job.name},{contract.LABEL_ROLE}={contract.ROLE_WORKER}"


def owner_references(job: Job) -> list[dict[str, Any]]:
    """Return owner references that make the job the controller of an object, which is then deleted with it."""
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
    """Return the metadata of an object of the job."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": labels,
        "ownerReferences": owner_references(job),
    }


def group_name(name: str, uid: str, attempt: int) -> str:
    """Return the unique name under which schedulers and queues know the pods of one attempt of a job.

    Pods have it as a label, whose value is limited to 63 characters, so a long job name is truncated.
    """
    own = f"-{uid[:8]}-{attempt}"
    return f"{name[: LONGEST_LABEL - len(own)]}{own}"
