"""Converter of JobSets, Volcano's Jobs, and Jobs whose containers start ranks.

The pods of one replicated job (or task) are the workers; one additional pod may run mpirun.
"""

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ringtrain_convert.initializers import CLAIM_SHAPE, add_initializers, take_claims
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
    RANKS,
    command_notes,
    mpi_worker,
    take_devices,
    whole_field,
)
from ringtrain_convert.roles import ConvertedPod, Role, command_text, side_texts, worker_of_roles
from ringtrain_convert.source_hosts import (
    host_of_any_pod,
    host_of_first_pod,
    hosts_of_volcano,
    index_of_pod,
    take_hosts,
)
from ringtrain_convert.source_labels import add_source_labels, texts_of
from ringtrain_convert.torchrun import (
    TORCHRUN,
    counted_torchrun,
    give_torchrun_variables,
)
from ringtrain_convert.unsupported import PARAMETER_SERVER, RAY
from ringtrain_operator.errors import Invalid, Problem, counted
from ringtrain_operator.spec.template import shape_problems, template_devices

Json = dict[str, Any]

_KINDS = {("JobSet", "jobset.x-k8s.io/"): "jobset", ("Job", "batch.volcano.sh/"): "volcano", ("Job", "batch/"): "job"}
_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(run|launch)\b")
# Programs that start the ranks of a pod as torchrun does, but take the size of the world only from their options.
_OTHER_STARTERS = re.compile(
    r"\b(accelerate(?:\.commands\.|\s+)launch|deepspeed(?=\s)|colossalai\s+run|ft_launcher|tune\s+run)\b"
)
_MPIRUN = re.compile(r"\b(mpirun|mpiexec|orterun|prterun)\b")
_NODES = re.compile(r"--(?:nnodes|num_machines|num_nodes)[= ](\d+)\b")
_SEVERAL_NODES = re.compile(r"(--nnodes[= ',]+|PET_NNODES)(?!1\b)")
# Hosts and numbers of pods that Volcano writes to files and variables; mpirun's option that reads such a variable.
_OF_VOLCANO = re.compile(r"/etc/volcano/[\w.-]+|VC_\w+_(HOSTS|NUM)|(?<=\$)\{?MPI_HOST\b")
# Pods whose processes find each other in a way that only the original kind provides, by name and template of the role.
_ELSEWHERE = {
    r"google\.com/tpu|cloud\.google\.com/gke-tpu": "has TPUs: GKE sets TPU_WORKER_ID and TPU_WORKER_HOSTNAMES only in "
    "pods of Jobs and JobSets, so leave the job as it is",
    r"\A(?:ps|pserver|parameter-?server)\n|--job_name[= ]ps\b|'DMLC_ROLE', 'value': 'server'": PARAMETER_SERVER,
    r"\bray start\b|['/]ray:|rayproject/": f"starts Ray. {RAY}",
    r"\bflux (?:start|run|submit)\b|\bfluxgen\b": "starts its processes by flux: write mpirun in its place",
}
_HOSTS_OPTION = re.compile(r"""\s--?(?:H|host)[= ]+"?\$\{?(\w+)\}?"?(?=\s)""")
# Set by the agent for each rank.
_RANK_VARIABLES = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"})
_INDEX = {
    "job": ("JOB_COMPLETION_INDEX",),
    "jobset": ("JOB_COMPLETION_INDEX",),
    "volcano": ("VC_TASK_INDEX", "VK_TASK_INDEX"),
}
_DEFAULT_RETRIES = 3
_SHAPE = {"metadata": {"name": str, "labels": {}, "annotations": {}}, "spec": {"failurePolicy": {}, **CLAIM_SHAPE}}
_OF_ROLE = {"name", "replicas", "template"}
_OF_JOB = {"parallelism", "completions", "completionMode", "backoffLimit", "template"}
_READ = {
    "jobset": {"replicatedJobs", "failurePolicy", "ttlSecondsAfterFinished", "suspend"},
    "volcano": {"tasks", "maxRetry", "ttlSecondsAfterFinished", "queue", "schedulerName", "minAvailable"},
    "job": {*_OF_JOB, "suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished"},
}


