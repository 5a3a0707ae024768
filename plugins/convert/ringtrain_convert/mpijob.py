"""Converter of kubeflow's MPIJob (v2beta1 and v1), which notes every difference.

docs/migrate-from-mpijob.md contains the same table.
"""

import itertools
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from ringtrain_convert.metadata import (
    Converted,
    carried_template,
    checked_template,
    converted_manifest,
    missing_field_problem,
    put_training_container_first,
    take_command,
    unknown_fields,
)
from ringtrain_convert.roles import command_text
from ringtrain_convert.source_labels import TRAINING, add_source_labels, with_texts
from ringtrain_operator.errors import Invalid, Problem, counted, found_text, shown
from ringtrain_operator.spec.pod_rules import quantity_value
from ringtrain_operator.spec.template import shape_problems, template_devices

_API_GROUP = "kubeflow.org/"
_VERSIONS = (f"{_API_GROUP}v1", f"{_API_GROUP}v2beta1")
_IMPLEMENTATIONS = ("OpenMPI", "MPICH", "Intel")
_MPIRUNS = ("mpirun", "mpiexec", "orterun", "prterun")
# A call of mpirun in a script, by its name or by its path. The launcher replaces both.
_CALLED_MPIRUN = re.compile(rf"(?<![\w./}}-])(/[\w./+-]+/)?({'|'.join(_MPIRUNS)})\s")
# Commands that identify the main container of a template, even if a sidecar precedes it.
_STARTS = {"Launcher": re.compile(rf"\b({'|'.join(_MPIRUNS)}|horovodrun)\b"), "Worker": re.compile(r"\bsshd\b")}
# mpirun's options before -np: without a value, with two, and with one.
_VALUE = r"""[ \t]+(?:"[^"]*"|'[^']*'|[^\s'"]+)"""
_FLAG = (
    "(?:allow-run-as-root|tag-output|(?:no-?)?oversubscribe|report-bindings|pernode|[qvV]|verbose|quiet|prepend-rank)"
)
# Atomic, because the time of a search would otherwise double with each option of a command without -np.
_OPTION = (
    rf"(?>[ \t]+-{{1,2}}(?:{_FLAG}(?=\s)|(?:g?mca|prtemca|g?env){_VALUE}{_VALUE}"
    rf"|(?!{_FLAG}\s)[\w-]+(?:=\S+|(?![ \t]+-){_VALUE})?))"
)
# A command with the number of ranks that it starts.
RANKS = re.compile(rf"\b(?:{'|'.join(_MPIRUNS)}|horovodrun)\b(?:{_OPTION})*?[ \t]+(--?np?)[ =]+(\S+)")
# Commands in a worker's script that do not affect ranks, because sshd starts each session with a new environment. Any
# other command, and output to a file, may affect ranks.
_OF_SSHD = re.compile(
    r"#|.*(sshd|ssh-keygen)|(export|source|set|sleep|mkdir|trap|exec|wait|\.)\b"
    r"|(echo|id|whoami|ls|cat|head|env|date|hostname|stat|true|nvidia-smi|command|if|then|else|fi|for|do|done|while|\[)(?!\S)"
    r"(?!.*>\s*(?!/dev/null)[\w/.$~])"
)
# Volumes that mpi-operator adds to pods.
_MOUNTED = {"mpi-job-config", "ssh-auth"}
# Defaults of kubeflow's kinds that differ from ours; for kinds that restart without a limit, the same number of
# attempts.
BACKOFF_LIMIT = 6
# A 64-bit number has no more digits.
_DIGITS = 19
# Fields that are read here, except for the templates, which have a separate shape.
_SHAPE: dict[str, Any] = {
    "metadata": {"name": str, "namespace": str, "labels": {}, "annotations": {}},
    "spec": {
        "runPolicy": {},
        "mpiImplementation": str,
        "mpiReplicaSpecs": {"Launcher": {"template": {}}, "Worker": {"template": {}}},
    },
}

