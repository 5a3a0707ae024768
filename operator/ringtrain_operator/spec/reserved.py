"""Problems with names in pod templates: names that only the operator may use, and names that do not exist.

The API server accepts a job with a dangling reference and refuses its pods.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from .. import contract
from ..errors import Problem, counted, shown, spelling_hint
from .base import MOST_RANKS, MOST_SLOTS, field_at
from .job import JobSpec
from .pod_rules import items_of
from .template import TEMPLATES, WORKER_TEMPLATES, containers_of, device_count, template_devices

VOLUME_SECRET = "ringtrain-secret"
VOLUME_LOGS = "ringtrain-logs"
VOLUME_CHECKPOINT = "ringtrain-checkpoint"
VOLUME_SHM = "ringtrain-shm"
VOLUME_AGENT = "ringtrain-agent"
VOLUME_SCRATCH = "ringtrain-scratch"
VOLUME_MPI = "ringtrain-mpi"
VOLUMES = frozenset(
    {VOLUME_SECRET, VOLUME_LOGS, VOLUME_CHECKPOINT, VOLUME_SHM, VOLUME_AGENT, VOLUME_SCRATCH, VOLUME_MPI}
)

# Set in an evaluator's pod, where TensorFlow reads it.
ENV_TF_CONFIG = "TF_CONFIG"
# Lists of a container whose entries name volumes.
_OF_VOLUMES = ("volumeMounts", "volumeDevices")
# Prevents the NVIDIA runtime from exposing every GPU of the node to a container that requests none.
ENV_NVIDIA_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"

ENVIRONMENT = frozenset(value for name, value in vars(contract).items() if name.startswith("ENV_"))
LABELS = frozenset({contract.LABEL_MANAGED_BY, contract.LABEL_NAME})
POD_FIELDS = {
    "hostname": "the pod's name is its host name",
    "subdomain": "the job's Service is its subdomain",
}
# Fields of a worker's pod that the operator reads for all workers of a gang.
OF_ALL_WORKERS = ("hostNetwork", "schedulerName", "priorityClassName", "terminationGracePeriodSeconds")


def reserved_name_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield problems, with remedies, of reserved names and devices in the templates, and of the number of ranks."""
    reserved = {
        "launcher": {ENV_NVIDIA_VISIBLE_DEVICES},
        "dataWorkers": {ENV_NVIDIA_VISIBLE_DEVICES},
        "evaluator": {ENV_TF_CONFIG},
    }
    for field, template in templates_of(spec).items():
        section, path = field.partition(".")[0], f"spec.{field}"
        yield from _template_clashes(template, path)
        for main in containers_of(template)[:1]:
            where = f"{path}.spec.containers[0]"
            yield from _environment_clashes(main, where, ENVIRONMENT | reserved.get(section, set()))
            yield from _mount_clashes(main, where, _reserved_mounts(spec, logs=section == "launcher"))
    yield from _rank_count_problems(spec)
    yield from _rank_limit_problems(spec)
    yield from _device_clashes(spec)
    yield from _rank0_template_problems(spec)
    yield from _data_worker_problems(spec)
    yield from _evaluator_problems(spec)


def templates_of(spec: JobSpec) -> dict[str, dict[str, Any]]:
    """Return the pod templates in the spec, by path."""
    found = {path: field_at(spec, path) for path in TEMPLATES}
    return {path: template for path, template in found.items() if template is not None}


def _rank0_template_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield a problem for each field in which worker 0's template differs although all workers need the same."""
    template, path = spec.worker.rank0_template, "spec.worker.rank0Template.spec"
    if template is None:
        return
    if spec.backend == "mpi":
        message = "is only for backend ring: mpirun starts one command everywhere; remove it"
        yield Problem("spec.worker.rank0Template", message)
    mains = [containers_of(one)[0] for one in (template, spec.worker.template)]
    names = {name for main in mains for name, _ in _container_resources(main) if "/" in name}
    for name in sorted(names - spec.worker.devices.keys()):
        here, there = (dict(_container_resources(main)).get(name, 0) for main in mains)
        if str(here) != str(there):
            message = f"is {here}, and {there} in spec.worker.template; all workers need the same devices"
            yield Problem(f"{path}.containers[0].resources[{name}]", message)
    for field in OF_ALL_WORKERS:
        here, there = (one["spec"].get(field) for one in (template, spec.worker.template))
        if (here or None) != (there or None):
            message = f"is {shown(here)}, and {shown(there)} in spec.worker.template; all workers need the same"
            yield Problem(f"{path}.{field}", message)


