"""Kubeflow's `TrainerClient` for ringtrain's jobs. A program written for Kubeflow only changes its import.

    from ringtrain_sdk.kubeflow import CustomTrainer, TrainerClient

Arguments may be kubeflow's own objects. Arguments without a counterpart are refused by name, not ignored.

Maturity: Beta.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from ringtrain_client.jobs.backends import Backend, ClusterBackend
from ringtrain_client.jobs.blocking import Client, Run
from ringtrain_client.jobs.runs import Options
from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.errors import Invalid, Problem
from ringtrain_operator.spec.base import parse_time
from ringtrain_operator.spec.parse import parse_job

__all__ = [
    "CustomTrainer",
    "CustomTrainerContainer",
    "Event",
    "Runtime",
    "RuntimeKind",
    "RuntimeTrainer",
    "Step",
    "TrainJob",
    "TrainerClient",
    "TrainerType",
]

UNKNOWN = "Unknown"
# Both set the variables of torchrun for ranks.
RUNTIMES = ("torch-distributed", "ringtrain")
_STATES = {"Running": "Running", "Restarting": "Running", "Succeeded": "Complete", "Failed": "Failed"}
_STATES["Rejected"] = "Failed"


@dataclass
class CustomTrainer:
    """A function to train, which is sent as source code, and the resources for it."""

    func: Callable[..., object]
    func_args: dict[str, Any] | None = None
    image: str | None = None
    packages_to_install: list[str] | None = None
    pip_index_urls: list[str] = field(default_factory=list)
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None
    env: dict[str, str] | None = None


@dataclass
class CustomTrainerContainer:
    """An image whose entrypoint trains."""

    image: str
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None
    env: dict[str, str] | None = None


class TrainerType(Enum):
    """Trainer of a runtime: the user's code, or a built-in one."""

    CUSTOM_TRAINER = "CustomTrainer"
    BUILTIN_TRAINER = "BuiltinTrainer"


class RuntimeKind(Enum):
    """Kubernetes kind of a runtime: for the whole cluster, or for one namespace."""

    CLUSTER_TRAINING_RUNTIME = "ClusterTrainingRuntime"
    TRAINING_RUNTIME = "TrainingRuntime"


@dataclass
class RuntimeTrainer:
    """Properties of a runtime's training: type, framework, image, and default number of nodes."""

    trainer_type: TrainerType
    framework: str
    image: str
    num_nodes: int = 1
    device: str = UNKNOWN
    device_count: str = UNKNOWN


@dataclass
class Runtime:
    """A runtime of Kubeflow. Here all runtimes stand for the operator; only their names differ."""

    name: str
    trainer: RuntimeTrainer
    kind: RuntimeKind
    pretrained_model: str | None = None


@dataclass
class Step:
    """One worker of a job, as Kubeflow's SDK lists it."""

    name: str
    status: str | None
    pod_name: str
    device: str = UNKNOWN
    device_count: str = UNKNOWN


@dataclass
class TrainJob:
    """A job, with Kubeflow's states: Created, Running, Complete or Failed."""

    name: str
    runtime: Runtime
    steps: list[Step]
    num_nodes: int
    creation_timestamp: datetime
    status: str = UNKNOWN


@dataclass
class Event:
    """Last change of a condition in a job's status."""

    involved_object_kind: str
    involved_object_name: str
    message: str
    reason: str
    event_time: datetime


