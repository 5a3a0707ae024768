"""Templates of jobs (TrainingTemplate), which provide defaults for the specs of jobs that name them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ..contract import GROUP
from ..errors import Invalid, Problem, found_text, shown
from .base import MAX_DEPTH, nesting_depth, without_nulls
from .job import JobSpec
from .parts import CLUSTER, TEMPLATE_KINDS
from .template import shape_problems
from .training_container import with_training_containers_first

Json = dict[str, Any]
# Each job's status has a copy of its template and is written often, so the size is bounded.
MAX_BYTES = 64 << 10
# Fields that only the job sets: its controller, suspension, and size, which `kubectl scale` reads from the job.
OWN = (("templateRef",), ("managedBy",), ("worker", "replicas"), ("runPolicy", "suspend"))

_SHAPE: Json = {"metadata": {"name": str}, "spec": {"description": str, "job": {}}}
_CONTAINERS = frozenset({"containers", "initContainers"})
_REPLACED_BY_NAME = frozenset({"env", "volumes", "volumeMounts"})


@dataclass(frozen=True)
class Template:
    """A TrainingTemplate or ClusterTrainingTemplate; `spec` is a part of a job's spec."""

    kind: str
    name: str
    spec: Mapping[str, Any]
    description: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def hash(self) -> str:
        """A digest of `spec`."""
        return hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name of the template, as in a job's templateRef."""
        return self.kind, self.name


def is_template(obj: object) -> bool:
    """Return whether `obj` is a TrainingTemplate or ClusterTrainingTemplate."""
    if not isinstance(obj, Mapping):
        return False
    return obj.get("kind") in TEMPLATE_KINDS and str(obj.get("apiVersion")).startswith(f"{GROUP}/")


def read_template(obj: Mapping[str, Any]) -> Template:
    """Parse an object into a template. Raises Invalid, with paths inside the template."""
    if problems := shape_problems(obj, "", _SHAPE):
        raise Invalid(problems)
    name, body = (obj.get("metadata") or {}).get("name"), obj.get("spec") or {}
    job, description = body.get("job"), body.get("description") or ""
    if not name:
        problems.append(Problem("metadata.name", f"{found_text(name)}; expected a name"))
    if job is None:
        problems.append(Problem("spec.job", "is missing; expected a part of a job's spec"))
    elif nesting_depth(job) > MAX_DEPTH:
        problems.append(Problem("spec.job", f"is nested more than {MAX_DEPTH} levels deep"))
    else:
        problems += _template_limit_problems(job)
    if unknown := sorted(body.keys() - {"job", "description"}):
        problems.append(Problem(f"spec.{unknown[0]}", "is not a field here; allowed: description, job"))
    if problems:
        raise Invalid(problems)
    return Template(str(obj.get("kind")), str(name), without_nulls(job), str(description))


def _template_limit_problems(job: Mapping[str, Any]) -> list[Problem]:
    """Return problems of fields that a template must not set, and of a template that is too large."""
    found = []
    for path in OWN:
        inner: Any = job
        for key in path:
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if inner is not None:
            found.append(Problem(f"spec.job.{'.'.join(path)}", "can only be set by each job; remove it"))
    size = len(json.dumps(job).encode())
    if size > MAX_BYTES:
        message = f"has {size} bytes as JSON; expected at most {MAX_BYTES}, since every job stores a copy"
        found.append(Problem("spec.job", message))
    return found