_REPLICA_TYPE = f"{TRAINING}replica-type"
_DROPPED = {
    "sshAuthMountPath": "there are no ssh keys to mount: the agents start mpirun's daemons",
    "launcherCreationPolicy": "the launcher always waits until all workers are there",
    "mainContainer": "the first container of a template is the main one",
}
_DROPPED_POLICY = {
    "managedBy": "it names a controller of the original kind; set spec.managedBy if this job is to have one",
    "schedulingPolicy": "what it means depends on the gang scheduler; set spec.scheduling (gang, queue, "
    "priorityClassName)",
}
# Words of a launcher's command with another meaning here. /etc/mpi/hostfile exists, and so does ssh by its name.
_COMMAND_NOTES = {
    r"plm_(rsh|ssh)_agent|-launcher(-exec)?\b|kubexec\.sh": "the agents start mpirun's daemons; leave it out",
    r"/etc/mpi/(?!hostfile\b)[\w.]+": "of what mpi-operator mounts there, only /etc/mpi/hostfile is made",
    r"(?<!\w)/\S*/ssh\b": "there is no sshd; ssh without a path runs a command on a worker by its agent",
    r"(?<!\S)--?(?:H|hosts?)[ =]\S*-worker-\d\S*": "workers have other names for mpirun, and are all in its hostfile: "
    "leave it out",
    r"--?(?:hostfile|machinefile)[ =]+(?!\"?/etc/mpi/hostfile\b)\S+": "only hosts of /etc/mpi/hostfile are reached",
    r"\bgetent hosts\b": "the names in mpirun's hostfile are addresses already",
    r"\bhorovodrun\b": "write mpirun and the program in its place, which Horovod runs under as well",
}
# Fields of kubeflow's runPolicy, and of a replica.
POLICY = {
    "cleanPodPolicy",
    "suspend",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "backoffLimit",
    *_DROPPED_POLICY,
}
REPLICA = {"replicas", "restartPolicy", "template"}
# Fields of an MPIJob, by path; other fields are reported as left out.
_KNOWN = {
    "spec": {
        "slotsPerWorker",
        "mpiImplementation",
        "mpiReplicaSpecs",
        "runLauncherAsWorker",
        "runPolicy",
        "cleanPodPolicy",
        *_DROPPED,
    },
    "spec.runPolicy": POLICY,
    "spec.mpiReplicaSpecs": {"Launcher", "Worker"},
    "spec.mpiReplicaSpecs.Launcher": REPLICA,
    "spec.mpiReplicaSpecs.Worker": REPLICA,
}


def is_mpijob(obj: Mapping[str, Any]) -> bool:
    """Return whether `obj` is an MPIJob of kubeflow, of any version."""
    return obj.get("kind") == "MPIJob" and str(obj.get("apiVersion", "")).startswith(_API_GROUP)


def convert_mpijob(obj: Mapping[str, Any]) -> Converted:
    """Return a DistributedTrainingJob equivalent to the MPIJob `obj`.

    Raises Invalid, with paths of `obj`, if it cannot be converted; or with paths of the result if that is invalid.
    """
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        raise Invalid([Problem("spec", f"{found_text(spec)}; expected a mapping")])
    if not spec.get("mpiReplicaSpecs") and obj.get("apiVersion") not in _VERSIONS:  # v1alpha2 has it, too
        message = f"is {obj.get('apiVersion')}; expected {_API_GROUP}v1 or v2beta1, with spec.mpiReplicaSpecs"
        raise Invalid([Problem("apiVersion", message)])
    if problems := shape_problems(obj, "", _SHAPE):
        raise Invalid(problems)
    notes = ["the image is not changed: the operator adds the agent to the pods, and neither sshd nor keys are needed"]
    worker, launcher = _mpijob_replica(obj, "Worker"), _mpijob_replica(obj, "Launcher")
    replicas = whole_field(worker.get("replicas"), "spec.mpiReplicaSpecs.Worker.replicas", 1)
    all_workers = bool(spec.get("runLauncherAsWorker") and template_devices(launcher["template"]))
    made = {
        "backend": "mpi",
        "agent": "Inject",
        "slotsPerWorker": whole_field(spec.get("slotsPerWorker"), "spec.slotsPerWorker", 1),
        "mpi": _converted_mpi(spec, launcher_as_worker=not all_workers),
        "worker": mpi_worker(
            _converted_mpijob_template("Worker", worker, spec, notes), replicas + int(all_workers), notes
        ),
        "launcher": {"template": _launcher_template(launcher, spec, notes)},
        "runPolicy": converted_run_policy(spec, BACKOFF_LIMIT, notes),
    }
    if all_workers:
        notes.append(
            "spec.runLauncherAsWorker is left out: a launcher never gets devices, so its ranks are those of one "
            "more worker, with the worker's template"
        )
    notes += _size_notes(made)
    _resolve_names_of_workers(obj, made, notes)
    notes += [f"spec.{name} is left out: {why}" for name, why in _DROPPED.items() if name in spec]
    for role, replica in (("Launcher", launcher), ("Worker", worker)):
        if replica.get("restartPolicy") not in (None, "Never"):
            notes.append(
                f"spec.mpiReplicaSpecs.{role}.restartPolicy is left out: a failed pod restarts the whole gang, "
                "runPolicy.backoffLimit times"
            )
    notes += unknown_fields(obj, _KNOWN, "of an MPIJob")
    return converted_manifest(made, obj.get("metadata") or {}, notes=notes)


