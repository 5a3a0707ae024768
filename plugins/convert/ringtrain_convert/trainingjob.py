"""Converter of PyTorchJob, TFJob, JAXJob and XGBoostJob (kubeflow.org/v1).

There every pod is one process, which finds its place in variables. docs/what-your-job-gets.md contains the table.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ringtrain_convert.metadata import (
    Converted,
    carried_template,
    converted_manifest,
    missing_field_problem,
    put_training_container_first,
    take_command,
    unknown_fields,
)
from ringtrain_convert.mpijob import BACKOFF_LIMIT, POLICY, REPLICA, converted_run_policy, take_devices, whole_field
from ringtrain_convert.roles import ConvertedPod, Role, side_texts, worker_of_roles
from ringtrain_convert.source_labels import TRAINING, add_source_labels
from ringtrain_convert.torchrun import (
    TORCHRUN,
    elastic_section,
    expanded_by_kubernetes,
    give_torchrun_variables,
    hosts_of_ranks,
    torch_ranks,
)
from ringtrain_convert.unsupported import PARAMETER_SERVER
from ringtrain_operator.contract import API_VERSION, KIND
from ringtrain_operator.errors import Invalid, Problem, counted
from ringtrain_operator.spec.template import shape_problems

_VERSION = "kubeflow.org/v1"
# Of a worker's container, if it names none (xgboost_types.go).
_XGBOOST_PORT = 9999
_RETRIES_ITSELF = ("OnFailure", "Always", "ExitCode")


@dataclass(frozen=True)
class _TrainingJobKind:
    """Properties of one kind of job. `roles`: in the order of ranks. `container`: name of the training container."""

    replicas: str
    container: str
    roles: tuple[str, ...]
    restart: str = "Never"
    given: Mapping[str, str] = field(default_factory=dict)
    fields: Collection[str] = ()
    notes: tuple[str, ...] = ()


_KINDS = {
    "PyTorchJob": _TrainingJobKind(
        "pytorchReplicaSpecs", "pytorch", ("Master", "Worker"), "OnFailure", fields={"nprocPerNode", "elasticPolicy"}
    ),
    "TFJob": _TrainingJobKind(
        "tfReplicaSpecs",
        "tensorflow",
        ("Chief", "Master", "Worker"),
        fields={"successPolicy", "enableDynamicWorker"},
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
    "XGBoostJob": _TrainingJobKind("xgbReplicaSpecs", "xgboost", ("Master", "Worker")),
}
_INJECTED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "TF_CONFIG", "WORKER_ADDRS", "WORKER_PORT")


def is_trainingjob(obj: Mapping[str, Any]) -> bool:
    """Return whether `obj` is one of the four kinds of the training operator, of any version."""
    return str(obj.get("kind")) in _KINDS and str(obj.get("apiVersion", "")).startswith("kubeflow.org/")


def convert_trainingjob(obj: Mapping[str, Any]) -> Converted:
    """Return a DistributedTrainingJob equivalent to `obj`.

    Raises Invalid, with paths of `obj`, if it cannot be converted; or with paths of the result if that is invalid.
    """
    kind, spec = _KINDS[obj["kind"]], obj.get("spec")
    if obj.get("apiVersion") != _VERSION:
        raise Invalid([Problem("apiVersion", f"is {obj.get('apiVersion')}, expected {_VERSION}")])
    notes = ["the image is not changed: the operator adds the agent to the pods", *kind.notes]
    replicas = _trainingjob_replicas(obj, kind)
    assert isinstance(spec, Mapping)
    worker, slots = worker_of_roles(
        _trainingjob_roles(kind, replicas, notes),
        lambda role, alone: _trainingjob_pod(obj, role, role.name if alone else "", notes),
        notes,
    )
    made = {
        "agent": "Inject",
        "slotsPerWorker": slots,
        "worker": worker,
        **_trainingjob_evaluator(obj, replicas, kind, notes),
        **(elastic_section(spec, worker["replicas"], notes) if obj["kind"] == "PyTorchJob" else {}),
        "runPolicy": _trainingjob_run_policy(spec, replicas, kind, notes),
    }
    notes += _success_notes(spec, replicas, worker["replicas"])
    notes += unknown_fields(obj, _known_fields(kind, spec), "there")
    autoscaler = _autoscaler(obj, made.get("elastic") or {}, notes)
    return replace(converted_manifest(made, obj.get("metadata") or {}, notes=notes), others=autoscaler)


def _autoscaler(obj: Mapping[str, Any], elastic: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, Any], ...]:
    """Return the HorizontalPodAutoscaler that the training operator creates for metrics in an elasticPolicy."""
    metrics, metadata = (obj["spec"].get("elasticPolicy") or {}).get("metrics"), obj.get("metadata") or {}
    name, path = metadata.get("name"), "spec.elasticPolicy (metrics)"
    if not metrics or not elastic:
        notes += [f"{path} is left out: the number of workers never changes"] if metrics else []
        return ()
    if not name:
        notes.append(f"{path} is left out: create a HorizontalPodAutoscaler for the job")
        return ()
    notes.append(f"{path} becomes a HorizontalPodAutoscaler, which remains when the job is deleted")
    spec = {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": name},
        **{field: elastic[field] for field in ("minReplicas", "maxReplicas")},
        "metrics": metrics,
    }
    own = {key: metadata[key] for key in ("name", "namespace") if metadata.get(key)}
    return ({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": own, "spec": spec},)


def _trainingjob_replicas(obj: Mapping[str, Any], kind: _TrainingJobKind) -> dict[str, dict[str, Any]]:
    """Return the job's replicas by role, in the order of ranks. Roles without replicas are left out."""
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
        count = whole_field(value.get("replicas"), f"{path}.replicas", 1)
        if count and not ((value.get("template") or {}).get("spec") or {}).get("containers"):
            problems.append(Problem(f"{path}.template.spec.containers", "is empty"))
        if count and role == "PS":
            problems.append(Problem(path, PARAMETER_SERVER))
        if count:
            found[role] = {**value, "replicas": count}
    if not problems and not any(role in kind.roles for role in found):
        message = f"has no pods, expected some of {', '.join(kind.roles)}"
        fields = _known_fields(kind, {})["spec"]
        problems = [missing_field_problem(obj.get("spec") or {}, "spec", kind.replicas, fields, message)]
    if problems:
        raise Invalid(problems)
    return {role: found[role] for role in (*kind.roles, "Evaluator") if role in found}


