"""Number and variables of the processes that Kubeflow Trainer starts on a node, by the runtime's mlPolicy.

Based on pkg/runtime/framework/plugins of kubeflow/trainer: torch, jax, xgboost, plainml.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ringtrain_convert.mpijob import whole_amount, whole_field
from ringtrain_convert.torchrun import (
    TORCHRUN,
    counted_torchrun,
    expanded_by_kubernetes,
    give_torchrun_variables,
    gpus_among,
)
from ringtrain_operator.errors import Invalid, Problem, shown

SOURCES = ("torch", "jax", "xgboost")
_JAX = {
    "JAX_NUM_PROCESSES": "$WORLD_SIZE",
    "JAX_PROCESS_ID": "$RANK",
    "JAX_COORDINATOR_ADDRESS": "$MASTER_ADDR:$MASTER_PORT",
    "JAX_COORDINATOR_PORT": "$MASTER_PORT",
    "JAX_DISTRIBUTED_BACKEND": "gloo",
}
_XGBOOST = {
    "DMLC_TRACKER_URI": "$MASTER_ADDR",
    "DMLC_TRACKER_PORT": "$MASTER_PORT",
    "DMLC_TASK_ID": "$RANK",
    "DMLC_NUM_WORKER": "$WORLD_SIZE",
}


class Given(NamedTuple):
    """Value of a field, or None if it is not set, and the path of the field."""

    value: Any
    path: str


def first_given(*places: Given) -> Given:
    """Return the first of `places` whose value is set; if none is set, the last of them."""
    return next((one for one in places if one.value), places[-1]._replace(value=None))


def trainer_process_source_of(policy: Mapping[str, Any]) -> str:
    """Return the name of the mlPolicy's framework, such as torch; empty if it names none. Raises Invalid for an unknown
    one."""
    found = [name for name, value in policy.items() if isinstance(value, Mapping)]
    for name in found:
        if name not in SOURCES:
            message = (
                f"is not supported, expected one of {', '.join(SOURCES)}, mpi, flux; or none, with a plain command"
            )
            raise Invalid([Problem(f"runtime.spec.mlPolicy.{name}", message)])
    return found[0] if found else ""


def trainer_process_count(
    source: str, command: Sequence[str], wanted: Given, resources: Given, notes: list[str]
) -> tuple[list[str], int]:
    """Return a rank's command, and how many ranks Trainer (or its torchrun) starts on a node. Raises Invalid for a
    command that is not supported. `wanted`: numProcPerNode."""
    gpus = trainer_gpus(resources)
    given = {"jax": _JAX, "xgboost": _XGBOOST}.get(source, {})
    if source == "torch":
        count = processes_of_node(wanted, resources)
        devices = {**dict.fromkeys(resources.value.get("limits") or (), 0), "gpu": gpus}
        ranks, program = counted_torchrun(command, count, devices, notes)
        if ranks:
            return program, ranks
        given = {**TORCHRUN, "PET_NPROC_PER_NODE": count}
    elif source == "xgboost" and gpus > 1:
        given = {**given, "DMLC_NUM_WORKER": f"$((WORLD_SIZE * {gpus}))"}
    if gpus > 1:
        notes.append(f"one process runs on each node, as in Trainer, and has its {gpus} GPUs: slotsPerWorker is 1")
    made = give_torchrun_variables(command, given, notes)
    if name := expanded_by_kubernetes({"command": made}, list(given)):
        message = f"has {name}, which Kubernetes expands before ranks are known: read it in the program"
        raise Invalid([Problem("spec.trainer.command", message)])
    return made, 1


def trainer_mpi_slots(of_job: object, mpi: dict[str, Any], resources: Given) -> int:
    """Return how many ranks an MPI runtime starts on a node. `of_job`: numProcPerNode of the job, which has priority.

    As in Trainer, numProcPerNode 1 in the runtime means one rank per GPU.
    """
    of_runtime = mpi.pop("numProcPerNode", None)
    if of_job is not None:
        return whole_field(of_job, "spec.trainer.numProcPerNode")
    slots = whole_field(of_runtime, "runtime.spec.mlPolicy.mpi.numProcPerNode", 1)
    return trainer_gpus(resources) or 1 if slots == 1 else slots


def trainer_gpus(resources: Given) -> int:
    """Return a node's number of GPUs: from its requests or, if these have no GPUs, from its limits, as in Trainer."""
    for kind in ("requests", "limits"):
        amounts = (resources.value.get(kind) or {}).items()
        path = f"{resources.path}.{kind}"
        if found := gpus_among({name: whole_amount(n, path) for name, n in amounts if "gpu" in name.lower()}):
            return found
    return 0


def processes_of_node(wanted: Given, resources: Given) -> str:
    """Return a node's number of processes as in Trainer 2.1 to 2.3; `gpu` if only the node knows it."""
    word, gpus = str(wanted.value or "auto"), trainer_gpus(resources)
    if word.isdecimal():
        return word[:19]
    if word not in ("auto", "cpu", "gpu"):
        message = f"is {shown(wanted.value)}, expected a number, auto, cpu or gpu"
        raise Invalid([Problem(wanted.path, message)])
    if word == "gpu" or (gpus and word == "auto"):
        return str(gpus or "gpu")
    asked = (_whole_trainer_cpus(resources, kind) for kind in ("requests", "limits"))
    return str(max(1, next(filter(None, asked), 0)))


def _whole_trainer_cpus(resources: Given, kind: str) -> int:
    """Return the CPUs in `resources[kind]`, rounded up to an integer as in Kubernetes; 0 without any."""
    amount = (resources.value.get(kind) or {}).get("cpu")
    text = str(amount or "0")
    try:
        return math.ceil(float(text[:-1]) / 1000 if text.endswith("m") else float(text))
    except (ValueError, OverflowError) as exc:
        problem = Problem(f"{resources.path}.{kind}", f"has cpu: {shown(amount)}, expected an amount of CPUs")
        raise Invalid([problem]) from exc
