"""Choice of the container that trains (or launches) in a pod template with several.

Parsing moves it to the front, so all other code uses the first container.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import Problem
from .template import containers_of, shape_problems

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
# Names of the training container in other operators' jobs; an earlier name is preferred.
NAMES = ("pytorch", "tensorflow", "jax", "xgboost", "node", "trainer", "worker", "mpi", "train")
SECTIONS = ("worker", "launcher", "dataWorkers", "evaluator")
_INDEX = re.compile(r"(spec\.(\w+)\.template\.spec\.containers)\[(\d+)\]")

Json = dict[str, Any]


def training_container_index(template: Mapping[str, Any]) -> int:
    """Return the index of the training container in a well-formed template: the one that the annotation
    kubectl.kubernetes.io/default-container names, else the first of `NAMES`, else 0."""
    names = [container.get("name") for container in containers_of(template)]
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    wanted = (annotations.get(DEFAULT_CONTAINER), *NAMES)
    return next((names.index(name) for name in wanted if name in names), 0)


def with_training_containers_first(spec: Mapping[str, Any]) -> tuple[Json, dict[str, int]]:
    """Return a job's spec with the training container of each pod template in front, and its original index by
    section. Templates of a wrong shape are not changed."""
    made, indexes = dict(spec), {}
    for name in SECTIONS:
        section = spec.get(name)
        template = section.get("template") if isinstance(section, Mapping) else None
        if not isinstance(template, Mapping) or shape_problems(template, ""):
            continue
        if index := training_container_index(template):
            containers = containers_of(template)
            containers.insert(0, containers.pop(index))
            pod = {**template["spec"], "containers": containers}
            made[name] = {**spec[name], "template": {**template, "spec": pod}}
            indexes[name] = index
    return made, indexes


def original_problem(problem: Problem, indexes: Mapping[str, int]) -> Problem:
    """Return the problem with its path as in the manifest, before `with_training_containers_first`."""
    found = _INDEX.match(problem.path)
    moved = indexes.get(found[2], 0) if found else 0
    if found is None or not moved:
        return problem
    index = int(found[3])
    original = moved if index == 0 else index - 1 if index <= moved else index
    return replace(problem, path=f"{found[1]}[{original}]{problem.path[found.end() :]}")


def describe_training_container(template: Mapping[str, Any]) -> str:
    """Return the name of a parsed template's training container, and of its sidecars; empty if it has no sidecars."""
    first, *others = containers_of(template)
    if not others:
        return ""
    return f"container {first.get('name')} trains (sidecars: {', '.join(str(one.get('name')) for one in others)})"
