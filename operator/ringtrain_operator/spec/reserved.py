"""What the operator adds to a user's pods, by name: a template that sets one of these is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import contract
from ..errors import Problem
from .job import JobSpec
from .template import containers_of, device_count, template_devices

VOLUME_SECRET = "ringtrain-secret"
VOLUME_LOGS = "ringtrain-logs"
VOLUME_CHECKPOINT = "ringtrain-checkpoint"
VOLUME_SHM = "ringtrain-shm"
VOLUMES = frozenset({VOLUME_SECRET, VOLUME_LOGS, VOLUME_CHECKPOINT, VOLUME_SHM})

# Keeps the NVIDIA runtime from giving every GPU of the node to a container that asks for none.
ENV_NVIDIA_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"

ENVIRONMENT = frozenset(value for name, value in vars(contract).items() if name.startswith("ENV_"))
LABELS = frozenset({contract.LABEL_MANAGED_BY, contract.LABEL_NAME})
POD_FIELDS = {
    "hostname": "the pod's name is its host name",
    "subdomain": "the job's Service is its subdomain",
}


def clashes(spec: JobSpec) -> list[Problem]:
    """Everything in the templates that the operator sets itself, each with the way out."""
    worker, launcher = spec.worker.template, spec.launcher.template
    problems = _template_clashes(worker, "spec.worker.template", ENVIRONMENT)
    problems += _template_clashes(launcher, "spec.launcher.template", ENVIRONMENT | {ENV_NVIDIA_VISIBLE_DEVICES})
    problems += _mount_clashes(worker, "spec.worker.template", _mounts(spec, logs=False))
    problems += _mount_clashes(launcher, "spec.launcher.template", _mounts(spec, logs=True))
    problems += _device_clashes(spec)
    return problems


def _mounts(spec: JobSpec, logs: bool) -> dict[str, str]:
    """Paths in the main container that we mount, with what for."""
    mounts = {contract.SECRET_DIR: "the job's credentials"}
    if logs:
        mounts[contract.LOG_DIR] = "spec.logs"
    if spec.checkpoint is not None:
        mounts[spec.checkpoint.mount_path] = "spec.checkpoint"
    return mounts


def _template_clashes(template: Mapping[str, Any], path: str, reserved: frozenset[str]) -> list[Problem]:
    problems = []
    pod = template.get("spec") or {}
    for label in (template.get("metadata") or {}).get("labels") or {}:
        if label in LABELS or str(label).startswith(f"{contract.GROUP}/"):
            problems.append(Problem(f"{path}.metadata.labels[{label}]", "is set by the operator; remove it"))
    for field, why in POD_FIELDS.items():
        if field in pod:
            problems.append(Problem(f"{path}.spec.{field}", f"is set by the operator ({why}); remove it"))
    if (pod.get("restartPolicy") or "Never") != "Never":
        problems.append(
            Problem(
                f"{path}.spec.restartPolicy",
                f"is {pod['restartPolicy']!r}, allowed: 'Never'; the gang restarts as a whole, see backoffLimit",
            )
        )
    for index, volume in enumerate(pod.get("volumes") or ()):
        if volume.get("name") in VOLUMES:
            problems.append(
                Problem(f"{path}.spec.volumes[{index}].name", f"{volume['name']} is the operator's; rename it")
            )
    for main in containers_of(template)[:1]:
        for index, variable in enumerate(main.get("env") or ()):
            if variable.get("name") in reserved:
                where = f"{path}.spec.containers[0].env[{index}]"
                problems.append(Problem(where, f"{variable['name']} is set by the operator; remove it"))
    return problems


def _mount_clashes(template: Mapping[str, Any], path: str, ours: Mapping[str, str]) -> list[Problem]:
    problems = []
    for main in containers_of(template)[:1]:
        for index, mount in enumerate(main.get("volumeMounts") or ()):
            taken = str(mount.get("mountPath")).rstrip("/")
            if taken in ours:
                where = f"{path}.spec.containers[0].volumeMounts[{index}].mountPath"
                problems.append(
                    Problem(where, f"{taken} is where the operator mounts {ours[taken]}; choose another")
                )
    return problems


def _device_clashes(spec: JobSpec) -> list[Problem]:
    problems = _unclear_ranks(spec)
    for main in containers_of(spec.worker.template)[:1]:
        for name, value in _resources(main):
            if name in spec.worker.devices and str(value) != str(spec.worker.devices[name]):
                problems.append(
                    Problem(
                        f"spec.worker.template.spec.containers[0].resources[{name}]",
                        f"is {value!r} and spec.worker.devices says {spec.worker.devices[name]}; keep the latter",
                    )
                )
    for index, container in enumerate(containers_of(spec.launcher.template)):
        for name, value in _resources(container):
            if "/" in name:
                problems.append(
                    Problem(
                        f"spec.launcher.template.spec.containers[{index}].resources[{name}]",
                        f"is {value!r}; the launcher trains nothing and never gets devices; remove it",
                    )
                )
    return problems


def _unclear_ranks(spec: JobSpec) -> list[Problem]:
    """Where the template's devices decide how many ranks a pod has, and do not say it."""
    if spec.slots_per_worker is not None or spec.worker.devices:
        return []
    devices = template_devices(spec.worker.template)
    path = "spec.worker.template.spec.containers[0].resources"
    if len(devices) > 1:
        names = ", ".join(sorted(devices))
        return [
            Problem(path, f"names several kinds of devices ({names}): set spec.slotsPerWorker, the ranks of a pod")
        ]
    return [
        Problem(
            f"{path}[{name}]",
            f"is {value!r}, expected 1 to 64 devices; each gets a rank unless slotsPerWorker is set",
        )
        for name, value in devices.items()
        if device_count(value) is None
    ]


def _resources(container: Mapping[str, Any]) -> list[tuple[str, Any]]:
    resources = container.get("resources") or {}
    found = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return [(str(name), value) for name, value in found.items()]