def named_template(obj: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return kind and name in a job's templateRef; None if the job names no template. Raises Invalid for an invalid
    templateRef."""
    spec = obj.get("spec")
    reference = spec.get("templateRef") if isinstance(spec, Mapping) else None
    if reference is None:
        return None
    fields = reference if isinstance(reference, Mapping) else {}
    kind, name = fields.get("kind") or CLUSTER, fields.get("name")
    if kind not in TEMPLATE_KINDS or not isinstance(name, str) or not name or fields.keys() - {"kind", "name"}:
        message = f"is {shown(reference)}; expected a name, and a kind of {' or '.join(TEMPLATE_KINDS)}"
        raise Invalid([Problem("spec.templateRef", message)])
    return kind, name


def stored_template(obj: Mapping[str, Any]) -> Template | None:
    """Return the template stored in the job's status, if templateRef still names it; otherwise None."""
    stored = last_stored_template(obj)
    return stored if stored is not None and stored.key == named_template(obj) else None


def last_stored_template(obj: Mapping[str, Any]) -> Template | None:
    """Return the template stored in the job's status, even if templateRef now names another one; None without one."""
    status = obj.get("status")
    stored = status.get("template") if isinstance(status, Mapping) else None
    if not isinstance(stored, Mapping):
        return None
    return Template(str(stored.get("kind")), str(stored.get("name")), stored.get("spec") or {})


def resolved_job_spec(obj: Mapping[str, Any], template: Template | None = None) -> Json:
    """Return the job with its template merged into its spec and without templateRef. Raises Invalid for an invalid
    templateRef.

    `template` defaults to the one stored in the job's status. Without a template the job is returned unchanged.
    """
    template = template or (stored_template(obj) if named_template(obj) else None)
    if template is None:
        return dict(obj)
    return {**obj, "spec": merged_spec(obj["spec"], template.spec)}


def merged_spec(spec: Mapping[str, Any], template: Mapping[str, Any]) -> Json:
    """Return a template's spec, overridden and extended by the fields of a job's `spec`.

    Mappings are merged by key, and null removes a key. Containers of the same name are merged. Variables, volumes and
    mounts of the job replace those of the same name. Any other list or value of the job replaces the template's. Fields
    of the job that are absent, null or at their default do not override, because the API server fills in defaults.
    Raises Invalid if `spec` is nested too deep.
    """
    if nesting_depth(spec) > MAX_DEPTH:
        raise Invalid([Problem("spec", f"is nested more than {MAX_DEPTH} levels deep; no field of a job is")])
    below, _ = with_training_containers_first(template)
    found: Json = _merged_value(below, _fields_set(spec, JobSpec))
    found.pop("templateRef", None)
    return found


def _fields_set(value: Any, model: type[BaseModel]) -> Any:
    """Return `value` without the fields of `model` that are null or have their default."""
    if not isinstance(value, Mapping):
        return value
    known = {info.alias or name: info for name, info in model.model_fields.items()}
    found = {}
    for key, entry in value.items():
        info = known.get(key)
        inner = _model_of(info.annotation) if info is not None else None
        entry = _fields_set(entry, inner) if inner is not None else entry
        if entry is not None and (
            info is None or entry != _spec_field_default(info.get_default(call_default_factory=True))
        ):
            found[key] = entry
    return found


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model class in a field's annotation (`Model` or `Model | None`); None if it is no model."""
    found = (part for part in (annotation, *get_args(annotation)) if isinstance(part, type))
    return next((part for part in found if issubclass(part, BaseModel)), None)


def _spec_field_default(value: Any) -> Any:
    """Return a field's default as the API server stores it; None if it stores none."""
    if isinstance(value, BaseModel):
        return {}
    if isinstance(value, tuple):
        return list(value)
    return None if value is PydanticUndefined else value


def _merged_value(below: Any, above: Any, key: str = "") -> Any:
    if isinstance(above, Mapping):
        found = dict(below) if isinstance(below, Mapping) else {}
        for name, value in above.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = _merged_value(found.get(name), value, name)
        return found
    if _has_mappings(below) and _has_mappings(above):
        if key in _CONTAINERS:
            return _containers(below, above)
        if key in _REPLACED_BY_NAME:
            return _replaced_by_name(below, above)
    return above


def _has_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


def _containers(below: Sequence[Mapping[str, Any]], above: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return the containers `above` merged over the containers `below` of the same name.

    A container of `above` without a name is merged over the first container of `below`.
    """
    found = [dict(container) for container in below]
    for container in above:
        names = [one.get("name") for one in found]
        name = container.get("name") or (names or [None])[0]
        if name in names:
            found[names.index(name)] = _merged_value(found[names.index(name)], container)
        else:
            found.append(_merged_value({}, container))
    return found


def _replaced_by_name(below: Sequence[Mapping[str, Any]], above: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return the entries of `below`, each replaced by entries of `above` with its name, then the rest of `above`."""
    found: list[Json] = []
    left = list(above)
    for entry in below:
        ours = [one for one in above if one.get("name") == entry.get("name")]
        found += [dict(one) for one in ours if one in left] if ours else [dict(entry)]
        left = [one for one in left if one not in ours]
    return [*found, *map(dict, left)]
