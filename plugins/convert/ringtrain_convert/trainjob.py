"""Converter of Kubeflow Trainer's TrainJob (v1alpha1) and its runtime, which notes every difference.

Fields are removed from a copy as they are read: the remaining ones are reported as left out.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ringtrain_convert.flux import replace_flux
from ringtrain_convert.initializers import (
    CLAIM_SHAPE,
    INITIALIZERS,
    add_initializers,
    add_variables,
    initializer_pod,
    take_claims,
)
from ringtrain_convert.initializers import SHAPE as INITIALIZER_SHAPE
from ringtrain_convert.metadata import (
    Converted,
    carried_template,
    checked_template,
    converted_manifest,
    missing_field_problem,
    put_training_container_first,
    take_command,
)
from ringtrain_convert.mpijob import (
    BACKOFF_LIMIT,
    command_notes,
    drop_worker_command,
    take_devices,
    whole_field,
)
from ringtrain_convert.runtime_patches import SHAPE, apply_patches
from ringtrain_convert.source_labels import JOBSET, add_source_labels
from ringtrain_convert.torchtune import TUNE_RUN, TuneJob, tune_command
from ringtrain_convert.trainer_processes import (
    Given,
    first_given,
    processes_of_node,
    trainer_gpus,
    trainer_mpi_slots,
    trainer_process_count,
    trainer_process_source_of,
)
from ringtrain_operator.errors import Invalid, Problem, counted, found_text
from ringtrain_operator.spec.template import shape_problems

GROUP = "trainer.kubeflow.org"
VERSION = "v1alpha1"
RUNTIMES = {"ClusterTrainingRuntime": "clustertrainingruntimes", "TrainingRuntime": "trainingruntimes"}
_STEP = f"{GROUP}/trainjob-ancestor-step"
_JOBS = "runtime.spec.template.spec.replicatedJobs"
_NODE = "node"
_LAUNCHER = "launcher"
_SHAPE: dict[str, Any] = {
    "metadata": {"name": str, "namespace": str, "labels": {}, "annotations": {}},
    "spec": {
        "labels": {},
        "annotations": {},
        "runtimeRef": {"name": str, "kind": str},
        "trainer": {
            "image": str,
            "command": [str],
            "args": [str],
            "env": [{"name": str}],
            "resourcesPerNode": {"limits": {}, "requests": {}},
        },
        **INITIALIZER_SHAPE,
        **SHAPE,
    },
}
_RUNTIME_SHAPE: dict[str, Any] = {
    "spec": {
        "mlPolicy": {"mpi": {}, "torch": {}, "flux": {}},
        "podGroupPolicy": {"coscheduling": {}, "volcano": {}},
        "template": {
            "metadata": {"labels": {}, "annotations": {}},
            "spec": {
                "failurePolicy": {},
                **CLAIM_SHAPE,
                "replicatedJobs": [
                    {
                        "name": str,
                        "dependsOn": [{"name": str}],
                        "template": {"metadata": {"labels": {}, "annotations": {}}, "spec": {"template": {}}},
                    }
                ],
            },
        },
    }
}
_WHY = {
    "spec.initializer": "the runtime has no job for it",
    "spec.managedBy": "it names a controller of TrainJobs; set spec.managedBy if this job is to have one",
    "runtime.spec.mlPolicy.mpi.sshAuthMountPath": "there are no ssh keys to mount",
}


def is_trainjob(obj: Mapping[str, Any]) -> bool:
    """Return whether `obj` is a TrainJob of Kubeflow Trainer."""
    return obj.get("kind") == "TrainJob" and str(obj.get("apiVersion", "")).startswith(f"{GROUP}/")


def is_runtime(obj: Mapping[str, Any]) -> bool:
    """Return whether `obj` is a runtime of Kubeflow Trainer, to which TrainJobs refer."""
    return obj.get("kind") in RUNTIMES and str(obj.get("apiVersion", "")).startswith(f"{GROUP}/")


def runtime_of(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of the runtime to which a TrainJob refers. Raises Invalid for an invalid reference."""
    problems = shape_problems(obj, "", _SHAPE)
    spec = {} if problems else obj.get("spec") or {}
    reference = spec.get("runtimeRef") or {}
    kind, name = reference.get("kind") or "ClusterTrainingRuntime", reference.get("name")
    if not problems and (not name or kind not in RUNTIMES):
        message = f"{found_text(spec.get('runtimeRef'))}, expected a name and one of {', '.join(RUNTIMES)}"
        problems = [missing_field_problem(spec, "spec", "runtimeRef", _SHAPE["spec"], message)]
    if problems:
        raise Invalid(problems)
    return kind, str(name)