def _mpijob_labels(obj: Mapping[str, Any], role: str) -> dict[str, str]:
    """Return the labels of pods, of mpi-operator (defaultLabels in mpi_job_controller.go), or of the training operator
    (defaultReplicaLabels in mpijob.go), whose MPIJobs are of version v1."""
    labels = {f"{TRAINING}operator-name": "mpi-operator", f"{TRAINING}job-role": role.lower()}
    if obj.get("apiVersion") == f"{_API_GROUP}v1":
        labels = {f"{TRAINING}operator-name": "mpijob-controller", _REPLICA_TYPE: role.lower()}
    name = (obj.get("metadata") or {}).get("name")
    return labels | ({f"{TRAINING}job-name": str(name)} if name else {})


def _mpijob_replica(obj: Mapping[str, Any], role: str) -> dict[str, Any]:
    """Return the entry of mpiReplicaSpecs for a role, and its pods' labels in `labels`. Raises Invalid if it is missing
    or invalid."""
    path, replicas = f"spec.mpiReplicaSpecs.{role}", obj["spec"].get("mpiReplicaSpecs")
    if replicas is None:
        message = "is missing; expected Launcher and Worker"
        raise Invalid([missing_field_problem(obj["spec"], "spec", "mpiReplicaSpecs", _KNOWN["spec"], message)])
    replica = replicas.get(role)
    if replica is None:
        hint = "; a job without workers is the launcher's: run it with a plain Job" if role == "Worker" else ""
        known = _KNOWN["spec.mpiReplicaSpecs"]
        raise Invalid([missing_field_problem(replicas, "spec.mpiReplicaSpecs", role, known, f"is missing{hint}")])
    checked_template(replica.get("template"), f"{path}.template")
    return {**replica, "labels": _mpijob_labels(obj, role)}


def whole_field(value: object, path: str, absent: int | None = None) -> int:
    """Return `value` as an integer; a string of digits is accepted, as in the API. Raises Invalid for any other
    value. `absent`: result for a null field."""
    if value is None and absent is not None:
        return absent
    if isinstance(value, bool) or not str(value).isdecimal() or len(str(value)) > _DIGITS:
        raise Invalid([Problem(path, f"is {shown(value)}, expected a whole number")])
    return int(str(value))


def whole_amount(value: object, path: str) -> int:
    """Return an amount of devices, such as 8 or 1k, as an integer. Raises Invalid for any other value."""
    amount = quantity_value(value)
    return whole_field(value if amount is None or amount % 1 else int(amount), path)


