"""Conversion of PyTorchJob, TFJob, JAXJob and XGBoostJob (kubeflow.org/v1) to a DistributedTrainingJob.

There every pod is one process, which finds its place in variables. docs/what-your-job-gets.md contains the table.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringtrain_convert.metadata import (
    Converted,
    carried_template,
    converted_manifest,
    put_training_container_first,
    take_command,
    unknown_fields,
)
from ringtrain_convert.mpijob import BACKOFF_LIMIT, POLICY, REPLICA, converted_run_policy, take_devices, whole_field
from ringtrain_convert.roles import unite_roles
from ringtrain_convert.source_labels import TRAINING, add_source_labels
from ringtrain_convert.torchrun import (
    TORCHRUN,
    elastic_section,
    expanded_by_kubernetes,
    give_torchrun_variables,
    torch_ranks,
)
from ringtrain_operator.errors import Invalid, Problem
from ringtrain_operator.spec.template import shape_problems

_VERSION = "kubeflow.org/v1"
_RETRIES_ITSELF = ("OnFailure", "Always", "ExitCode")


@dataclass(frozen=True)
class _TrainingJobKind:
    """Properties of a kind. `roles`: names of the roles, in the order of their ranks. `container`: the training
    container. `given`: variables for the command, see `give_torchrun_variables`."""

    replicas: str
    container: str
    roles: tuple[str, ...]
    restart: str = "Never"
    given: Mapping[str, str] = field(default_factory=dict)
    fields: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


_KINDS = {
    "PyTorchJob": _TrainingJobKind(
        "pytorchReplicaSpecs",
        "pytorch",
        ("Master", "Worker"),
        restart="OnFailure",
        fields=frozenset({"nprocPerNode", "elasticPolicy"}),
    ),
    "TFJob": _TrainingJobKind(
        "tfReplicaSpecs",
        "tensorflow",
        ("Chief", "Master", "Worker"),
        fields=frozenset({"successPolicy", "enableDynamicWorker"}),
        notes=('TF_CONFIG has a "worker" for every rank, worker 0 where a chief was, and no "environment"',),
    ),
    "JAXJob": _TrainingJobKind(
        "jaxReplicaSpecs",
        "jax",
        ("Worker",),
        given={
            "COORDINATOR_ADDRESS": "$MASTER_ADDR",
            "COORDINATOR_PORT": "$MASTER_PORT",
            "NUM_PROCESSES": "$WORLD_SIZE",
            "PROCESS_ID": "$RANK",
        },
    ),
    "XGBoostJob": _TrainingJobKind(
        "xgbReplicaSpecs",
        "xgboost",
        ("Master", "Worker"),
        notes=("WORKER_ADDRS and WORKER_PORT (of LightGBM) are not set: RINGTRAIN_RING_ADDRESSES has all hosts",),
    ),
}
_INJECTED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "TF_CONFIG", "WORKER_ADDRS", "WORKER_PORT")


def is_trainingjob(obj: Mapping[str, Any]) -> bool:
    """Return whether `obj` is one of the four kinds of the training operator, of any version."""
    return str(obj.get("kind")) in _KINDS and str(obj.get("apiVersion", "")).startswith("kubeflow.org/")


def convert_trainingjob(obj: Mapping[str, Any]) -> Converted:
    """Return a DistributedTrainingJob equivalent to `obj`.

    Raises Invalid, with paths of `obj`, if it cannot be converted; or with paths of the result.
    """
    kind, spec = _KINDS[obj["kind"]], obj.get("spec")
    if obj.get("apiVersion") != _VERSION:
        raise Invalid([Problem("apiVersion", f"is {obj.get('apiVersion')}, expected {_VERSION}")])
    notes = ["the image stays as it is: the operator brings the agent", *kind.notes]
    replicas = _trainingjob_replicas(obj, kind)
    assert isinstance(spec, Mapping)
    workers, template = _trainingjob_gang(kind, replicas, notes)
    roles = [role for role in kind.roles if role in replicas]
    labels = _trainingjob_labels(obj, roles[0] if len(roles) == 1 else "")
    add_source_labels(template, labels, f"spec.{kind.replicas}.{roles[0]}.template", notes)
    main = template["spec"]["containers"][0]
    devices = take_devices(main)
    path = f"spec.{kind.replicas}.{next(iter(replicas))}.template.spec.containers[0]"
    command = take_command(main, path, notes)
    slots = 1
    if obj["kind"] == "PyTorchJob":
        command, slots = torch_ranks(command, spec, devices, notes)
    main["command"] = give_torchrun_variables(command, kind.given, notes)
    if found := expanded_by_kubernetes(main, [*_INJECTED, *TORCHRUN, *kind.given]):
        message = f"has {found}, which Kubernetes expands before ranks are known: read it in the program"
        raise Invalid([Problem(path, message)])
    notes += _names_of_services(obj, main)
    made = {
        "agent": "Inject",
        "slotsPerWorker": slots,
        "worker": {"replicas": workers, **({"devices": devices} if devices else {}), "template": template},
        **_trainingjob_evaluator(obj, replicas, kind, notes),
        **(elastic_section(spec, workers, notes) if obj["kind"] == "PyTorchJob" else {}),
        "runPolicy": _trainingjob_run_policy(spec, replicas, kind, notes),
    }
    notes += [*_tensorflow_notes(spec, workers), *_unknown_trainingjob_fields(spec, kind)]
    return converted_manifest(made, obj.get("metadata") or {}, notes=notes)


def _trainingjob_replicas(obj: Mapping[str, Any], kind: _TrainingJobKind) -> dict[str, dict[str, Any]]:
    """Return the replicas by role, in the order of ranks, without empty roles. Case is ignored in names of roles."""
    replica = {"replicas": object, "template": {}}
    shape = {
        "metadata": {"name": str, "namespace": str, "labels": {}, "annotations": {}},
        "spec": {"runPolicy": {}, "elasticPolicy": {}, kind.replicas: {}},
    }
    if problems := shape_problems(obj, "", shape):
        raise Invalid(problems)
    given = (obj.get("spec") or {}).get(kind.replicas) or {}
    known = {role.lower(): role for role in (*kind.roles, "Evaluator", "PS")}
    found: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        path = f"spec.{kind.replicas}.{name}"
        role = known.get(str(name).lower(), "")
        if role not in kind.roles and not (obj["kind"] == "TFJob" and role):
            problems.append(Problem(path, f"is no role of a {obj['kind']}, expected {', '.join(kind.roles)}"))
            continue
        problems += shape_problems(value, path, replica)
        if not problems:
            problems += shape_problems(value.get("template") or {}, f"{path}.template")
        if problems:
            break
        count = 1 if value.get("replicas") is None else whole_field(value["replicas"], f"{path}.replicas")
        if count and not ((value.get("template") or {}).get("spec") or {}).get("containers"):
            problems.append(Problem(f"{path}.template.spec.containers", "is empty"))
        if count and role == "PS":
            message = "is a parameter server; ranks average their gradients: use a MultiWorkerMirroredStrategy"
            problems.append(Problem(path, f"{message} and leave PS out"))
        if count:
            found[role] = {**value, "replicas": count}
    if not problems and not any(role in kind.roles for role in found):
        problems = [Problem(f"spec.{kind.replicas}", f"has no pods, expected some of {', '.join(kind.roles)}")]
    if problems:
        raise Invalid(problems)
    return {role: found[role] for role in (*kind.roles, "Evaluator") if role in found}


def _trainingjob_gang(
    kind: _TrainingJobKind, replicas: Mapping[str, Any], notes: list[str]
) -> tuple[int, dict[str, Any]]:
    """Return the number of training pods, and the template of all of them. Raises Invalid if the roles' templates
    differ."""
    roles = [role for role in kind.roles if role in replicas]
    templates = {role: _trainingjob_template(kind, role, replicas[role], notes) for role in roles}
    first = templates[roles[0]]
    if len(roles) == 2 and replicas[roles[0]]["replicas"] == 1:
        unite_roles(first, templates[roles[1]], (roles[0], roles[1]), notes)
    for role in roles[1:]:
        differing = list(template_differences(first["spec"], templates[role]["spec"], "template.spec"))
        if differing:
            message = (
                f"differs from {roles[0]}'s: {', '.join(differing)}; workers have one template here: make them "
                "equal, and let the program tell rank 0 by RANK"
            )
            raise Invalid([Problem(f"spec.{kind.replicas}.{role}", message)])
        if first.get("metadata") != templates[role].get("metadata"):
            notes.append(f"spec.{kind.replicas}.{role}.template.metadata is left out where {roles[0]}'s differs")
    if len(roles) > 1:
        notes.append(f"{' and '.join(roles)} are workers of one template; ranks count from the {roles[0]}")
    return sum(replicas[role]["replicas"] for role in roles), first


def _trainingjob_template(
    kind: _TrainingJobKind, role: str, replica: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    path = f"spec.{kind.replicas}.{role}.template"
    template = carried_template(replica["template"], path=path, notes=notes)
    pod = template["spec"]
    name = put_training_container_first(template, kind.container).get("name")
    if len(pod["containers"]) > 1:
        notes.append(f"{path}: the variables of ranks are set in container {name}, not in the others")
    return template


def template_differences(one: Any, other: Any, path: str) -> Iterator[str]:
    """Yield the paths at which two templates differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            yield from template_differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from template_differences(*pair, f"{path}[{index}]")
    elif (one or None) != (other or None):
        yield path