@dataclass
class _TrainJobReader:
    """A TrainJob and its runtime while they are converted. A field is removed when it is read.

    `notes`: messages for the user. `name`: name of the job, if it has one. `runtime_name`: name of its runtime.
    """

    name: str
    runtime_name: str
    job: dict[str, Any]
    runtime: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def leftovers(self) -> Iterator[str]:
        """Yield a note for each field that the conversion has not read."""
        for root, value in (("spec", self.job), ("runtime.spec", self.runtime)):
            for path in _trainjob_paths(value, root):
                why = next((text for start, text in _WHY.items() if path.startswith(start)), "")
                yield f"{path} is left out" + (f": {why}" if why else "")


def convert_trainjob(obj: Mapping[str, Any], runtime: Mapping[str, Any]) -> Converted:
    """Return a DistributedTrainingJob equivalent to the TrainJob `obj` with its `runtime`.

    Raises Invalid with paths of the TrainJob, of the runtime (`runtime.spec...`), or of the result.
    """
    _, runtime_name = runtime_of(obj)
    problems = shape_problems(runtime, "runtime", _RUNTIME_SHAPE)
    if problems:
        raise Invalid(problems)
    name = str((obj.get("metadata") or {}).get("name") or "")
    job, of_runtime = copy.deepcopy(dict(obj["spec"])), copy.deepcopy(dict(runtime.get("spec") or {}))
    reader = _TrainJobReader(name, runtime_name, job, of_runtime)
    reader.job.pop("runtimeRef")
    reader.notes += apply_patches(reader.job, reader.runtime)
    made = _trainjob_spec(reader)
    job_set = (reader.runtime.get("template") or {}).pop("metadata", None) or {}
    of_spec = {kind: reader.job.pop(kind, None) or {} for kind in ("labels", "annotations")}
    job_set_spec = (reader.runtime.get("template") or {}).get("spec") or {}
    claims = take_claims(job_set_spec, obj.get("metadata") or {}, made, reader.notes)
    found = converted_manifest(made, obj.get("metadata") or {}, of_spec, job_set, notes=reader.notes)
    return replace(found, notes=(*found.notes, *reader.leftovers()), others=claims)


def _trainjob_spec(reader: _TrainJobReader) -> dict[str, Any]:
    trainer, policy = reader.job.pop("trainer", None) or {}, reader.runtime.pop("mlPolicy", None) or {}
    jobs = _trainjob_runtime_jobs(reader)
    if "flux" in policy:
        jobs.append(
            {"name": _LAUNCHER, "template": replace_flux(policy, trainer, _job_of_role(jobs, _NODE), reader.notes)}
        )
    mpi = policy.pop("mpi", None) or {} if "mpi" in policy else None
    of_runtime = Given(policy.pop("numNodes", None), "runtime.spec.mlPolicy.numNodes")
    nodes_wanted = first_given(Given(trainer.pop("numNodes", None), "spec.trainer.numNodes"), of_runtime)
    workers = whole_field(nodes_wanted.value, nodes_wanted.path, 1)
    template = _trainjob_template(jobs, _NODE, reader)
    container = template["spec"]["containers"][0]
    if (resources := trainer.pop("resourcesPerNode", None)) is not None:
        container["resources"] = resources
    place = "resources of the runtime's container" if resources is None else "spec.trainer.resourcesPerNode"
    amounts = Given(copy.deepcopy(container.get("resources") or {}), place)
    devices = take_devices(container)
    node = {"replicas": workers, **({"devices": devices} if devices else {}), "template": template}
    if mpi is not None:
        made = _trainjob_mpi(reader, mpi, trainer, jobs, node)
        made["slotsPerWorker"] = trainer_mpi_slots(trainer.pop("numProcPerNode", None), mpi, amounts)
    else:
        is_tune, of_runtime_command = trainer.get("command") == TUNE_RUN, container.get("command") or []
        _lay_over_trainer(container, trainer)
        torch = policy.get("torch") or {}
        of_policy = Given(torch.pop("numProcPerNode", None), "runtime.spec.mlPolicy.torch.numProcPerNode")
        wanted = first_given(Given(trainer.pop("numProcPerNode", None), "spec.trainer.numProcPerNode"), of_policy)
        command = take_command(container, "spec.trainer", reader.notes)
        source = trainer_process_source_of(policy)
        if is_tune and source == "torch":
            per_node = processes_of_node(wanted, amounts)
            sizes = workers, int(per_node) if per_node.isdecimal() else 0, trainer_gpus(amounts)
            command = tune_command(TuneJob(reader.runtime_name, of_runtime_command, command[2:], *sizes))
        container["command"], slots = trainer_process_count(source, command, wanted, amounts, reader.notes)
        made = {"backend": "ring", "agent": "Inject", "worker": node, "slotsPerWorker": slots}
    roles = {f"{_JOBS}[{job.get('name')}].template.spec.template": (job, _trainjob_role(job)) for job in jobs}
    loading = {path: (job, role) for path, (job, role) in roles.items() if role in INITIALIZERS}
    pods = {path: initializer_pod(job, role, reader.job, path) for path, (job, role) in loading.items()}
    add_initializers(pods, made, reader.notes)
    made |= _trainjob_scheduling(reader)
    made["runPolicy"] = _trainjob_run_policy(reader, jobs, _NODE if mpi is None else _LAUNCHER)
    reader.job |= {"trainer": trainer} if trainer else {}
    left = {**policy, **({"mpi": mpi} if mpi else {})}
    reader.runtime |= {"mlPolicy": left} if any(_trainjob_paths(left, "")) else {}
    image = "the image is not changed: the operator adds the agent to the pods"
    reader.notes.insert(0, image + (", and neither sshd nor keys are needed" if mpi is not None else ""))
    return made