def is_batchjob(obj: Mapping[str, Any]) -> bool:
    """Return whether `obj` is a JobSet, a Job of Volcano, or a Job of Kubernetes that starts ranks."""
    kind = _batchjob_kind(obj)
    return kind in ("jobset", "volcano") or (kind == "job" and bool(_started("\n".join(texts_of(obj.get("spec"))))))


def convert_batchjob(obj: Mapping[str, Any]) -> Converted:
    """Return a DistributedTrainingJob equivalent to `obj`. Raises Invalid, with paths of `obj`, if it cannot be
    converted."""
    kind = _batchjob_kind(obj)
    if problems := shape_problems(obj, "", _SHAPE):
        raise Invalid(problems)
    spec = dict(obj.get("spec") or {})
    notes = ["the image is not changed: the operator adds the agent to the pods"]
    roles = list(_batchjob_roles(kind, spec, notes))
    loading = [role for role in roles if kind == "jobset" and role.name in _completed_first(spec)]
    roles = [role for role in roles if role not in loading]
    name = str((obj.get("metadata") or {}).get("name") or "")
    if not roles:
        field = "replicatedJobs" if kind == "jobset" else "tasks"
        raise Invalid([missing_field_problem(spec, "spec", field, _READ[kind], "has no pods")])
    starting = [role for role in roles if _started(role.text)]
    for role in roles:
        text = f"{role.name}\n{role.text}\n{role.template}"
        if why := next((why for pattern, why in _ELSEWHERE.items() if re.search(pattern, text)), ""):
            raise Invalid([Problem(role.path, why)])
    if starting and _started(starting[0].text) == "mpirun" and sum(role.pods for role in roles) > 1:
        made = _mpi_section(kind, starting[0], roles, notes)
    else:
        made = _ring_section(kind, name, starting, roles, notes)
    add_initializers({role.path: _initializer_pod(role) for role in loading}, made, notes)
    claims = take_claims(spec, obj.get("metadata") or {}, made, notes) if kind == "jobset" else ()
    made |= {"agent": "Inject", "runPolicy": _batchjob_run_policy(kind, spec, (starting or roles)[0], notes)}
    if kind == "volcano":
        queue = {"queue": spec["queue"]} if spec.get("queue") else {}
        made["scheduling"] = {"gang": "Volcano", **queue}
    pods = sum(role.pods for role in roles)
    if spec.get("minAvailable") not in (None, pods):
        notes.append(f"spec.minAvailable is left out: no rank starts before all {counted(pods, 'pod')} run")
    notes += _left_fields("spec", spec, _READ[kind])
    notes += _left_fields("spec.failurePolicy", spec.get("failurePolicy") or {}, {"maxRestarts"})
    return replace(converted_manifest(made, obj.get("metadata") or {}, notes=notes), others=claims)


def _left_fields(path: str, section: Mapping[str, Any], read: Collection[str]) -> list[str]:
    """Return a note about the fields of `section` that are not in `read`, if there are any."""
    left = ", ".join(sorted({*section} - {*read}))
    return [f"{path} ({left}) is left out: the gang starts and ends as one, and has its own network"] if left else []


def _batchjob_kind(obj: Mapping[str, Any]) -> str:
    version = str(obj.get("apiVersion"))
    names = (name for (kind, group), name in _KINDS.items() if obj.get("kind") == kind and version.startswith(group))
    return next(names, "")


def _started(text: str) -> str:
    """Return the program in `text` that starts ranks, mpirun, torchrun or one like torchrun; empty if there is none."""
    if _MPIRUN.search(text):
        return "mpirun"
    found = _OTHER_STARTERS.search(text)
    return "torchrun" if _TORCHRUN.search(text) else found[1] if found else ""


