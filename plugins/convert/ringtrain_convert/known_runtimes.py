"""Runtimes of Kubeflow Trainer's repository (kubeflow/trainer 2.3), for TrainJobs without their file.

Only fields that conversion reads: policy, pods, claims.
"""

from typing import Any

from ringtrain_convert.trainjob import GROUP, VERSION
from ringtrain_operator.errors import Invalid, Problem

TRAINER_VERSION = "2.3"
_KIND = "ClusterTrainingRuntime"
_TRAINER = "ghcr.io/kubeflow/trainer"
_TAG = "v2.3.0"
# By name of the runtime: source of its mlPolicy, and image. flux-distributed is one of the examples.
_RUNTIMES = {
    "torch-distributed": ("torch", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
    "jax-distributed": ("jax", "nvcr.io/nvidia/jax:25.10-py3"),
    "xgboost-distributed": ("xgboost", f"{_TRAINER}/xgboost-runtime:{_TAG}"),
    "deepspeed-distributed": ("mpi", f"{_TRAINER}/deepspeed-runtime:{_TAG}"),
    "mlx-distributed": ("mpi", f"{_TRAINER}/mlx-runtime:{_TAG}"),
    "flux-distributed": ("flux", "ubuntu:jammy"),
}
_MPI = {"numProcPerNode": 1, "mpiImplementation": "OpenMPI", "runLauncherAsNode": True}
_MPI_USER = 1000
_OF_LLAMA = ("tokenizer.path=/workspace/model/original/tokenizer.model",)
_OF_QWEN = ("tokenizer.path=/workspace/model/vocab.json", "tokenizer.merges_file=/workspace/model/merges.txt")
# By name of the runtime: model in Hugging Face's hub, torchtune's configuration, settings of the tokenizer.
_TORCHTUNE = {
    "torchtune-llama3.2-1b": ("meta-llama/Llama-3.2-1B-Instruct", "llama3_2/1B_full", _OF_LLAMA),
    "torchtune-llama3.2-3b": ("meta-llama/Llama-3.2-3B-Instruct", "llama3_2/3B_full", _OF_LLAMA),
    "torchtune-qwen2.5-1.5b": ("Qwen/Qwen2.5-1.5B-Instruct", "qwen2_5/1.5B_full", _OF_QWEN),
}
_VOLUME = "initializer"
_CLAIM = {
    "metadata": {"name": _VOLUME},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}},
}
_WITH_CACHE = "torch-distributed-with-cache"

Json = dict[str, Any]


def known_runtime(kind: str, name: str) -> Json | None:
    """Return the runtime `name` of Trainer's repository; None if there is none. Raises Invalid if unsupported."""
    if kind != _KIND:
        return None
    if name == _WITH_CACHE:
        message = (
            f"{kind} {name} of Trainer {TRAINER_VERSION} starts a cache in the cluster, which only a TrainJob may own: "
            "name torch-distributed, and read the data in the program"
        )
        raise Invalid([Problem("spec.runtimeRef", message)])
    if name in _RUNTIMES:
        source, image = _RUNTIMES[name]
        job_set: Json = {"replicatedJobs": _replicated_jobs(source, image)}
    elif name in _TORCHTUNE:
        source, job_set = "torch", _torchtune_job_set(*_TORCHTUNE[name])
    else:
        return None
    policy = {"numNodes": 1, source: _MPI if source == "mpi" else {}}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"mlPolicy": policy, "template": {"spec": job_set}},
    }


def _replicated_jobs(source: str, image: str) -> list[Json]:
    pod: Json = {"containers": [{"name": "node", "image": image}]}
    if source == "mpi":
        pod["securityContext"] = {"fsGroup": _MPI_USER}
        pod["containers"][0]["securityContext"] = {"runAsUser": _MPI_USER}
    return [_replicated_job(role, pod) for role in ("node", *(["launcher"] if source == "mpi" else []))]


def _torchtune_job_set(model: str, config: str, tokenizer: tuple[str, ...]) -> Json:
    """Return the JobSet's spec of a runtime that trains a model with torchtune, after loading model and data."""
    mount = {"volumeMounts": [{"name": _VOLUME, "mountPath": "/workspace"}]}
    jobs = []
    for step, uri in (("dataset-initializer", "hf://tatsu-lab/alpaca"), ("model-initializer", f"hf://{model}")):
        env = [{"name": "STORAGE_URI", "value": uri}]
        jobs.append(
            _replicated_job(
                step, {"containers": [{"name": step, "image": f"{_TRAINER}/{step}:{_TAG}", "env": env, **mount}]}
            )
        )
    command = ["tune", "run", "--rdzv_endpoint=localhost:29500", "full_finetune_distributed", "--config", config]
    command += ["dataset=torchtune.datasets.instruct_dataset", "dataset.source=parquet"]
    command += ["dataset.data_dir=/workspace/dataset/data", "output_dir=/workspace/output", *tokenizer]
    command += ["checkpointer.checkpoint_dir=/workspace/model"]
    node = {"name": "node", "image": f"{_TRAINER}/torchtune-trainer:{_TAG}", "command": command, **mount}
    jobs.append(_replicated_job("node", {"containers": [node | {"resources": {"limits": {"nvidia.com/gpu": 2}}}]}))
    return {"volumeClaimPolicies": [{"templates": [_CLAIM]}], "replicatedJobs": jobs}


def _replicated_job(name: str, pod: Json) -> Json:
    return {"name": name, "template": {"spec": {"template": {"spec": pod}}}}