def _trainjob_mpi(
    reader: _TrainJobReader,
    mpi: dict[str, Any],
    trainer: dict[str, Any],
    jobs: list[dict[str, Any]],
    node: dict[str, Any],
) -> dict[str, Any]:
    """Return backend, launcher and worker for an MPI runtime. `node`: the worker, which is changed in place."""
    made: dict[str, Any] = {"implementation": str(mpi.pop("mpiImplementation", None) or "OpenMPI")}
    container, devices = node["template"]["spec"]["containers"][0], node.get("devices")
    if mpi.pop("runLauncherAsNode", False):
        if node["replicas"] > 1 and not devices:
            made["runLauncherAsWorker"], node["replicas"] = True, node["replicas"] - 1
        else:
            why = "a launcher never gets devices" if devices else "a gang has a worker"
            reader.notes.append(f"runLauncherAsNode is left out: {why}, so all nodes are workers")
        add_variables(container, trainer.get("env") or [])
    launcher = _trainjob_template(jobs, _LAUNCHER, reader)
    main = launcher["spec"]["containers"][0]
    _lay_over_trainer(main, trainer)
    take_devices(main)
    if not main.get("command") and main.get("args"):
        main["command"] = take_command(main, "spec.trainer", reader.notes)
    if command := [*(main.get("command") or []), *(main.get("args") or [])]:
        reader.notes += command_notes(command)
    drop_worker_command(container, reader.notes)
    return {"backend": "mpi", "agent": "Inject", "mpi": made, "worker": node, "launcher": {"template": launcher}}


def _trainjob_runtime_jobs(reader: _TrainJobReader) -> list[dict[str, Any]]:
    """Return the runtime's replicated jobs. Add a note for each that is left out."""
    job_set = (reader.runtime.get("template") or {}).get("spec") or {}
    jobs = job_set.pop("replicatedJobs", None) or []
    for job in jobs:
        if _trainjob_role(job) not in (_NODE, _LAUNCHER, *INITIALIZERS):
            reader.notes.append(
                f"{_JOBS}[{job.get('name')}] is left out: expected only nodes, initializers, a launcher"
            )
    return list(jobs)


def _trainjob_role(job: Mapping[str, Any]) -> str:
    labels = ((job.get("template") or {}).get("metadata") or {}).get("labels") or {}
    name, step = str(job.get("name")), str(labels.get(_STEP))
    if name not in (_NODE, _LAUNCHER) and step == "trainer":
        return _NODE
    return step if name not in (_NODE, _LAUNCHER) and step in INITIALIZERS else name