def _converted_mpi(spec: Mapping[str, Any], launcher_as_worker: bool) -> dict[str, Any]:
    implementation = spec.get("mpiImplementation") or "OpenMPI"
    if implementation not in _IMPLEMENTATIONS:
        message = f"is {shown(implementation)}, allowed: {', '.join(_IMPLEMENTATIONS)}"
        raise Invalid([Problem("spec.mpiImplementation", message)])
    as_worker = {"runLauncherAsWorker": True} if launcher_as_worker and spec.get("runLauncherAsWorker") else {}
    return {"implementation": implementation, **as_worker}


def mpi_worker(template: dict[str, Any], replicas: int, notes: list[str]) -> dict[str, Any]:
    """Return spec.worker for pods that ran sshd. `template`: their template, which is changed in place."""
    main = template["spec"]["containers"][0]
    drop_worker_command(main, notes)
    devices = take_devices(main)
    return {"replicas": replicas, **({"devices": devices} if devices else {}), "template": template}


def drop_worker_command(main: dict[str, Any], notes: list[str]) -> None:
    """Remove the command of a worker's container, which starts sshd, and probes of sshd, in place. Add a note about
    other commands of its script."""
    words = [*(main.pop("command", None) or ()), *(main.pop("args", None) or ())]
    if words:
        notes.append(f"the worker's command {words} is left out: the worker runs the agent, and no sshd")
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        if main.pop(probe, None):
            notes.append(f"the worker's {probe} is left out: it asks sshd")
    script = words[2] if len(words) > 2 and words[1].endswith("c") else ""
    commands = (one.strip() for one in re.split(r"[;\n]|&&|\|\|", script.replace("\\\n", " ")))
    if other := next((one for one in commands if one and not _OF_SSHD.match(one)), ""):
        notes.append(f"the worker's script has {other!r}: if ranks need it, write it in front of mpirun's program")