def _trainingjob_roles(kind: _TrainingJobKind, replicas: Mapping[str, Any], notes: list[str]) -> list[Role]:
    """Return the roles of ranks, with their training containers first."""
    return [
        Role(
            role,
            f"spec.{kind.replicas}.{role}.template",
            replicas[role]["replicas"],
            _trainingjob_template(kind, role, replicas[role], notes),
        )
        for role in kind.roles
        if role in replicas
    ]


def _trainingjob_pod(obj: Mapping[str, Any], role: Role, label: str, notes: list[str]) -> ConvertedPod:
    """Return a role's pod with the command of its ranks. `label`: name of the role in a label of the original pods;
    empty if pods of several roles have this template."""
    kind, template = _KINDS[obj["kind"]], role.template
    add_source_labels(template, _trainingjob_labels(obj, label), role.path, notes)
    main, path = template["spec"]["containers"][0], f"{role.path}.spec.containers[0]"
    devices = take_devices(main)
    command, slots = take_command(main, path, notes), 1
    if obj["kind"] == "PyTorchJob":
        command, slots = torch_ranks(command, obj["spec"], devices, notes)
    given = {**kind.given, **(_lightgbm_variables(main) if obj["kind"] == "XGBoostJob" else {})}
    main["command"] = give_torchrun_variables(command, given, notes)
    if found := expanded_by_kubernetes(main, [*_INJECTED, *TORCHRUN, *given]):
        message = f"has {found}, which Kubernetes expands before ranks are known: read it in the program"
        raise Invalid([Problem(path, message)])
    _resolve_local_address(obj, main, notes)
    notes += _names_of_services(obj, template)
    return ConvertedPod(template, devices, slots)


