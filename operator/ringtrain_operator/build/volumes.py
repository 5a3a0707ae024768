"""Volumes that the operator adds to a pod, with their mount paths."""

from typing import Any

from .. import contract
from ..spec.job import Job
from ..spec.reserved import VOLUME_CHECKPOINT, VOLUME_LOGS, VOLUME_MPI, VOLUME_SCRATCH, VOLUME_SECRET, VOLUME_SHM

SHM_DIR = "/dev/shm"
SCRATCH_DIR = "/tmp"
# The same path as in mpi-operator and Kubeflow Trainer, which users' commands refer to.
MPI_DIR = "/etc/mpi"
HOSTFILE = f"{MPI_DIR}/hostfile"

Volume = dict[str, Any]


def add_volume(spec: dict[str, Any], volume: Volume, path: str, read_only: bool = False) -> None:
    """Add `volume` to a pod's spec and mount it at `path` in the main container, both in place."""
    mount: dict[str, Any] = {"name": volume["name"], "mountPath": path}
    if read_only:
        mount["readOnly"] = True
    spec.setdefault("volumes", []).append(volume)
    spec["containers"][0].setdefault("volumeMounts", []).append(mount)


def add_secret(spec: dict[str, Any], name: str, role: str) -> None:
    """Mount the files of one role from the job's Secret: certificate, key, the CA's certificate and the token."""
    items = [
        {"key": "ca.crt", "path": "ca.crt"},
        {"key": f"{role}.crt", "path": "tls.crt"},
        {"key": f"{role}.key", "path": "tls.key"},
        {"key": "token", "path": "token"},
    ]
    # Readable by all: only containers that mount it see it, and their user need not be in the volume's group.
    secret = {"secretName": name, "items": items, "defaultMode": 0o444}
    add_volume(spec, {"name": VOLUME_SECRET, "secret": secret}, contract.SECRET_DIR, read_only=True)


def add_logs(spec: dict[str, Any], job: Job) -> None:
    """Mount the volume for logs in the launcher, and add the Secret that spec.logs names to its variables."""
    logs = job.spec.logs
    if logs.secret_ref is not None:
        add_variables(spec, logs.secret_ref.name)
    source: Volume
    if logs.persistent_volume_claim is not None:
        source = {"persistentVolumeClaim": {"claimName": logs.persistent_volume_claim.claim_name}}
    else:
        source = {"emptyDir": dict(logs.empty_dir or {})}
    add_volume(spec, {"name": VOLUME_LOGS, **source}, contract.LOG_DIR)


def add_checkpoint(spec: dict[str, Any], job: Job) -> None:
    """Mount the claim of spec.checkpoint, and add its Secret to the main container's variables, if set."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None:
        return
    if checkpoint.secret_ref is not None:
        add_variables(spec, checkpoint.secret_ref.name)
    if checkpoint.persistent_volume_claim is None:
        return
    claim = {"claimName": checkpoint.persistent_volume_claim.claim_name}
    volume = {"name": VOLUME_CHECKPOINT, "persistentVolumeClaim": claim}
    add_volume(spec, volume, checkpoint.mount_path)


def add_variables(spec: dict[str, Any], secret: str) -> None:
    """Add the keys of `secret` as variables of the main container. Variables of the template override them."""
    main = spec["containers"][0]
    theirs, source = main.get("envFrom") or [], {"secretRef": {"name": secret}}
    main["envFrom"] = [source, *(other for other in theirs if other != source)]


def add_shared_memory(spec: dict[str, Any]) -> None:
    """Mount a /dev/shm that is limited by the container's memory instead of 64 MiB, unless the template mounts one."""
    if _is_mounted(spec, SHM_DIR):
        return
    add_volume(spec, {"name": VOLUME_SHM, "emptyDir": {"medium": "Memory"}}, SHM_DIR)


def add_scratch(spec: dict[str, Any]) -> None:
    """Mount a writable /tmp in a main container with a read-only root file system, unless the template mounts one."""
    context = spec["containers"][0].get("securityContext") or {}
    if context.get("readOnlyRootFilesystem") and not _is_mounted(spec, SCRATCH_DIR):
        add_volume(spec, {"name": VOLUME_SCRATCH, "emptyDir": {}}, SCRATCH_DIR)


def add_hostfile(spec: dict[str, Any], job: Job) -> None:
    """Mount a directory for mpirun's hostfile in the launcher of an mpi job, unless the template mounts one."""
    if job.spec.backend != "mpi" or _is_mounted(spec, MPI_DIR) or _is_mounted(spec, HOSTFILE):
        return
    add_volume(spec, {"name": VOLUME_MPI, "emptyDir": {}}, MPI_DIR)
    spec["containers"][0]["env"].append({"name": contract.ENV_MPI_HOSTFILE, "value": HOSTFILE})


def _is_mounted(spec: dict[str, Any], path: str) -> bool:
    mounts = spec["containers"][0].get("volumeMounts") or ()
    return any(str(mount.get("mountPath")).rstrip("/") == path for mount in mounts)
