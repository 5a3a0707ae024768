"""Jobs that cannot be converted, and what to do with each instead."""

from collections.abc import Mapping
from typing import Any

PARAMETER_SERVER = (
    "is a parameter server; ranks average their gradients: use a MultiWorkerMirroredStrategy and leave servers out"
)
RAY = "Ray starts its workers itself: pass the training function to ringtrain.ray.run there"
_MXNET = "MXNet trains by parameter servers: port the program to PyTorch or JAX, and write a DistributedTrainingJob"
_PADDLE = (
    "Paddle reads PADDLE_* variables, which are not set here: write a DistributedTrainingJob whose command sets them "
    "from RANK, WORLD_SIZE and MASTER_ADDR"
)
_KINDS = {
    ("RayJob", "ray.io/"): RAY,
    ("RayCluster", "ray.io/"): RAY,
    ("MXJob", "kubeflow.org/"): _MXNET,
    ("PaddleJob", "kubeflow.org/"): _PADDLE,
    ("TrainJob", "kubeflow.org/"): "Trainer's first version is not read: write trainer.kubeflow.org/v1alpha1",
}


def why_unsupported(obj: Mapping[str, Any]) -> str:
    """Return why this kind of job cannot be converted and what to do instead; empty for any other object."""
    version = str(obj.get("apiVersion"))
    for (kind, group), way_out in _KINDS.items():
        if obj.get("kind") == kind and version.startswith(group):
            return f"is a {kind} ({version}), which cannot be converted. {way_out}"
    return ""