def _data_worker_problems(spec: JobSpec) -> Iterator[Problem]:
    data = spec.data_workers
    if data is None:
        return
    template = data.template or {}
    path = "spec.dataWorkers.template.spec.containers"
    for main in containers_of(template)[:1]:
        for field in ("command", "args"):
            if main.get(field):
                yield Problem(f"{path}[0].{field}", "is set by the operator (ringtrain data-worker); remove it")
    yield from _unwanted_device_problems(template, path, "data workers prepare input and never get devices")
    ranks = spec.slots * (spec.worker.replicas + (1 if spec.mpi and spec.mpi.run_launcher_as_worker else 0))
    if data.dispatchers not in (None, 1, ranks):
        message = f"is {data.dispatchers}, expected 1 or the number of ranks, {ranks}"
        yield Problem("spec.dataWorkers.dispatchers", message)
    if data.kind == "tensorflow" and spec.networking.encryption_mode != "none":
        message = "is 'tensorflow', whose servers encrypt nothing, and networking.encryption is"
        yield Problem(
            "spec.dataWorkers.kind",
            f"{message} {spec.networking.encryption_mode!r}; expected kind: ringtrain, or no encryption",
        )


def _evaluator_problems(spec: JobSpec) -> Iterator[Problem]:
    evaluator = spec.evaluator
    if evaluator is None:
        return
    template = evaluator.template or {}
    path = "spec.evaluator.template.spec.containers"
    mains = (*containers_of(template)[:1], *containers_of(spec.worker.template)[:1])
    if not any(main.get("command") for main in mains):
        yield Problem(f"{path}[0].command", "is missing, and the worker's template has none either")
    for main in containers_of(template)[:1]:
        for name, value in _container_resources(main):
            if name in evaluator.devices and str(value) != str(evaluator.devices[name]):
                wanted = evaluator.devices[name]
                message = f"is {value!r} and spec.evaluator.devices says {wanted}; remove it here"
                yield Problem(f"{path}[0].resources[{name}]", message)


def _unwanted_device_problems(template: Mapping[str, Any], path: str, why: str) -> Iterator[Problem]:
    for index, container in enumerate(containers_of(template)):
        for name, value in _container_resources(container):
            if "/" in name and str(value) != "0":
                yield Problem(f"{path}[{index}].resources[{name}]", f"is {value!r}; {why}; remove it")


def _reserved_mounts(spec: JobSpec, logs: bool) -> dict[str, str]:
    """Return the paths that the operator mounts in the main container, each with its purpose.

    `logs`: whether the operator mounts a volume for spec.logs.
    """
    mounts = {contract.SECRET_DIR: "the job's credentials", contract.AGENT_DIR: "the agent (spec.agent)"}
    if logs:
        mounts[contract.LOG_DIR] = "spec.logs"
    if spec.checkpoint is not None and spec.checkpoint.persistent_volume_claim is not None:
        mounts[spec.checkpoint.mount_path] = "spec.checkpoint"
    return mounts


def _template_clashes(template: Mapping[str, Any], path: str) -> Iterator[Problem]:
    pod = template.get("spec") or {}
    for label in (template.get("metadata") or {}).get("labels") or {}:
        if label in LABELS or str(label).startswith(f"{contract.GROUP}/"):
            yield Problem(f"{path}.metadata.labels[{label}]", "is set by the operator; remove it")
    for field, why in POD_FIELDS.items():
        if pod.get(field):
            yield Problem(f"{path}.spec.{field}", f"is set by the operator ({why}); remove it")
    for index, volume in enumerate(pod.get("volumes") or ()):
        if volume.get("name") in VOLUMES:
            yield Problem(
                f"{path}.spec.volumes[{index}].name",
                f"{volume['name']} is reserved for the operator; rename the volume",
            )


def _environment_clashes(main: Mapping[str, Any], path: str, reserved: Set[str]) -> Iterator[Problem]:
    for index, variable in enumerate(main.get("env") or ()):
        if variable.get("name") in reserved:
            yield Problem(f"{path}.env[{index}]", f"{variable['name']} is set by the operator; remove it")


def _mount_clashes(main: Mapping[str, Any], path: str, ours: Mapping[str, str]) -> Iterator[Problem]:
    for index, mount in enumerate(main.get("volumeMounts") or ()):
        path_used = str(mount.get("mountPath")).rstrip("/")
        if path_used in ours:
            message = f"{path_used} is where the operator mounts {ours[path_used]}; choose another path"
            yield Problem(f"{path}.volumeMounts[{index}].mountPath", message)