def _launcher_template(replica: Mapping[str, Any], spec: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    template = _converted_mpijob_template("Launcher", replica, spec, notes)
    main = template["spec"]["containers"][0]
    if devices := take_devices(main):
        notes.append(f"the launcher's devices {devices} are left out: a launcher never gets devices")
    if not main.get("command"):
        path = "spec.mpiReplicaSpecs.Launcher.template.spec.containers[0]"
        main["command"] = take_command(main, path, notes)
    notes += command_notes([*main["command"], *(main.get("args") or [])])
    return template


def command_notes(command: list[str]) -> list[str]:
    """Return notes about parts of a launcher's command that do not work with this operator."""
    notes, text = [], " ".join(command)
    if PurePosixPath(command[0]).name not in _MPIRUNS and not _CALLED_MPIRUN.search(text):
        notes.append(f"the launcher runs {command[0]}, which must call the mpirun that it finds in PATH")
    for pattern, why in _COMMAND_NOTES.items():
        if found := re.search(pattern, text):
            notes.append(f"the launcher's command has {found[0]}: {why}")
    return notes


def _size_notes(made: Mapping[str, Any]) -> list[str]:
    """Return a note if the launcher's command starts another number of ranks than the job with spec `made` has."""
    main = made["launcher"]["template"]["spec"]["containers"][0]
    pods = made["worker"]["replicas"] + int(made["mpi"].get("runLauncherAsWorker", False))
    size = pods * made["slotsPerWorker"]
    found = RANKS.search(command_text(main).replace("\\\n", " "))
    if not found or not found[2].isdecimal() or int(found[2]) == size:
        return []
    return [
        f"the launcher's command starts {counted(int(found[2]), 'rank')} ({found[1]}), the job has {size}: make them "
        f"equal, or leave {found[1]} out"
    ]


def _resolve_names_of_workers(obj: Mapping[str, Any], made: dict[str, Any], notes: list[str]) -> None:
    """Replace workers' host names in commands and variables, in place, by names that resolve in the converted job.

    `made`: spec of the converted job.
    """
    job = str((obj.get("metadata") or {}).get("name") or "")
    if not job:
        return
    pattern = re.compile(
        rf"(?:(?<=//)|(?<![\w./-]))({re.escape(job)}-worker-\d+)(?!\.{re.escape(job)}(?![\w.-]))(?:\.[\w-]+)*"
    )
    pods = [made[section]["template"]["spec"] for section in ("launcher", "worker")]
    containers = [one for pod in pods for one in (*pod["containers"], *(pod.get("initContainers") or ()))]
    for one, field in itertools.product(containers, ("command", "args", "env")):
        for found in pattern.finditer(str(one.get(field))):
            notes.append(f"{found[0]} in the {field} becomes {found[1]}.{job}, which resolves here")
        if one.get(field):
            one[field] = with_texts(one[field], lambda text: pattern.sub(rf"\1.{job}", text))


def _converted_mpijob_template(
    role: str, replica: Mapping[str, Any], spec: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return a role's pod template with its main container first, without fields that the operator sets."""
    path = f"spec.mpiReplicaSpecs.{role}.template"
    template = carried_template(replica["template"], path=path, notes=notes)
    # A selector with this label finds no pod of an mpi-operator either.
    absent = () if _REPLICA_TYPE in replica["labels"] else (_REPLICA_TYPE,)
    add_source_labels(template, replica["labels"], path, notes, absent)
    pod = template["spec"]
    _drop_waiting_containers(pod, path, notes)
    name, first = spec.get("mainContainer"), pod["containers"][0]
    starting = (str(one.get("name")) for one in pod["containers"] if not name and _mpijob_starts(role, one))
    main = put_training_container_first(template, *([name] if name else starting))
    if not name and main.get("name") != first.get("name") and _mpijob_starts(role, main):
        starts = _mpijob_starts(role, main)
        notes.append(f"the {role.lower()}'s main container is {main.get('name')}, which starts {starts}")
    return template


def _drop_waiting_containers(pod: dict[str, Any], path: str, notes: list[str]) -> None:
    """Remove init containers, in place, that mount only mpi-operator's volumes: they wait for workers."""
    left = []
    for index, one in enumerate(pod.get("initContainers") or ()):
        mounts = {mount.get("name") for mount in one.get("volumeMounts") or ()}
        if not (mounted := " and ".join(sorted(mounts & _MOUNTED))):
            left.append(one)
            continue
        where = f"{path}.spec.initContainers[{index}]"
        if mounts - _MOUNTED:
            raise Invalid([Problem(where, f"mounts {mounted} of mpi-operator, which no pod has here: leave it out")])
        notes.append(f"{where} is left out: it mounts {mounted} of mpi-operator")
    if pod.get("initContainers"):
        pod["initContainers"] = left


def _mpijob_starts(role: str, container: Mapping[str, Any]) -> str:
    """Return the program, such as mpirun or sshd, that makes `container` the main one of `role`; empty if none does."""
    found = _STARTS[role].search(command_text(container))
    return found[0] if found else ""


def take_devices(container: dict[str, Any]) -> dict[str, int]:
    """Remove extended resources from a container's limits and requests and return them."""
    resources = container.get("resources") or {}
    devices: dict[str, int] = {}
    for field in ("requests", "limits"):
        amounts = resources.get(field) or {}
        for name in [name for name in amounts if "/" in name and not name.startswith("hugepages-")]:
            if amount := whole_amount(amounts.pop(name), f"resources.{field}[{name}]"):
                devices[name] = amount
        if not amounts:
            resources.pop(field, None)
    if "resources" in container and not resources:
        del container["resources"]
    return devices


def converted_run_policy(spec: Mapping[str, Any], backoff_limit: int, notes: list[str]) -> dict[str, Any]:
    """Return the run policy for the `runPolicy` of a kubeflow job. `backoff_limit`: default of this kind of job."""
    given = spec.get("runPolicy") or {}
    # v1 had this field outside the policy, too.
    made: dict[str, Any] = {"cleanPodPolicy": given.get("cleanPodPolicy") or spec.get("cleanPodPolicy") or "None"}
    made["backoffLimit"] = backoff_limit
    for name in ("suspend", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"):
        if given.get(name) is not None:
            made[name] = given[name]
    dropped = [(name, why) for name, why in _DROPPED_POLICY.items() if given.get(name)]
    notes += [f"spec.runPolicy.{name} is left out: {why}" for name, why in dropped]
    return made
