"""What Kubeflow Trainer starts on a node, and its variables: by the source of a runtime's mlPolicy.

After pkg/runtime/framework/plugins of kubeflow/trainer: torch, jax, xgboost, plainml.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Invalid, Problem, shown
from .torchrun import TORCHRUN, expanded_by_kubernetes, give_torchrun_variables, read_torchrun

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
_WANTED = "spec.trainer.numProcPerNode"


@dataclass(frozen=True)
class TrainJobNode:
    """What a TrainJob says of its nodes. `wanted`: numProcPerNode. `resources`: resourcesPerNode, None if it has
    none."""

    command: Sequence[str]
    wanted: object
    devices: Mapping[str, int]
    resources: Mapping[str, Any] | None


def trainer_process_source_of(policy: Mapping[str, Any]) -> str:
    """The source of an mlPolicy without MPI; empty: plain. Raises Invalid for one that is not known here."""
    found = [name for name, value in policy.items() if isinstance(value, Mapping)]
    for name in found:
        if name not in SOURCES:
            message = f"is not known here, expected one of {', '.join(SOURCES)}, mpi; or none, with a plain command"
            raise Invalid([Problem(f"runtime.spec.mlPolicy.{name}", message)])
    return found[0] if found else ""


def trainer_process_count(source: str, node: TrainJobNode, notes: list[str]) -> tuple[list[str], int]:
    """The command of a rank, and how many ranks a node has: as many processes as Trainer starts there, or as its
    torchrun does. Raises Invalid for what can't be had here."""
    if list(node.command[:2]) == ["tune", "run"] and source == "torch":
        message = "is torchtune's, whose arguments Trainer completes: write the whole command"
        raise Invalid([Problem("spec.trainer.command", message)])
    if source == "torch" and (found := read_torchrun(node.command)):
        notes.append(f"{' '.join(found.own)} is left out: the agent starts every rank")
        return list(found.program), _trainer_ranks(found.per_node or node.wanted or "auto", node)
    devices = max(node.devices.values(), default=1)
    given = {"jax": _JAX, "xgboost": _XGBOOST}.get(source, {})
    if source == "xgboost" and devices > 1:
        given = {**given, "DMLC_NUM_WORKER": f"$((WORLD_SIZE * {devices}))"}
    if source == "torch":
        given = {**TORCHRUN, "PET_NPROC_PER_NODE": str(_trainer_ranks(node.wanted or "auto", node))}
    if devices > 1:
        notes.append(f"one process runs on each node, as there, and has its {devices} devices: slotsPerWorker is 1")
    if given and (name := expanded_by_kubernetes({"command": list(node.command)}, list(given))):
        message = f"has {name}, which Kubernetes expands before ranks are known: read it in the program"
        raise Invalid([Problem("spec.trainer.command", message)])
    return give_torchrun_variables(node.command, given, notes), 1


def _trainer_ranks(wanted: object, node: TrainJobNode) -> int:
    """What `numProcPerNode`, or torchrun's own word, comes to."""
    word = str(wanted)
    if word.isdecimal():
        return int(word[:19])
    if word not in ("auto", "cpu", "gpu"):
        raise Invalid([Problem(_WANTED, f"is {shown(wanted)}, expected a number, auto, cpu or gpu")])
    if node.devices and word != "cpu":
        return max(node.devices.values())
    if node.resources is not None and word != "gpu":
        limits, requests = (node.resources.get(kind) for kind in ("limits", "requests"))
        cpus = (limits or {}).get("cpu") or (requests or {}).get("cpu")
        return _whole_trainer_cpus(str(cpus)) if cpus is not None else 1
    what = "as many processes as the node has GPUs" if word == "gpu" else "one process for each CPU of the node"
    raise Invalid([Problem(_WANTED, f"is {word}: {what}, which can't be seen from here; write the number")])


def _whole_trainer_cpus(amount: str) -> int:
    """A quantity of CPUs, rounded up as Kubernetes does; at least 1."""
    thousandths = amount.endswith("m")
    try:
        return max(1, math.ceil(float(amount[:-1]) / 1000 if thousandths else float(amount)))
    except (ValueError, OverflowError) as exc:
        problem = Problem("spec.trainer.resourcesPerNode", f"has cpu: {shown(amount)}, expected an amount of CPUs")
        raise Invalid([problem]) from exc