def _device_clashes(spec: JobSpec) -> Iterator[Problem]:
    devices, templates = spec.worker.devices, templates_of(spec)
    for field in WORKER_TEMPLATES:
        for main in containers_of(templates.get(field, {}))[:1]:
            for name, value in _container_resources(main):
                if name in devices and str(value) != str(devices[name]):
                    message = f"is {value!r} and spec.worker.devices says {devices[name]}; remove it here"
                    yield Problem(f"spec.{field}.spec.containers[0].resources[{name}]", message)
    path = "spec.launcher.template.spec.containers"
    why = "the launcher runs no training and never gets devices"
    yield from _unwanted_device_problems(spec.launcher.template, path, why)


def _rank_count_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield a problem if the devices in the template do not determine the number of ranks in a pod."""
    if spec.slots_per_worker is not None or spec.worker.devices:
        return
    devices = template_devices(spec.worker.template)
    path = "spec.worker.template.spec.containers[0].resources"
    if len(devices) > 1:
        names = ", ".join(sorted(devices))
        message = f"names several kinds of devices ({names}): set spec.slotsPerWorker, the ranks of a pod"
        yield Problem(path, message)
        return
    for name, value in devices.items():
        if device_count(value) is None:
            expected = f"expected 1 to {MOST_SLOTS} devices"
            message = f"is {value!r}, {expected}; each gets a rank unless slotsPerWorker is set"
            yield Problem(f"{path}[{name}]", message)


def _rank_limit_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield a problem if the product of workers and ranks per worker is larger than the limit of ranks."""
    field, workers = "spec.worker.replicas", spec.worker.replicas
    if spec.elastic is not None:
        field, workers = "spec.elastic.maxReplicas", spec.elastic.max_replicas
    if workers * spec.slots > MOST_RANKS:
        message = f"is {workers}, with {counted(spec.slots, 'rank')} each {workers * spec.slots:,} ranks"
        yield Problem(field, f"{message}; expected at most {MOST_RANKS:,}: fewer workers or slotsPerWorker")


def _container_resources(container: Mapping[str, Any]) -> list[tuple[str, Any]]:
    resources = container.get("resources") or {}
    found = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return [(str(name), value) for name, value in found.items()]


def dangling_reference_problems(spec: JobSpec) -> list[Problem]:
    """Return problems of names, in all templates, of volumes or resource claims that the pod does not have."""
    mounted = spec.checkpoint is not None and spec.checkpoint.persistent_volume_claim is not None
    checkpoint = {VOLUME_CHECKPOINT} if mounted else set()
    ours = {
        "worker": {VOLUME_SECRET, VOLUME_SHM} | checkpoint,
        "launcher": {VOLUME_SECRET, VOLUME_LOGS} | checkpoint,
        "dataWorkers": {VOLUME_SECRET, VOLUME_SHM},
        "evaluator": {VOLUME_SHM} | checkpoint,
    }
    return [
        problem
        for path, template in templates_of(spec).items()
        for problem in _dangling_in_template(template, f"spec.{path}.spec", ours[path.partition(".")[0]])
    ]


def _dangling_in_template(template: Mapping[str, Any], path: str, ours: set[str]) -> Iterator[Problem]:
    pod = template.get("spec") or {}
    volumes = {str(volume.get("name")) for volume in pod.get("volumes") or ()} | ours
    claims = {str(claim.get("name")) for claim in pod.get("resourceClaims") or ()}
    for at, container in items_of(pod, "initContainers", "containers"):
        used = [(f"{at}{there}.name", one.get("name")) for there, one in items_of(container, *_OF_VOLUMES)]
        for there, variable in items_of(container, "env"):
            if file := (variable.get("valueFrom") or {}).get("fileKeyRef"):
                used.append((f"{at}{there}.valueFrom.fileKeyRef.volumeName", file.get("volumeName")))
        yield from _dangling_names(used, path, volumes, "volume", "volumes")
        claimed = items_of(container.get("resources") or {}, "claims")
        names = [(f"{at}.resources{there}.name", claim.get("name")) for there, claim in claimed]
        yield from _dangling_names(names, path, claims, "resource claim", "resourceClaims")


def _dangling_names(
    used: Iterable[tuple[str, object]], path: str, known: set[str], noun: str, field: str
) -> Iterator[Problem]:
    """Yield a problem for each (path below `path`, name) of `used` whose name is not in `known`, the names in the pod's
    list `field`."""
    for where, name in ((where, str(name)) for where, name in used):
        if name not in known:
            has = ", ".join(sorted(known - VOLUMES)) or "none"
            hint = spelling_hint(name, known) or f"it has {has}; add it to {path}.{field}"
            yield Problem(f"{path}{where}", f"is {name!r}, but the pod has no such {noun}; {hint}")
