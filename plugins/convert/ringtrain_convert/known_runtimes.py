"""Runtimes of Kubeflow Trainer's repository, for TrainJobs without their file."""

from pathlib import Path
from typing import Any

from ringtrain_client.local.documents import read_documents
from ringtrain_operator.errors import Invalid, Problem

TRAINER_VERSION = "2.3"
_RUNTIMES = Path(__file__).with_name("trainer_runtimes.yaml")
_WITH_CACHE = "torch-distributed-with-cache"


def known_runtime(kind: str, name: str) -> dict[str, Any] | None:
    """Return the runtime `name` of Trainer's repository; None if there is none. Raises Invalid if unsupported."""
    known = {(one["kind"], one["metadata"]["name"]): one for one in read_documents(_RUNTIMES)}
    if name == _WITH_CACHE and kind == "ClusterTrainingRuntime":
        message = (
            f"{kind} {name} of Trainer {TRAINER_VERSION} starts a cache in the cluster, which only a TrainJob may own: "
            "name torch-distributed, and read the data in the program"
        )
        raise Invalid([Problem("spec.runtimeRef", message)])
    return known.get((kind, name))
