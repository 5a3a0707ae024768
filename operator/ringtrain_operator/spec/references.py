"""What a pod template names and does not have, or has twice: the API server refuses such pods, not such jobs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import Problem
from .job import JobSpec
from .reserved import VOLUME_CHECKPOINT, VOLUME_LOGS, VOLUME_SECRET, VOLUME_SHM, VOLUMES
from .template import containers_of

_CONTAINER_FIELDS = ("initContainers", "containers")


def dangling(spec: JobSpec) -> list[Problem]:
    """Mounts of volumes that are not there, and names that are given twice, in both templates."""
    checkpoint = {VOLUME_CHECKPOINT} if spec.checkpoint is not None else set()
    roles = {
        "worker": (spec.worker.template, {VOLUME_SECRET, VOLUME_SHM} | checkpoint),
        "launcher": (spec.launcher.template, {VOLUME_SECRET, VOLUME_LOGS} | checkpoint),
    }
    return [
        problem
        for role, (template, ours) in roles.items()
        for problem in _template(template, f"spec.{role}.template.spec", ours)
    ]


def _template(template: Mapping[str, Any], path: str, ours: set[str]) -> Iterator[Problem]:
    pod = template.get("spec") or {}
    volumes = pod.get("volumes") or ()
    yield from _twice(((f"{path}.volumes[{i}].name", volume.get("name")) for i, volume in enumerate(volumes)))
    containers = [
        (f"{path}.{field}[{index}]", container)
        for field in _CONTAINER_FIELDS
        for index, container in enumerate(containers_of(template, field))
    ]
    yield from _twice((f"{where}.name", container.get("name")) for where, container in containers)
    names = {str(volume.get("name")) for volume in volumes} | ours
    for where, container in containers:
        yield from _container(container, where, names)


def _container(container: Mapping[str, Any], path: str, volumes: set[str]) -> Iterator[Problem]:
    for field, key in (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")):
        given = container.get(field) or ()
        for index, mount in enumerate(given):
            name = mount.get("name")
            if name not in volumes:
                yield Problem(f"{path}.{field}[{index}].name", _no_volume(str(name), volumes))
        yield from _twice((f"{path}.{field}[{i}].{key}", mount.get(key)) for i, mount in enumerate(given))
    ports = container.get("ports") or ()
    yield from _twice((f"{path}.ports[{index}].name", port.get("name")) for index, port in enumerate(ports))


def _no_volume(name: str, volumes: set[str]) -> str:
    near = difflib.get_close_matches(name, volumes, n=1, cutoff=0.6)
    theirs = sorted(volumes - VOLUMES)
    has = f"it has {', '.join(theirs)}" if theirs else "it has none"
    hint = f"did you mean {near[0]}?" if near else f"{has}; add it to spec.volumes"
    return f"is {name!r}, and the pod has no such volume; {hint}"


def _twice(named: Iterator[tuple[str, object]]) -> Iterator[Problem]:
    """A problem for each name that another had before; a name that is absent is none."""
    first: dict[object, str] = {}
    for path, name in named:
        if name is not None and first.setdefault(name, path) != path:
            yield Problem(path, f"is {name!r}, as is {first[name]}; give one of them another name")
