"""Pod templates in a job's spec: plain dicts, of which only the fields that the operator reads are checked."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from ..errors import MISSING, Problem, shown
from .base import MOST_SLOTS, Schema

_PRESERVED: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}


def _template_schema(container: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    """Return the OpenAPI schema of a pod template. It has types only for fields that the operator reads."""
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
# For launcher, data workers and evaluator: omitted fields come from the worker's template.
PartialTemplate = Annotated[dict[str, Any], Schema(_template_schema(_CONTAINER, ()))]
# Paths of all pod templates in a job's spec. Those of workers must be complete; the operator fills in omitted fields of
# the others.
WORKER_TEMPLATES = ("worker.template", "worker.rank0Template")
TEMPLATES = (*WORKER_TEMPLATES, "launcher.template", "dataWorkers.template", "evaluator.template")


_Shape = type | list[Any] | dict[str, Any]
# Fields of a template that this package reads, and their expected shape: a type, a list of a shape, or a mapping.
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


def template_at(spec: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """Return the pod template at a path of `TEMPLATES`; None if it is absent or no mapping."""
    section, _, field = path.partition(".")
    found = spec[section].get(field) if isinstance(spec.get(section), Mapping) else None
    return found if isinstance(found, Mapping) else None


def containers_of(template: Mapping[str, Any], field: str = "containers") -> list[dict[str, Any]]:
    """Return the containers of a well-formed template; empty if it has none."""
    return list((template.get("spec") or {}).get(field) or ())


def template_devices(template: Mapping[str, Any]) -> dict[str, object]:
    """Return the devices (resources whose name has a domain) of the first container; amounts of zero are left out."""
    found: dict[str, object] = {}
    for main in containers_of(template)[:1]:
        resources = main.get("resources") or {}
        for field in ("requests", "limits"):
            found.update({name: n for name, n in (resources.get(field) or {}).items() if "/" in str(name)})
    return {name: n for name, n in found.items() if str(n) != "0"}


def worker_devices(template: Mapping[str, Any], devices: Mapping[str, Any]) -> dict[str, int]:
    """Return the devices of each worker, from its `template` and from `devices` (spec.worker.devices)."""
    amounts = {**template_devices(template), **devices}
    return {name: count for name, amount in amounts.items() if (count := device_count(amount))}


def device_count(value: object) -> int | None:
    """Return the amount of a device as an integer; None unless it is a whole number from 1 to 1,024."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 5 and 1 <= int(text) <= MOST_SLOTS else None


def without_amounts(template: Mapping[str, Any], devices: object) -> Mapping[str, Any]:
    """Return `template` without the amounts of `devices` in its first container, because another field sets them."""
    containers = containers_of(template)
    if not isinstance(devices, Mapping) or not containers:
        return template
    main = dict(containers[0])
    main["resources"] = {
        kind: {name: n for name, n in amounts.items() if name not in devices}
        if kind in ("limits", "requests")
        else amounts
        for kind, amounts in (main.get("resources") or {}).items()
        if amounts is not None
    }
    return {**template, "spec": {**template["spec"], "containers": [main, *containers[1:]]}}


def worker_template_problems(
    template: Mapping[str, Any], path: str, *, needs_command: bool = True
) -> Iterator[Problem]:
    """Yield the fields of a worker's pod template that would stop its pods from running. `path`: the template's field.

    `needs_command` is False if the launcher's mpirun command names the program.
    """
    containers = containers_of(template)
    if not containers:
        yield Problem(f"{path}.spec.containers", "is empty; one of them trains")
    elif needs_command and not containers[0].get("command"):
        yield Problem(
            f"{path}.spec.containers[0].command",
            "is missing; the agent starts it once per rank and cannot see the image's entrypoint: "
            "write it out, for example [python, train.py]",
        )
    yield from _common_problems(template, path, 0)


def partial_template_problems(template: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Yield the problems of a template other than the worker's, such as the launcher's. Its first container needs no
    name and no image, because the operator adds them."""
    containers = containers_of(template)
    if containers and containers[0].get("args") and not containers[0].get("command"):
        yield Problem(f"{path}.spec.containers[0].command", "is missing, but args are set; write the command, too")
    yield from _common_problems(template, path, 1)


def _common_problems(template: Mapping[str, Any], path: str, first: int) -> Iterator[Problem]:
    """Yield problems of any template: a restartPolicy, and containers, from number `first`, without name or image."""
    policy = (template.get("spec") or {}).get("restartPolicy") or "Never"
    if policy != "Never":
        message = f"is {policy!r}, allowed: 'Never'; the gang restarts as a whole, see backoffLimit"
        yield Problem(f"{path}.spec.restartPolicy", message)
    for index, container in list(enumerate(containers_of(template)))[first:]:
        for key in ("name", "image"):
            if not container.get(key):
                yield Problem(f"{path}.spec.containers[{index}].{key}", MISSING)


def shape_problems(value: object, path: str, shape: _Shape | None = None) -> list[Problem]:
    """Return problems at all places where `value` has other types than `shape`. A null field counts as absent."""
    return list(_shape_problems(value, path, _TEMPLATE if shape is None else shape))


def _shape_problems(value: object, path: str, shape: _Shape) -> Iterator[Problem]:
    if value is None:
        return
    if isinstance(shape, list):
        if not isinstance(value, list):
            yield Problem(path, f"must be a list, is {shown(value)}")
            return
        yield from (Problem(f"{path}[{index}]", "is null") for index, item in enumerate(value) if item is None)
        for index, item in enumerate(value):
            yield from _shape_problems(item, f"{path}[{index}]", shape[0])
    elif isinstance(shape, dict):
        if not isinstance(value, Mapping):
            yield Problem(path, f"is {shown(value)}; expected a mapping")
            return
        for key, known in shape.items():
            yield from _shape_problems(value.get(key), f"{path}.{key}" if path else key, known)
    elif not isinstance(value, shape):
        if isinstance(value, list | Mapping):
            yield Problem(path, f"expected a text, not a {'list' if isinstance(value, list) else 'mapping'}")
        else:
            yield Problem(path, f"must be a string, is {shown(value)}; put it in quotes")
    elif "\0" in str(value):
        yield Problem(path, "has a NUL character, which no process argument can have; remove it")
