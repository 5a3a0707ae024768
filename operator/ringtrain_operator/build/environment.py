"""Environment variables (docs/contract.md) of workers, launcher, data workers and evaluator."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from .. import contract
from ..spec.base import field_at
from ..spec.data_workers import DataWorkers
from ..spec.job import Job
from ..spec.parts import Mpi
from ..spec.reserved import ENV_NVIDIA_VISIBLE_DEVICES, ENV_TF_CONFIG
from .names import checkpoint_folder, launcher_address, launcher_ports, worker_name

# One week: the maximum number of seconds that an agent accepts.
MOST_GRACE_S = 604_800
DEFAULT_TERMINATION_MESSAGE_PATH = "/dev/termination-log"
# In bytes. Linux refuses a variable of 128 KiB, so that the container would never start.
_MOST_TF_CONFIG = 100_000


def worker_environment(job: Job, attempt: int, index: int, incarnation: int = 0) -> list[dict[str, Any]]:
    """Return the variables of the main container of worker `index`."""
    return _env_of_container(
        _common_pod_variables(job, contract.ROLE_WORKER, attempt)
        | _field_variables(job, contract.WORKER_FIELDS)
        | {
            contract.ENV_WORKER_INDEX: str(index),
            contract.ENV_LAUNCHER_ADDRESS: launcher_address(job),
            **_worker_ports(job),
            **({} if job.spec.elastic is None else {contract.ENV_INCARNATION: str(incarnation)}),
        }
    )


def _worker_ports(job: Job) -> dict[str, str]:
    """Return the port variables of a worker. If a variable is 0, the agent chooses a free port and registers it.

    All ports are 0 for a pod that shares its node's network. The ranks' ports are also 0 if a pod has so many ranks
    that the ranges of ports, one port per rank from each base, would overlap.
    """
    shares_node = bool(job.spec.worker.template["spec"].get("hostNetwork"))
    wide = job.spec.slots > contract.PORT_TF_BASE - contract.PORT_RING_BASE
    ports = {
        contract.ENV_AGENT_PORT: 0 if shares_node else contract.PORT_AGENT,
        contract.ENV_RING_PORT_BASE: 0 if shares_node or wide else contract.PORT_RING_BASE,
        contract.ENV_MASTER_PORT: 0 if shares_node else contract.PORT_MASTER,
        contract.ENV_TF_PORT_BASE: 0 if shares_node or wide else contract.PORT_TF_BASE,
    }
    return {name: str(port) for name, port in ports.items()}


def launcher_environment(job: Job, attempt: int, status_token: str, formation: int = 0) -> list[dict[str, Any]]:
    """Return the variables of the launcher's main container. `formation`: last known generation of an elastic job's
    world.
    """
    control_port, status_port = launcher_ports(job)
    return _env_of_container(
        _common_pod_variables(job, contract.ROLE_LAUNCHER, attempt)
        | _field_variables(job, contract.LAUNCHER_FIELDS)
        | {
            contract.ENV_LAUNCHER_PORT: str(control_port),
            contract.ENV_STATUS_PORT: str(status_port),
            contract.ENV_STATUS_TOKEN: status_token,
            contract.ENV_LOG_DIR: contract.LOG_DIR,
            **_image_variables(job),
            **_log_uri_variables(job),
            ENV_NVIDIA_VISIBLE_DEVICES: "void",
            **_elastic_bounds_variables(job, formation),
        }
    )


def _field_variables(job: Job, fields: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return variables for spec fields that are set and not false. `fields`: pairs of variable and field path."""
    found = {name: field_at(job.spec, path) for name, path in fields}
    # $$: Kubernetes expands $(NAME) as a reference to another variable
    return {
        name: "1" if value is True else str(value).replace("$", "$$")
        for name, value in found.items()
        if value is not None and value is not False
    }


def _image_variables(job: Job) -> dict[str, str]:
    image = job.spec.worker.template["spec"]["containers"][0].get("image")
    return {contract.ENV_WORKER_IMAGE: str(image)} if image else {}


def data_worker_environment(
    job: Job, index: int, data: DataWorkers, *, shares_node: bool = False
) -> list[dict[str, Any]]:
    """Return the variables of the main container of data worker `index`, which are equal in all attempts.

    `shares_node`: whether the pod uses its node's network and ports.
    """
    variables = _identity_variables(job, contract.ROLE_DATA) | {
        contract.ENV_LAUNCHER_ADDRESS: launcher_address(job),
        contract.ENV_SECRET_DIR: contract.SECRET_DIR,
        contract.ENV_START_TIMEOUT: str(job.spec.networking.start_timeout_seconds),
        contract.ENV_DATA_INDEX: str(index),
        contract.ENV_DATA_KIND: data.kind,
        contract.ENV_DATA_SLOTS: str(data.slots_per_worker),
        contract.ENV_DATA_PORT: str(0 if shares_node else contract.PORT_DATA),
        ENV_NVIDIA_VISIBLE_DEVICES: "void",
    }
    if data.kind == "tensorflow":
        variables[contract.ENV_DATA_DISPATCHERS] = str(data.dispatchers or 1)
    if job.spec.networking.encryption_mode != "none":
        variables[contract.ENV_ENCRYPT] = job.spec.networking.encryption_mode
    return _env_of_container(variables)


