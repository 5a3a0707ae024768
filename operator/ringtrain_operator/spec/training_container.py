"""Choice of the container that runs the training (or the launcher) in a pod template with several containers.

Parsing moves it to the front, so all other code uses the first container.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import Problem
from .template import TEMPLATES, containers_of, shape_problems, template_at

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
# Names of the training container in other operators' jobs; an earlier name is preferred.
NAMES = ("pytorch", "tensorflow", "jax", "xgboost", "node", "trainer", "worker", "mpi", "train")
_INDEX = re.compile(r"(spec\.(\w+\.\w+)\.spec\.containers)\[(\d+)\]")

Json = dict[str, Any]


def training_container_index(template: Mapping[str, Any]) -> int:
    """Return the index of the training container: the container that the pod's annotation names, if it exists.

    Otherwise, the first name in `NAMES` that a container has selects the container. By default, the index is 0.
    """
    names = [container.get("name") for container in containers_of(template)]
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    wanted = (annotations.get(DEFAULT_CONTAINER), *NAMES)
    return next((names.index(name) for name in wanted if name in names), 0)


def with_training_containers_first(spec: Mapping[str, Any]) -> tuple[Json, dict[str, int]]:
    """Return a job's spec with the training container of each pod template in front, and its original index by the
    template's path. Templates of a wrong shape are not changed."""
    made, indexes = dict(spec), {}
    for path in TEMPLATES:
        template = template_at(spec, path)
        if template is None or shape_problems(template, ""):
            continue
        if index := training_container_index(template):
            containers = containers_of(template)
            containers.insert(0, containers.pop(index))
            pod = {**template["spec"], "containers": containers}
            section, _, field = path.partition(".")
            made[section] = {**made[section], field: {**template, "spec": pod}}
            indexes[path] = index
    return made, indexes


def original_problem(problem: Problem, indexes: Mapping[str, int]) -> Problem:
    """Return a problem with the path that the user's manifest has, before containers were moved to the front."""
    found = _INDEX.match(problem.path)
    moved = indexes.get(found[2], 0) if found else 0
    if found is None or not moved:
        return problem
    index = int(found[3])
    original = moved if index == 0 else index - 1 if index <= moved else index
    return replace(problem, path=f"{found[1]}[{original}]{problem.path[found.end() :]}")


def describe_training_container(template: Mapping[str, Any]) -> str:
    """Return a text with the names of the training container and its sidecars; empty without sidecars."""
    first, *others = containers_of(template)
    if not others:
        return ""
    return f"container {first.get('name')} trains (sidecars: {', '.join(str(one.get('name')) for one in others)})"