def _job_of_role(jobs: Iterable[dict[str, Any]], role: str) -> dict[str, Any]:
    """Return the runtime's replicated job with this role. Raises Invalid if there is none."""
    job = next((job for job in jobs if _trainjob_role(job) == role), None)
    if job is None:
        label = f" and none with the label {_STEP}: trainer" if role == _NODE else ""
        raise Invalid([Problem(_JOBS, f"has no job {role!r}{label}, whose pods would be the {role}'s")])
    return job


def _trainjob_template(jobs: Iterable[dict[str, Any]], role: str, reader: _TrainJobReader) -> dict[str, Any]:
    """Return the pod template of the runtime's job with this role, with the training container first."""
    job = _job_of_role(jobs, role)
    name, outer = str(job.get("name")), job.get("template") or {}
    inner = outer.get("spec") or {}
    template: dict[str, Any] = inner.pop("template", None) or {}
    where = f"{_JOBS}[{name}].template.spec.template"
    template = carried_template(
        checked_template(template, where), outer.get("metadata") or {}, path=where, notes=reader.notes
    )
    labels = {f"{JOBSET}replicatedjob-name": name}
    labels |= {f"{JOBSET}jobset-name": reader.name} if reader.name else {}
    add_source_labels(template, labels, where, reader.notes)
    put_training_container_first(template, _NODE)
    left = {*inner, *(key for key in job if key not in ("name", "template"))} - {"backoffLimit"}
    before = {one.get("name") for one in jobs if _trainjob_role(one) in INITIALIZERS}
    if before.issuperset(need.get("name") for need in job.get("dependsOn") or ()):
        left -= {"dependsOn"}
    for key in sorted(left):
        reader.notes.append(f"{_JOBS}[{name}] has {key}, which is left out: the gang starts and ends as one")
    return template


def _lay_over_trainer(container: dict[str, Any], trainer: dict[str, Any]) -> None:
    """Override fields of the training container by the TrainJob's `trainer`. Variables are merged by name."""
    for name in ("image", "command", "args"):
        if trainer.get(name) is not None:
            container[name] = trainer[name]
        trainer.pop(name, None)
    add_variables(container, trainer.pop("env", None) or [])


def _trainjob_scheduling(reader: _TrainJobReader) -> dict[str, Any]:
    policy = reader.runtime.get("podGroupPolicy") or {}
    for theirs, ours in (("coscheduling", "Coscheduling"), ("volcano", "Volcano")):
        if theirs in policy:
            if not policy[theirs]:
                policy.pop(theirs)
            return {"scheduling": {"gang": ours}}
    return {}


def _trainjob_run_policy(reader: _TrainJobReader, jobs: Iterable[dict[str, Any]], role: str) -> dict[str, Any]:
    """Return the run policy of the converted job. Retries of a Job and a JobSet become restarts of the gang."""
    made: dict[str, Any] = {"cleanPodPolicy": "None"}
    for name in ("suspend", "activeDeadlineSeconds"):
        if (value := reader.job.pop(name, None)) is not None:
            made[name] = value
    job_set = (reader.runtime.get("template") or {}).get("spec") or {}
    if (seconds := job_set.pop("ttlSecondsAfterFinished", None)) is not None:
        made["ttlSecondsAfterFinished"] = seconds
    job = next((job for job in jobs if _trainjob_role(job) == role), {})
    limit = (job.get("template") or {}).get("spec", {}).get("backoffLimit")
    path = f"{_JOBS}[{job.get('name')}].template.spec.backoffLimit"
    retries = whole_field(limit, path, BACKOFF_LIMIT)
    restarts = (job_set.get("failurePolicy") or {}).pop("maxRestarts", None) or 0
    made["backoffLimit"] = (retries + 1) * (restarts + 1) - 1
    if made["backoffLimit"]:
        reader.notes.append(
            f"a pod that fails starts the whole gang again, {counted(made['backoffLimit'], 'time')} at most, in "
            f"place of {counted(retries, 'retry', 'retries')} of a Job and {counted(restarts, 'restart')} of the JobSet"
        )
    return made


def _trainjob_paths(value: Mapping[str, Any], root: str) -> Iterator[str]:
    """Yield the paths of all fields that are set. A list is one field."""
    for key, inner in value.items():
        path = f"{root}.{key}"
        if isinstance(inner, Mapping):
            yield from _trainjob_paths(inner, path)
        elif inner not in (None, [], ""):
            yield path