def evaluator_environment(job: Job, workers: int, *, devices: bool) -> list[dict[str, Any]]:
    """Return the variables of the evaluator's main container. `workers`: number of workers of the world.

    `devices`: whether the container may use the node's devices.
    """
    variables = _identity_variables(job, contract.ROLE_EVALUATOR) | {
        **_checkpoint_variables(job),
        ENV_TF_CONFIG: _evaluator_tf_config(job, workers),
        "PYTHONUNBUFFERED": "1",  # a printed line is in the log at once
    }
    if not devices:
        variables[ENV_NVIDIA_VISIBLE_DEVICES] = "void"
    return _env_of_container(variables)


def _evaluator_tf_config(job: Job, workers: int) -> str:
    """Return TF_CONFIG for the evaluator, with the addresses of all ranks. The evaluator is not one of them.

    The cluster is left out if the variable would be too long: an evaluator connects to no rank.
    """
    ports = range(contract.PORT_TF_BASE, contract.PORT_TF_BASE + job.spec.slots)
    ranks = [f"{worker_name(job, worker)}.{job.name}:{port}" for worker in range(workers) for port in ports]
    task = {"type": contract.ROLE_EVALUATOR, "index": 0}
    whole = json.dumps({"cluster": {"worker": ranks}, "task": task})
    return whole if len(whole) <= _MOST_TF_CONFIG else json.dumps({"cluster": {}, "task": task})


def _identity_variables(job: Job, role: str) -> dict[str, str]:
    """Return the variables that the pods of all roles get, with the identity of the job."""
    return {
        contract.ENV_ROLE: role,
        contract.ENV_JOB_NAME: job.name,
        contract.ENV_JOB_NAMESPACE: job.namespace,
        contract.ENV_JOB_UID: job.uid,
        contract.ENV_TIMEOUT: str(job.spec.networking.timeout_seconds),
    }


def _common_pod_variables(job: Job, role: str, attempt: int) -> dict[str, str]:
    variables = {
        **_identity_variables(job, role),
        contract.ENV_ATTEMPT: str(attempt),
        contract.ENV_NUM_WORKERS: str(job.max_agents),
        contract.ENV_SLOTS_PER_WORKER: str(job.spec.slots),
        contract.ENV_SECRET_DIR: contract.SECRET_DIR,
        **_grace_variables(job),
        **_mpi_variables(job),
    }
    if job.spec.networking.encryption_mode != "none":
        variables[contract.ENV_ENCRYPT] = job.spec.networking.encryption_mode
    return variables | _checkpoint_variables(job)


def _grace_variables(job: Job) -> dict[str, str]:
    """Return the grace period of worker pods as a variable; empty if ranks have nothing to save in it."""
    if job.spec.elastic is None and job.spec.checkpoint is None:
        return {}
    return {contract.ENV_GRACE_PERIOD: str(min(job.spec.worker.grace_s, MOST_GRACE_S))}


def _log_uri_variables(job: Job) -> dict[str, str]:
    """Return the URI to which logs are copied as a variable; empty for a job without spec.logs.uri."""
    uri = job.spec.logs.uri
    return {contract.ENV_LOG_URI: f"{uri.rstrip('/')}/{job.namespace}/{checkpoint_folder(job)}"} if uri else {}


def _checkpoint_variables(job: Job) -> dict[str, str]:
    """Return the locations of checkpoints as variables; empty for a job without spec.checkpoint."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None:
        return {}
    variables = {}
    if checkpoint.persistent_volume_claim is not None:
        variables[contract.ENV_CHECKPOINT_DIR] = f"{checkpoint.mount_path}/{checkpoint_folder(job)}"
    if checkpoint.uri is not None:
        variables[contract.ENV_CHECKPOINT_URI] = f"{checkpoint.uri.rstrip('/')}/{checkpoint_folder(job)}"
    if checkpoint.restore_from:
        variables[contract.ENV_RESTORE_FROM] = checkpoint.restore_from
    return variables


def _elastic_bounds_variables(job: Job, formation: int) -> dict[str, str]:
    """Return limits and last known generation of an elastic job's world as variables; empty for other jobs."""
    elastic = job.spec.elastic
    if elastic is None:
        return {}
    return {
        contract.ENV_ELASTIC_MIN_RANKS: str(elastic.min_replicas * job.spec.slots),
        contract.ENV_ELASTIC_MAX_RANKS: str(elastic.max_replicas * job.spec.slots),
        contract.ENV_ELASTIC_START_RANKS: str(job.world_size),
        contract.ENV_ELASTIC_FORMATION: str(formation),
    }


def _mpi_variables(job: Job) -> dict[str, str]:
    if job.spec.backend != "mpi":
        return {}
    mpi = job.spec.mpi or Mpi()
    return {
        contract.ENV_MPI_IMPLEMENTATION: mpi.implementation,
        contract.ENV_MPI_OPTIONS: shlex.join(mpi.options),
        **({} if mpi.require_init is None else {contract.ENV_MPI_REQUIRE_INIT: str(int(mpi.require_init))}),
        contract.ENV_MPI_LAUNCHER_AS_WORKER: str(int(mpi.run_launcher_as_worker)),
    }


def _env_of_container(plain: dict[str, str]) -> list[dict[str, Any]]:
    """Return `plain` variables as a container's `env`, with the pod's identity from the downward API."""
    fields = {
        contract.ENV_POD_NAME: "metadata.name",
        contract.ENV_POD_UID: "metadata.uid",
        contract.ENV_POD_IP: "status.podIP",
        contract.ENV_NODE_NAME: "spec.nodeName",
    }
    return [{"name": name, "value": value} for name, value in plain.items()] + [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