def _names_of_services(obj: Mapping[str, Any], main: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each name of the source's services in the main container."""
    name = (obj.get("metadata") or {}).get("name")
    text = json.dumps([main["command"], main.get("env")], default=str)
    for role in ("master", "worker", "chief", "ps"):
        if name and (service := f"{name}-{role}-") in text:
            yield f"{service}… in the command or env is a name that no pod has here: use MASTER_ADDR"


def _trainingjob_labels(obj: Mapping[str, Any], role: str) -> dict[str, str]:
    """Return labels of the source's pods (GenLabels in pkg/controller.v1/common); `role`: empty if pods have
    several."""
    labels = {f"{TRAINING}operator-name": f"{str(obj['kind']).lower()}-controller"}
    if name := (obj.get("metadata") or {}).get("name"):
        labels[f"{TRAINING}job-name"] = str(name)
    return labels | ({f"{TRAINING}replica-type": role.lower()} if role else {})


def _trainingjob_evaluator(
    obj: Mapping[str, Any], replicas: Mapping[str, Any], kind: _TrainingJobKind, notes: list[str]
) -> dict[str, Any]:
    replica = replicas.get("Evaluator")
    if replica is None:
        return {}
    if replica["replicas"] != 1:
        path = f"spec.{kind.replicas}.Evaluator.replicas"
        raise Invalid([Problem(path, f"is {replica['replicas']}, expected 1: a job has one evaluator")])
    template = _trainingjob_template(kind, "Evaluator", replica, notes)
    labels = _trainingjob_labels(obj, "Evaluator")
    add_source_labels(template, labels, f"spec.{kind.replicas}.Evaluator.template", notes)
    main = template["spec"]["containers"][0]
    main["command"] = take_command(main, f"spec.{kind.replicas}.Evaluator.template.spec.containers[0]", notes)
    devices = take_devices(main)
    return {"evaluator": {**({"devices": devices} if devices else {}), "template": template}}


def _trainingjob_run_policy(
    spec: Mapping[str, Any], replicas: Mapping[str, Any], kind: _TrainingJobKind, notes: list[str]
) -> dict[str, Any]:
    """Return the run policy: restarts in place become attempts of the gang; if no role restarts, neither does the
    gang."""
    policies = {role: replica.get("restartPolicy") or kind.restart for role, replica in replicas.items()}
    restarts = any(policy in _RETRIES_ITSELF for policy in policies.values())
    made = converted_run_policy(spec, BACKOFF_LIMIT if restarts else 0, notes)
    if not restarts:
        if made["backoffLimit"]:
            notes.append("spec.runPolicy.backoffLimit is left out because of restartPolicy Never: a failure is final")
        made["backoffLimit"] = 0
        return made
    each = ", ".join(f"{role} {policy}" for role, policy in policies.items())
    notes.append(
        f"restartPolicy ({each}) is left out: a failure of any code starts the whole gang again, "
        f"{made['backoffLimit']} times at most"
    )
    return made


def _tensorflow_notes(spec: Mapping[str, Any], workers: int) -> Iterator[str]:
    if "tfReplicaSpecs" in spec and workers > 1 and spec.get("successPolicy") != "AllWorkers":
        yield "spec.successPolicy: the job succeeds when all ranks have, not with the chief alone"
    if spec.get("enableDynamicWorker"):
        yield "spec.enableDynamicWorker is left out: TF_CONFIG has the whole cluster, and no sparseCluster"


def _unknown_trainingjob_fields(spec: Mapping[str, Any], kind: _TrainingJobKind) -> Iterator[str]:
    """Yield a note for each field that the kind does not have."""
    known = {"spec": {"runPolicy", kind.replicas, *kind.fields}, "spec.runPolicy": POLICY}
    sections = {"spec": spec, "spec.runPolicy": spec.get("runPolicy") or {}}
    for role, replica in (spec.get(kind.replicas) or {}).items():
        path = f"spec.{kind.replicas}.{role}"
        known[path], sections[path] = REPLICA, replica
    for path, section in sections.items():
        yield from unknown_fields(path, section, known[path], "there")