class TrainerClient:
    """Client for jobs. `backend_config`: a backend of ringtrain_sdk, a KubernetesBackendConfig, or None (the
    kubeconfig).
    """

    def __init__(self, backend_config: Any = None) -> None:
        self._client = Client(_backend(backend_config))

    def train(
        self,
        runtime: str | Runtime | None = None,
        initializer: Any = None,
        trainer: Any = None,
        options: list[Any] | None = None,
    ) -> str:
        """Start a job and return its name. Raises Invalid, which names an argument that is not supported."""
        _refuse("initializer", initializer, "load data and models in the function, or by data workers")
        _refuse("options", options, "submit a manifest with ringtrain_sdk.Client.submit")
        self.get_runtime(str(getattr(runtime, "name", runtime or RUNTIMES[0])))
        if trainer is None or not callable(getattr(trainer, "func", None)):
            message = f"is {type(trainer).__name__}, expected a CustomTrainer with a function"
            raise Invalid([Problem("trainer", message)])
        _refuse("trainer.packages_to_install", trainer.packages_to_install, "build them into the image")
        found: Options = {
            "image": trainer.image or "",
            "workers": trainer.num_nodes or 1,
            "env": trainer.env or {},
            "kwargs": trainer.func_args or {},
            "spec": {"runPolicy": {"backoffLimit": 0}},  # a TrainJob ends with its first failure
            **_resources(trainer.resources_per_node or {}),  # type: ignore[typeddict-item]
        }
        return self._client.train(trainer.func, **found).name

    def get_job(self, name: str) -> TrainJob:
        """Return the job `name`. Raises NotFound if it does not exist."""
        return _train_job(self._client.get(name))

    def list_jobs(self, runtime: Runtime | None = None) -> list[TrainJob]:
        """Return all jobs; `runtime` does not matter, because all jobs have the same one."""
        found = []
        for run in self._client.list():
            with suppress(NotFound):  # deleted meanwhile
                found.append(_train_job(run))
        return found

    def get_job_logs(self, name: str, step: str = "node-0", follow: bool | None = False) -> Iterator[str]:
        """Yield the log lines of all ranks of a worker. `step`: `node-` and the worker's index.

        `follow`: whether to continue with new lines until the job ends.
        """
        run = self._client.get(name)
        number = step.removeprefix("node-")
        if not number.isdecimal():
            raise Invalid([Problem("step", f"is {step!r}, expected node-0, node-1, ...")])
        return lines_of_worker(run, int(number), follow=bool(follow))

    def get_job_events(self, name: str) -> list[Event]:
        """Return the job's conditions as events at their last changes, the oldest first."""
        run = self._client.get(name)
        events = [
            Event("TrainJob", name, condition.message, condition.reason, condition.last_transition_time)
            for condition in run.status().conditions
        ]
        return sorted(events, key=lambda event: event.event_time)

    def wait_for_job_status(
        self,
        name: str,
        status: set[str] = {"Complete"},  # noqa: B006  as Kubeflow has it; it is only read
        timeout: int = 600,
        polling_interval: int = 2,
        callbacks: list[Callable[[TrainJob], None]] | None = None,
    ) -> TrainJob:
        """Wait until the job has one of the states `status`; return the job. Raises TimeoutError after `timeout` or if
        the job completes first, RuntimeError if it fails first."""
        known = {"Created", *_STATES.values()}
        if wrong := status - known:
            raise ValueError(f"status has unknown states {sorted(wrong)}; expected one or more of {sorted(known)}")
        give_up_at = time.monotonic() + timeout
        while True:
            job = self.get_job(name)
            for callback in callbacks or ():
                callback(job)
            if job.status in status:
                return job
            if job.status == "Failed":
                raise RuntimeError(str(self._client.get(name).why()))
            if job.status == "Complete" or time.monotonic() > give_up_at:
                raise TimeoutError(f"{name} is {job.status}; expected one of {sorted(status)} within {timeout} s")
            time.sleep(max(0.0, min(polling_interval, give_up_at - time.monotonic())))

    def delete_job(self, name: str) -> None:
        """Delete the job and its pods. Raises NotFound if it does not exist."""
        self._client.of(name).delete()

    def list_runtimes(self) -> list[Runtime]:
        """Return all runtime names that Kubeflow programs use. All these names mean this operator."""
        return [_runtime(name) for name in RUNTIMES]

    def get_runtime(self, name: str) -> Runtime:
        """Return the runtime `name`. Raises Invalid if there is no such runtime."""
        if name not in RUNTIMES:
            raise Invalid([Problem("runtime", f"is {name!r}, expected one of {', '.join(RUNTIMES)}")])
        return _runtime(name)

    def get_runtime_packages(self, runtime: Runtime) -> None:
        """Raise NotImplementedError, because an image's content can only be listed by running it."""
        raise NotImplementedError("an image's packages cannot be listed; print them in a function that train() runs")

    def close(self) -> None:
        """Close connections."""
        self._client.close()


def lines_of_worker(run: Run, worker: int, *, follow: bool) -> Iterator[str]:
    """Yield the lines of a worker's ranks from the job's log, without the prefix `[rank]`.

    `follow`: whether to continue with new lines until the job ends.
    """
    slots = parse_job(run.job(), templates=False).spec.slots
    marks = {f"[{rank}]" for rank in range(worker * slots, (worker + 1) * slots)}
    for line in run.logs(follow=follow):
        mark, _, text = line.partition(" ")
        if mark in marks:
            yield text


def _backend(config: Any) -> Backend | None:
    if config is None or hasattr(config, "create"):
        found: Backend | None = config
        return found
    if type(config).__name__ != "KubernetesBackendConfig":
        message = f"is {type(config).__name__}, expected KubernetesBackendConfig or a backend of ringtrain_sdk"
        raise Invalid([Problem("backend_config", message)])
    _refuse("backend_config.client_configuration", config.client_configuration, "write a kubeconfig")
    kubeconfig, context = config.config_file or "", config.context or ""
    return ClusterBackend(config.namespace or "", context=context, kubeconfig=kubeconfig)


def _refuse(name: str, value: object, way_out: str) -> None:
    if value:
        raise Invalid([Problem(name, f"has no counterpart here; {way_out}")])


def _resources(per_node: dict[str, Any]) -> dict[str, Any]:
    """Return `devices` and `resources` of a job for Kubeflow's resources of a node."""
    names = {"gpu": "nvidia.com/gpu"}
    wanted = {key: count for key, count in per_node.items() if _is_device(key)}
    devices = {names.get(k, k if "/" in k else f"nvidia.com/{k}"): count for k, count in wanted.items()}
    rest = {key: str(value) for key, value in per_node.items() if not _is_device(key)}
    return {"devices": devices, "resources": {"requests": rest, "limits": rest} if rest else {}}


def _is_device(name: str) -> bool:
    return name == "gpu" or name.startswith("mig-") or "/" in name


def _runtime(name: str) -> Runtime:
    trainer = RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "torch", image="")
    return Runtime(name, trainer, RuntimeKind.CLUSTER_TRAINING_RUNTIME)


def _train_job(run: Run) -> TrainJob:
    stored = run.job()
    try:
        parsed = parse_job(stored, templates=False)
        workers, amounts = parsed.num_workers, parsed.worker_devices
    except Invalid:  # the API server accepts jobs that the operator rejects, and returns them in lists
        workers, amounts = stored["spec"]["worker"].get("replicas", 1), {}
    state = _STATES.get(str((stored.get("status") or {}).get("state")), "Created")
    devices = next(iter(amounts.items()), (UNKNOWN, UNKNOWN))
    steps = [
        Step(f"node-{index}", state, f"{run.name}-worker-{index}", devices[0], str(devices[1]))
        for index in range(workers)
    ]
    created = parse_time(stored["metadata"]["creationTimestamp"])
    assert created is not None
    return TrainJob(run.name, _runtime(RUNTIMES[0]), steps, workers, created, state)