def _batchjob_roles(kind: str, spec: Mapping[str, Any], notes: list[str]) -> Iterator[Role]:
    """Yield a role for each pod template of a Job, JobSet or Volcano Job that has pods. Raises Invalid for invalid
    fields."""
    if kind == "job":
        yield _job_role("the Job", "spec", 1, spec, {})
        return
    field_name = "replicatedJobs" if kind == "jobset" else "tasks"
    shape: Json = {"name": str, "template": {"metadata": {}, "spec": {}}}
    shape |= {"dependsOn": [{"name": str}]} if kind == "jobset" else {}
    if problems := shape_problems(spec, "spec", {field_name: [shape]}):
        raise Invalid(problems)
    for index, one in enumerate(spec.get(field_name) or ()):
        name, path = str(one.get("name") or index), f"spec.{field_name}[{index}]"
        pods = whole_field(one.get("replicas"), f"{path}.replicas", 1)
        template = one.get("template") or {}
        if not pods:
            continue
        needed = {need.get("name") for need in one.get("dependsOn") or ()} if kind == "jobset" else {None}
        notes += _left_fields(path, one, {*_OF_ROLE, "dependsOn"} if needed <= _completed_first(spec) else _OF_ROLE)
        if kind == "volcano":
            yield Role(name, f"{path}.template", pods, checked_template(template, f"{path}.template"))
        else:
            job, metadata = template.get("spec") or {}, template.get("metadata") or {}
            notes += _left_fields(f"{path}.template.spec", job, _OF_JOB)
            yield _job_role(name, f"{path}.template.spec", pods, job, metadata)


def _completed_first(spec: Mapping[str, Any]) -> set[str]:
    """Return the names of a JobSet's replicated jobs that end before others start."""
    needed = (need for one in spec.get("replicatedJobs") or () for need in one.get("dependsOn") or ())
    return {str(need.get("name")) for need in needed if need.get("status") == "Complete"}


def _initializer_pod(role: Role) -> Json:
    """Return the pod of a role that ends before others start. Raises Invalid if it cannot be an init container."""
    if role.pods > 1 or _started(role.text) or template_devices(role.template):
        how = "has devices, several pods, or starts ranks"
        message = (
            f"must be complete before other pods start, and {how}: leave it out, and run it by itself before the job"
        )
        raise Invalid([Problem(role.path, message)])
    pod: Json = copy.deepcopy(role.template["spec"])
    return pod


def _job_role(name: str, path: str, replicas: int, job: Mapping[str, Any], owner: Mapping[str, Any]) -> Role:
    """Return the role with the pods of a Job. Raises Invalid if they do not all run at the same time."""
    pods = whole_field(job.get("parallelism"), f"{path}.parallelism", 1)
    if (completions := whole_field(job.get("completions"), f"{path}.completions", pods)) != pods:
        message = f"is {completions}, and parallelism {pods}: ranks are pods that run at the same time"
        raise Invalid([Problem(f"{path}.completions", message)])
    template = checked_template(job.get("template"), f"{path}.template")
    retries = whole_field(job.get("backoffLimit"), f"{path}.backoffLimit", BACKOFF_LIMIT)
    return Role(name, f"{path}.template", replicas * pods, template, retries, owner, pods)


def _carried(kind: str, role: Role, notes: list[str]) -> tuple[Json, Json]:
    """Return a copy of the role's pod template, and its training container, which is moved to the front."""
    if (policy := role.template["spec"].get("restartPolicy")) in ("OnFailure", "Always"):
        notes.append(f"{role.path}.spec.restartPolicy ({policy}) is left out: a failure starts the whole gang again")
    template = carried_template(role.template, role.owner, path=role.path, notes=notes)
    starting = (str(one.get("name")) for one in template["spec"]["containers"] if _started(command_text(one)))
    put_training_container_first(template, *starting)
    add_source_labels(template, {}, role.path, notes)
    for field in ("hostname", "subdomain", *(["schedulerName"] if kind == "volcano" else [])):
        template["spec"].pop(field, None)
    return template, template["spec"]["containers"][0]


