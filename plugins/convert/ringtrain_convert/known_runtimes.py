"""Runtimes that Kubeflow Trainer installs (manifests of kubeflow/trainer 2.3), for TrainJobs without their file.

Only fields that conversion reads: policy, images, user.
"""

from typing import Any

from ringtrain_convert.trainjob import GROUP, VERSION
from ringtrain_operator.errors import Invalid, Problem

TRAINER_VERSION = "2.3"
_KIND = "ClusterTrainingRuntime"
_TRAINER = "ghcr.io/kubeflow/trainer"
_TAG = "v2.3.0"
# By name of the runtime: source of its mlPolicy, and image.
_RUNTIMES = {
    "torch-distributed": ("torch", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
    "jax-distributed": ("jax", "nvcr.io/nvidia/jax:25.10-py3"),
    "xgboost-distributed": ("xgboost", f"{_TRAINER}/xgboost-runtime:{_TAG}"),
    "deepspeed-distributed": ("mpi", f"{_TRAINER}/deepspeed-runtime:{_TAG}"),
    "mlx-distributed": ("mpi", f"{_TRAINER}/mlx-runtime:{_TAG}"),
}
_MPI = {"numProcPerNode": 1, "mpiImplementation": "OpenMPI", "runLauncherAsNode": True}
_MPI_USER = 1000
# Runtimes, by the start of their name, whose jobs cannot be converted, with the reason.
_REFUSED = {
    "torchtune-": "downloads model and data into a claim before tune runs: download them into a claim of yourself, and "
    "put a runtime that mounts it and has the whole command into the file",
    "flux-": "starts the command by flux run, which is not supported: put a runtime with mlPolicy mpi into the file",
    "torch-distributed-with-cache": "reads data from a cache in the cluster: put a runtime without it into the file",
}

Json = dict[str, Any]


def known_runtime(kind: str, name: str) -> Json | None:
    """Return the runtime `name` that Trainer installs; None if it installs none. Raises Invalid if unsupported."""
    if kind != _KIND:
        return None
    for start, why in _REFUSED.items():
        if name.startswith(start):
            raise Invalid([Problem("spec.runtimeRef", f"{kind} {name} of Trainer {TRAINER_VERSION} {why}")])
    if name not in _RUNTIMES:
        return None
    source, image = _RUNTIMES[name]
    pod: Json = {"containers": [{"name": "node", "image": image}]}
    roles = ["node"]
    if source == "mpi":
        roles.append("launcher")
        pod["securityContext"] = {"fsGroup": _MPI_USER}
        pod["containers"][0]["securityContext"] = {"runAsUser": _MPI_USER}
    jobs = [{"name": role, "template": {"spec": {"template": {"spec": pod}}}} for role in roles]
    policy = {"numNodes": 1, source: _MPI if source == "mpi" else {}}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": jobs}}},
    }
