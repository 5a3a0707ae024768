"""Pod templates: dicts that pass through untouched, checked only where we depend on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from ..errors import Problem
from .base import Schema

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
LauncherTemplate = Annotated[dict[str, Any], Schema(_template_schema(_CONTAINER, ()))]


def containers_of(template: Mapping[str, Any], field: str = "containers") -> list[dict[str, Any]]:
    """The containers of a template as a list, empty when there are none or the template is malformed."""
    spec = template.get("spec")
    found = spec.get(field) if isinstance(spec, Mapping) else None
    return [c for c in found if isinstance(c, dict)] if isinstance(found, list) else []


def worker_template_problems(template: Mapping[str, Any], path: str) -> list[Problem]:
    """What keeps a worker's template from being run, each with the field's path."""
    problems = _shape_problems(template, path)
    if problems:
        return problems
    containers = containers_of(template)
    if not containers:
        return [Problem(f"{path}.spec.containers", "is empty; the first container is the one that trains")]
    main, where = containers[0], f"{path}.spec.containers[0]"
    if not main.get("command"):
        problems.append(
            Problem(
                f"{where}.command",
                "is missing; the agent starts it once per rank and cannot see the image's entrypoint: "
                "write it out, for example [python, train.py]",
            )
        )
    for index, container in enumerate(containers):
        for key in ("name", "image"):
            if not container.get(key):
                problems.append(Problem(f"{path}.spec.containers[{index}].{key}", "is missing"))
    return problems


def launcher_template_problems(template: Mapping[str, Any], path: str) -> list[Problem]:
    """What keeps a launcher's template from being run; its first container may leave out name and image."""
    problems = _shape_problems(template, path)
    if problems:
        return problems
    containers = containers_of(template)
    if containers and containers[0].get("args") and not containers[0].get("command"):
        problems.append(
            Problem(f"{path}.spec.containers[0].command", "is missing, and args without it say nothing")
        )
    for index, container in enumerate(containers):
        for key in ("name", "image") if index else ():
            if not container.get(key):
                problems.append(Problem(f"{path}.spec.containers[{index}].{key}", "is missing"))
    return problems


def _shape_problems(template: Mapping[str, Any], path: str) -> list[Problem]:
    """Wrong types on the way to what we read."""
    problems = []
    for key in ("metadata", "spec"):
        if not isinstance(template.get(key) or {}, Mapping):
            problems.append(Problem(f"{path}.{key}", f"must be a mapping, is {template[key]!r}"))
    if problems:
        return problems
    spec = template.get("spec") or {}
    for key in ("containers", "initContainers", "volumes", "imagePullSecrets"):
        problems += _list_problems(spec.get(key) or [], f"{path}.spec.{key}")
    if not isinstance(spec.get("securityContext") or {}, Mapping):
        problems.append(
            Problem(f"{path}.spec.securityContext", f"must be a mapping, is {spec['securityContext']!r}")
        )
    for field in ("containers", "initContainers"):
        for index, container in enumerate(containers_of(template, field)):
            problems += _container_problems(container, f"{path}.spec.{field}[{index}]")
    return problems


def _container_problems(container: Mapping[str, Any], path: str) -> list[Problem]:
    problems = []
    for key in ("command", "args"):
        value = container.get(key) or []
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            problems.append(Problem(f"{path}.{key}", f"must be a list of strings, is {value!r}"))
    for key in ("env", "ports", "volumeMounts"):
        problems += _list_problems(container.get(key) or [], f"{path}.{key}")
    for key in ("resources", "securityContext"):
        if not isinstance(container.get(key) or {}, Mapping):
            problems.append(Problem(f"{path}.{key}", f"must be a mapping, is {container[key]!r}"))
    return problems


def _list_problems(value: object, path: str) -> list[Problem]:
    if not isinstance(value, list):
        return [Problem(path, f"must be a list, is {value!r}")]
    return [
        Problem(f"{path}[{index}]", f"must be a mapping, is {item!r}")
        for index, item in enumerate(value)
        if not isinstance(item, Mapping)
    ]