def _ring_section(kind: str, name: str, starting: list[Role], roles: list[Role], notes: list[str]) -> Json:
    """Return slotsPerWorker and worker of a job whose pods are the nodes of torchrun, or single ranks."""
    for role in roles:
        if starting and role not in starting:
            message = f"does not start torchrun, as {starting[0].name}'s pods do: leave it out, or run it by itself"
            raise Invalid([Problem(role.path, message)])
    pods = sum(role.pods for role in roles)
    if pods > 1:
        notes += _world_notes(starting, roles, pods)
    elif starting and _started(starting[0].text) == "mpirun":
        notes.append("mpirun stays the process of the only pod, and must start its ranks there: no other pod is a host")
    worker, slots = worker_of_roles(roles, lambda role, _: _ring_pod(kind, name, role, roles, notes), notes)
    return {"slotsPerWorker": slots, "worker": worker}


def _world_notes(starting: list[Role], roles: list[Role], pods: int) -> Iterator[str]:
    """Yield a note if the pods were not one world of the original job. Raises Invalid if they were several worlds."""
    if not starting:
        yield f"each of the {pods} pods is one rank, and has the variables of a rank, such as RANK"
    elif any(_TORCHRUN.search(role.text) and not _SEVERAL_NODES.search(str(role.template)) for role in roles):
        yield f"torchrun has no --nnodes, so each pod is a world there; here all {pods} pods are one world"
    for role in roles:
        if (by_ssh := re.search(r"\b(deepspeed|colossalai)\s", role.text)) and "--no_ssh" not in role.text:
            message = f"starts {by_ssh[1]}, which reaches the other pods by ssh, and none has an sshd: write torchrun"
            raise Invalid([Problem(role.path, message)])
        if (nodes := _NODES.search(role.text)) and int(nodes[1]) not in (pods, 1):
            message = f"starts torchrun with {nodes[0]}, and there are {pods} pods: each would be in several worlds"
            raise Invalid([Problem(role.path, message)])


def _ring_pod(kind: str, name: str, role: Role, roles: list[Role], notes: list[str]) -> ConvertedPod:
    """Return a role's pod with the command of its ranks. `name`: name of the original job."""
    template, main = _carried(kind, role, notes)
    _drop_rank_variables(main, notes)
    devices = take_devices(main)
    path = f"{role.path}.spec.containers[0]"
    given = take_hosts(main, host_of_first_pod(kind, name, roles[0]), notes)
    if host := host_of_any_pod(name, side_texts(template)):
        notes.append(f"{role.path}: another container names {host}; if it waits for this host, leave it out")
    command = take_command(main, path, notes)
    ranks, program = counted_torchrun(command, "1", devices, notes)
    text = str([program or command, main.get("env")])
    if not ranks:
        if host := host_of_any_pod(name, text):
            raise Invalid([Problem(path, f"names the host {host}, which no pod has here: write $MASTER_ADDR")])
        given |= {
            **(TORCHRUN if _TORCHRUN.search(role.text) else {}),
            **dict.fromkeys(_INDEX[kind], index_of_pod(roles)),
        }
    if kind == "volcano":
        given |= hosts_of_volcano(roles, text) if ranks < 2 else {}
        _refuse_hosts_of_volcano(re.sub("|".join(given) or "$", "", text), path, "write $MASTER_ADDR and $WORLD_SIZE")
    main["command"] = give_torchrun_variables(program or command, given, notes)
    return ConvertedPod(template, devices, ranks or 1)