def _lightgbm_variables(main: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables with the other ranks' hosts, which are empty in a world of one rank."""
    given = main.get("ports")
    ports = [port for port in given if isinstance(port, Mapping)] if isinstance(given, list) else []
    own = next((port.get("containerPort") for port in ports if port.get("name") == "xgboostjob-port"), None)
    return {"WORKER_ADDRS": hosts_of_ranks("2-"), "WORKER_PORT": str(own or _XGBOOST_PORT)}


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


def _names_of_services(obj: Mapping[str, Any], template: dict[str, Any]) -> Iterator[str]:
    """Yield a note for each name of a Service, such as JOB-master-0, in commands or variables.

    No pod of the converted job has such a name.
    """
    name, main = (obj.get("metadata") or {}).get("name"), template["spec"]["containers"][0]
    text, others = json.dumps([main["command"], main.get("env")], default=str), side_texts(template)
    for role in ("master", "worker", "chief", "ps") if name else ():
        service = f"{name}-{role}-"
        if service in text:
            yield f"{service}… in the command or env is a name that no pod has here: use MASTER_ADDR"
        if service in others:
            yield f"{service}… in another container is a name that no pod has here: use {name}-worker-0.{name}"


def _resolve_local_address(obj: Mapping[str, Any], main: dict[str, Any], notes: list[str]) -> None:
    """Append the job's Service, in place, to the pod's name in torchrun's option --local-addr."""
    name = (obj.get("metadata") or {}).get("name")
    fields = {one.get("name"): (one.get("valueFrom") or {}).get("fieldRef") or {} for one in main.get("env") or ()}
    pod_names = (str(name) for name, field in fields.items() if field.get("fieldPath") == "metadata.name")
    names = ["HOSTNAME", "hostname", *pod_names]
    pattern = rf"--local[-_]addr[= ]\S*\b(?:{'|'.join(map(re.escape, names))})\b\S*"
    for found in re.findall(pattern, " ".join(main["command"])) if name else ():
        notes.append(f"{found} in the command becomes {found}.{name}, which resolves here")
        main["command"] = [word.replace(found, f"{found}.{name}") for word in main["command"]]


def _trainingjob_labels(obj: Mapping[str, Any], role: str) -> dict[str, str]:
    """Return the labels that the training operator gives to pods. `role`: empty for several roles."""
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
    """Return the run policy of the converted job. Restarts of single pods become restarts of the gang."""
    given = {role: replica["restartPolicy"] for role, replica in replicas.items() if replica.get("restartPolicy")}
    restarts = any(given.get(role, kind.restart) in _RETRIES_ITSELF for role in replicas)
    made = converted_run_policy(spec, BACKOFF_LIMIT if restarts else 0, notes)
    if not restarts:
        if made["backoffLimit"]:
            why = f"restartPolicy Never{'' if given else ', the default'}"
            notes.append(f"spec.runPolicy.backoffLimit is left out because of {why}: a failure is final")
        made["backoffLimit"] = 0
        return made
    each = ", ".join(f"{role} {policy}" for role, policy in given.items())
    about = f"restartPolicy ({each}) is left out: " if given else ""
    notes.append(
        f"{about}a failure of any code starts the whole gang again, {counted(made['backoffLimit'], 'time')} at most"
    )
    return made


def _success_notes(spec: Mapping[str, Any], replicas: Mapping[str, Any], workers: int) -> Iterator[str]:
    if "tfReplicaSpecs" in spec and workers > 1 and spec.get("successPolicy") != "AllWorkers":
        about = "spec.successPolicy is left out: " if spec.get("successPolicy") else ""
        yield f"{about}the job succeeds when all ranks have, not with the chief alone"
    elif "Master" in replicas and workers > 1:
        yield "the job succeeds when all ranks have, not with the Master alone"
    if spec.get("enableDynamicWorker"):
        yield "spec.enableDynamicWorker is left out: TF_CONFIG has the whole cluster, and no sparseCluster"


def _known_fields(kind: _TrainingJobKind, spec: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the fields that this kind of job has, by path of their section."""
    roles = {f"spec.{kind.replicas}.{role}": REPLICA for role in spec.get(kind.replicas) or ()}
    of_spec = {"runPolicy", "cleanPodPolicy", kind.replicas, *kind.fields}
    return {"spec": of_spec, "spec.runPolicy": POLICY, **roles}
