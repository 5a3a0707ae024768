"""Pod templates: dicts that pass through untouched, checked only where we depend on them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from ..errors import Problem, shown
from .base import MOST_SLOTS, Schema

_PRESERVED: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}


def _template_schema(container: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    """OpenAPI of a pod template that keeps unknown fields and types only those that we read."""
    containers = {"type": "array", "minItems": 1, "maxItems": 32, "items": container}
    spec: dict[str, Any] = {**_PRESERVED, "properties": {"containers": containers}}
    template: dict[str, Any] = {**_PRESERVED, "properties": {"metadata": _PRESERVED, "spec": spec}}
    if required:
        spec["required"] = list(required)
        template["required"] = ["spec"]
    return template


_CONTAINER: dict[str, Any] = {
    **_PRESERVED,
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 63},
        "image": {"type": "string"},
        "command": _STRINGS,
        "args": _STRINGS,
    },
}

WorkerTemplate = Annotated[
    dict[str, Any], Schema(_template_schema({**_CONTAINER, "required": ["name"]}, ("containers",)))
]
# Of a launcher, of data workers, of an evaluator: what it leaves out comes from the worker's.
PartialTemplate = Annotated[dict[str, Any], Schema(_template_schema(_CONTAINER, ()))]


_Shape = type | list[Any] | dict[str, Any]
# What this package reads of a template, and of which shape it must be: a type, a list of a shape, a mapping.
_CONTAINER_SHAPE: dict[str, Any] = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "workingDir": str,
    "terminationMessagePath": str,
    "env": [{"name": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
    "ports": [{}],
    "volumeMounts": [{"name": str, "mountPath": str, "subPath": str}],
    "resources": {"limits": {}, "requests": {}},
    "securityContext": {"capabilities": {"add": [str]}},
}
_TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {
        "containers": [_CONTAINER_SHAPE],
        "initContainers": [_CONTAINER_SHAPE],
        "volumes": [
            {
                "name": str,
                "emptyDir": {},
                "hostPath": {"path": str},
                "persistentVolumeClaim": {"claimName": str},
                "secret": {"secretName": str, "items": [{"key": str, "path": str}]},
            }
        ],
        "imagePullSecrets": [{}],
        "securityContext": {},
        "restartPolicy": str,
        "serviceAccountName": str,
    },
}


def containers_of(template: Mapping[str, Any], field: str = "containers") -> list[dict[str, Any]]:
    """The containers of a well-formed template as a list, empty when there are none."""
    return list((template.get("spec") or {}).get(field) or ())


def template_devices(template: Mapping[str, Any]) -> dict[str, object]:
    """Extended resources (names with a domain) of the first container, as its limits or requests give them; 0 of
    one is none."""
    found: dict[str, object] = {}
    for main in containers_of(template)[:1]:
        resources = main.get("resources") or {}
        for field in ("requests", "limits"):
            found.update({name: n for name, n in (resources.get(field) or {}).items() if "/" in str(name)})
    return {name: n for name, n in found.items() if str(n) != "0"}


def worker_devices(template: Mapping[str, Any], devices: Mapping[str, Any]) -> dict[str, int]:
    """Extended resources of each worker, in its `template` and in worker.`devices`."""
    amounts = {**template_devices(template), **devices}
    return {name: count for name, amount in amounts.items() if (count := device_count(amount))}


def device_count(value: object) -> int | None:
    """A device's amount in a template as a number; None for what is no whole number from 1 to 1,024."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 5 and 1 <= int(text) <= MOST_SLOTS else None


def worker_template_problems(
    template: Mapping[str, Any], path: str, *, needs_command: bool = True
) -> Iterator[Problem]:
    """What keeps a worker's template from being run, each with the field's path.

    `needs_command`: not where the launcher's mpirun names the program.
    """
    containers = containers_of(template)
    if not containers:
        yield Problem(f"{path}.spec.containers", "is empty; the first container is the one that trains")
    elif needs_command and not containers[0].get("command"):
        yield Problem(
            f"{path}.spec.containers[0].command",
            "is missing; the agent starts it once per rank and cannot see the image's entrypoint: "
            "write it out, for example [python, train.py]",
        )
    yield from _missing_template_field(containers, path, 0)


def partial_template_problems(template: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """What keeps any other template from being run; its first container may leave out name and image."""
    containers = containers_of(template)
    if containers and containers[0].get("args") and not containers[0].get("command"):
        yield Problem(f"{path}.spec.containers[0].command", "is missing, and args without it say nothing")
    yield from _missing_template_field(containers, path, 1)


def _missing_template_field(containers: Sequence[Mapping[str, Any]], path: str, first: int) -> Iterator[Problem]:
    for index, container in list(enumerate(containers))[first:]:
        for key in ("name", "image"):
            if not container.get(key):
                yield Problem(f"{path}.spec.containers[{index}].{key}", "is missing")


def shape_problems(value: object, path: str, shape: _Shape | None = None) -> list[Problem]:
    """Where `value` is not of the shape that we read. To the API a null field is an absent one; here too."""
    return list(_misshapen_template_field(value, path, _TEMPLATE if shape is None else shape))


def _misshapen_template_field(value: object, path: str, shape: _Shape) -> Iterator[Problem]:
    if value is None:
        return
    if isinstance(shape, list):
        if not isinstance(value, list):
            yield Problem(path, f"must be a list, is {shown(value)}")
            return
        yield from (Problem(f"{path}[{index}]", "is null") for index, item in enumerate(value) if item is None)
        for index, item in enumerate(value):
            yield from _misshapen_template_field(item, f"{path}[{index}]", shape[0])
    elif isinstance(shape, dict):
        if not isinstance(value, Mapping):
            yield Problem(path, f"must be a mapping, is {shown(value)}")
            return
        for key, known in shape.items():
            yield from _misshapen_template_field(value.get(key), f"{path}.{key}" if path else key, known)
    elif not isinstance(value, shape):
        yield Problem(path, f"must be a string, is {shown(value)}; put it in quotes")
    elif "\0" in str(value):
        yield Problem(path, "holds a NUL character, which no process can be given")