def _drop_rank_variables(main: Json, notes: list[str]) -> None:
    """Remove variables such as RANK from a container, because the agent sets them."""
    env = main.get("env") or []
    if left := [str(one.get("name")) for one in env if one.get("name") in _RANK_VARIABLES]:
        notes.append(f"env ({', '.join(left)}) is left out: the agent sets it for each rank")
        main["env"] = [one for one in env if one.get("name") not in left]


def _mpi_section(kind: str, starting: Role, roles: list[Role], notes: list[str]) -> Json:
    others = [role for role in roles if role is not starting]
    if starting.pods != 1 or len(others) != 1:
        message = (
            "starts mpirun; expected one such pod, and one other group of pods, which are the workers: run mpirun in a "
            "launcher (backend mpi) only"
        )
        raise Invalid([Problem(starting.path, message)])
    [worker], path = others, f"{starting.path}.spec.containers[0]"
    launcher, main = _carried(kind, starting, notes)
    if take_devices(main):
        notes.append("the launcher's devices are left out: a launcher never gets devices")
    main["command"] = [_without_worker_hosts(word, worker.name, notes) for word in take_command(main, path, notes)]
    _refuse_hosts_of_volcano("\n".join(main["command"]), path, "leave it out, mpirun gets its hosts")
    notes += command_notes(main["command"])
    made = mpi_worker(_carried(kind, worker, notes)[0], worker.pods, notes)
    found = RANKS.search(starting.text.replace("\\\n", " "))
    ranks = int(found[2]) if found and found[2].isdecimal() else worker.pods
    slots, rest = divmod(ranks, worker.pods)
    if rest or not slots:
        message = (
            f"starts mpirun with {counted(ranks, 'rank')} on {counted(worker.pods, 'worker')}: expected as "
            "many ranks on each"
        )
        raise Invalid([Problem(path, message)])
    return {"backend": "mpi", "slotsPerWorker": slots, "worker": made, "launcher": {"template": launcher}}


def _refuse_hosts_of_volcano(text: str, path: str, way_out: str) -> None:
    if found := _OF_VOLCANO.search(text):
        raise Invalid([Problem(path, f"reads {found[0].strip('{')}, which is not made here: {way_out}")])


def _without_worker_hosts(text: str, worker: str, notes: list[str]) -> str:
    """Return a script without mpirun's option --host, if its value is all pods of Volcano's task `worker`."""
    option = _HOSTS_OPTION.search(text)
    if not option:
        return text
    assigned = re.search(rf"\b{option[1]}=(`[^`]*`|\$\([^)]*\)|\S*?)(;\s*|\s+)", text)
    hosts = assigned[1] if assigned else option[1]
    variable = f"VC_{worker.replace('-', '_').upper()}_HOSTS"
    if not re.search(rf"/etc/volcano/{re.escape(worker)}\.host\b|\b{variable}\b|^MPI_HOST$", hosts):
        return text
    notes.append(f"{option[0].strip()} is left out of the command: mpirun gets all workers as its hosts")
    return text.replace(option[0], "", 1).replace(assigned[0] if assigned else "", "", 1)


def _batchjob_run_policy(kind: str, spec: Mapping[str, Any], role: Role, notes: list[str]) -> Json:
    """Return the run policy of the converted job. Retries of pods and of a JobSet become restarts of the gang."""
    made: Json = {"cleanPodPolicy": "None"}
    for name in ("suspend", "ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        if spec.get(name) is not None:
            made[name] = spec[name]
    if kind == "volcano":
        made["backoffLimit"] = whole_field(spec.get("maxRetry"), "spec.maxRetry", _DEFAULT_RETRIES)
        return made
    restarts = (spec.get("failurePolicy") or {}).get("maxRestarts")
    made["backoffLimit"] = (role.retries + 1) * (whole_field(restarts, "spec.failurePolicy.maxRestarts", 0) + 1) - 1
    if made["backoffLimit"]:
        notes.append(f"a pod that fails starts the whole gang again, {counted(made['backoffLimit'], 'time')} at most")
    return made
