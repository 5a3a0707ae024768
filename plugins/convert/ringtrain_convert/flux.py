"""Runtimes of Kubeflow Trainer with mlPolicy flux, whose nodes run the command by `flux run -N NODES -n RANKS`.

Flux gives ranks to MPI programs by PMI; here mpirun does. Based on pkg/runtime/framework/plugins/flux/flux.go of
kubeflow/trainer 2.3.
"""

import copy
from typing import Any

from ringtrain_convert.initializers import add_variables
from ringtrain_convert.metadata import checked_template
from ringtrain_convert.mpijob import whole_field
from ringtrain_convert.trainer_processes import Given, first_given
from ringtrain_operator.errors import Invalid, Problem

Json = dict[str, Any]
# Fields of the node's container and pod that its launcher does not need.
_OF_RANKS = ("resources", "readinessProbe", "livenessProbe", "startupProbe")


def replace_flux(policy: Json, trainer: Json, node: Json, notes: list[str]) -> Json:
    """Replace the flux section of an mlPolicy by mpi, in place. Return the template of a replicated job for a launcher.

    Fields of `trainer` for the container are moved to the container of `node`, the replicated job of nodes, and to the
    launcher's. Raises Invalid if there is no command.
    """
    flux = policy.pop("flux") or {}
    own = Given(flux.pop("numProcPerNode", None), "runtime.spec.mlPolicy.flux.numProcPerNode")
    wanted = first_given(Given(trainer.get("numProcPerNode"), "spec.trainer.numProcPerNode"), own)
    trainer["numProcPerNode"] = whole_field(wanted.value, wanted.path, 1)
    policy["mpi"] = {"mpiImplementation": "OpenMPI"}
    job = (node.get("template") or {}).get("spec") or {}
    path = f"runtime.spec.template.spec.replicatedJobs[{node.get('name')}].template.spec.template"
    pod = checked_template(job.get("template"), path)["spec"]
    container = next((one for one in pod["containers"] if one.get("name") == "node"), pod["containers"][0])
    container |= {"image": trainer.pop("image")} if trainer.get("image") else {}
    add_variables(container, trainer.pop("env", None) or [])
    of_container = {field: container.pop(field, None) for field in ("command", "args")}
    words = [word for field in of_container for word in trainer.pop(field, None) or of_container[field] or ()]
    command = " ".join(map(str, words)).split()
    if not command:
        message = "is missing; without it Trainer starts a Flux cluster for a person's shell: write the program"
        raise Invalid([Problem("spec.trainer.command", message)])
    if command != words:
        notes.append(f"the command becomes {command}: Trainer's script splits it at spaces, too")
    notes.append(
        "flux run becomes mpirun, which the image must have (set spec.mpi.implementation if it is not Open MPI's); "
        "Flux is not installed, and FLUX_* are not set"
    )
    launcher = copy.deepcopy(container)
    for field in _OF_RANKS:
        launcher.pop(field, None)
    launcher["command"] = ["mpirun", *command]
    launcher_pod = {key: copy.deepcopy(value) for key, value in pod.items() if key != "initContainers"}
    launcher_pod["containers"] = [launcher]
    return {"spec": {"backoffLimit": job.get("backoffLimit"), "template": {"spec": launcher_pod}}}
