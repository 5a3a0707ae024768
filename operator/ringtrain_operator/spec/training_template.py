"""Templates of jobs: what a platform team prepares, and how a job's spec is laid over it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ..contract import GROUP
from ..errors import Invalid, Problem, shown
from .base import MAX_DEPTH, spec_depth_of, without_nulls
from .job import CLUSTER, TEMPLATE_KINDS, JobSpec

Json = dict[str, Any]
# Each job keeps its template in its status, which is written again and again.
MAX_BYTES = 64 << 10
# What a job says alone: who runs it, whether it runs, and how large it is, which `kubectl scale` reads of the job.
OWN = (("templateRef",), ("managedBy",), ("worker", "replicas"), ("runPolicy", "suspend"))

_CONTAINERS = frozenset({"containers", "initContainers"})
_REPLACED_BY_NAME = frozenset({"env", "volumes", "volumeMounts"})


@dataclass(frozen=True)
class Template:
    """A TrainingTemplate or ClusterTrainingTemplate; `spec`: a part of a job's spec."""

    kind: str
    name: str
    spec: Mapping[str, Any]
    description: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def hash(self) -> str:
        """Another one whenever `spec` is another."""
        return hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def key(self) -> tuple[str, str]:
        """What a job names it by."""
        return self.kind, self.name


def is_template(obj: object) -> bool:
    """Whether a document is a template of ours."""
    if not isinstance(obj, Mapping):
        return False
    return obj.get("kind") in TEMPLATE_KINDS and str(obj.get("apiVersion")).startswith(f"{GROUP}/")


def read_template(obj: Mapping[str, Any]) -> Template:
    """The template that an object is. Raises Invalid, with paths of the template."""
    metadata, spec = obj.get("metadata"), obj.get("spec")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    said = spec if isinstance(spec, Mapping) else {}
    job, description = said.get("job"), said.get("description") or ""
    problems = [Problem("metadata.name", f"is {shown(name)}, expected a name")] if not isinstance(name, str) else []
    if not isinstance(job, Mapping):
        problems.append(Problem("spec.job", f"is {shown(job)}, expected a part of a job's spec"))
    elif spec_depth_of(job) > MAX_DEPTH:
        problems.append(Problem("spec.job", f"is nested more than {MAX_DEPTH} levels deep"))
    else:
        problems += _unfit_template(job)
    if unknown := sorted(said.keys() - {"job", "description"}):
        problems.append(Problem(f"spec.{unknown[0]}", "is not a field here; allowed: description, job"))
    if problems:
        raise Invalid(problems)
    return Template(str(obj.get("kind")), str(name), without_nulls(job), str(description))


def _unfit_template(job: Mapping[str, Any]) -> list[Problem]:
    """What a template can't have, or has too much of."""
    found = []
    for path in OWN:
        inner: Any = job
        for key in path:
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if inner is not None:
            found.append(Problem(f"spec.job.{'.'.join(path)}", "is for each job to say; remove it"))
    size = len(json.dumps(job).encode())
    if size > MAX_BYTES:
        message = f"has {size} bytes as JSON; expected at most {MAX_BYTES}, since every job keeps a copy"
        found.append(Problem("spec.job", message))
    return found


def named_template(obj: Mapping[str, Any]) -> tuple[str, str] | None:
    """Kind and name of the template that a job names; None: it names none. Raises Invalid."""
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


def kept_template(obj: Mapping[str, Any]) -> Template | None:
    """The template that the job was accepted with, as its status has it; None: none yet, or it names another."""
    kept = last_template(obj)
    return kept if kept is not None and kept.key == named_template(obj) else None


def last_template(obj: Mapping[str, Any]) -> Template | None:
    """The template that the job was last accepted with, whatever it names now; None: it never was."""
    status = obj.get("status")
    kept = status.get("template") if isinstance(status, Mapping) else None
    if not isinstance(kept, Mapping):
        return None
    return Template(str(kept.get("kind")), str(kept.get("name")), kept.get("spec") or {})


def resolved_job_spec(obj: Mapping[str, Any], template: Template | None = None) -> Json:
    """The job with its template (None: the one that it keeps) in its spec, and templateRef no more.

    A job that names no template, or keeps none, comes back as it is. Raises Invalid.
    """
    template = template or (kept_template(obj) if named_template(obj) else None)
    if template is None:
        return dict(obj)
    return {**obj, "spec": merged_spec(obj["spec"], template.spec)}


def merged_spec(spec: Mapping[str, Any], template: Mapping[str, Any]) -> Json:
    """A job's `spec` laid over a template's: mappings are merged key by key, and null removes a key; containers of
    one name are merged, of variables, volumes and mounts of one name the job's count; another list, or value, of
    the job's replaces the template's. What of the job's own fields is left out, null, or at its default says
    nothing: the API server fills defaults in. Raises Invalid where `spec` is deeper than any spec is.
    """
    if spec_depth_of(spec) > MAX_DEPTH:
        raise Invalid([Problem("spec", f"is nested more than {MAX_DEPTH} levels deep; no field of a job is")])
    found: Json = _spec_laid_over(template, _said_spec_fields(spec, JobSpec))
    found.pop("templateRef", None)
    return found


def _said_spec_fields(value: Any, model: type[BaseModel]) -> Any:
    """`value` without the fields of `model` that are null or at their defaults."""
    if not isinstance(value, Mapping):
        return value
    known = {info.alias or name: info for name, info in model.model_fields.items()}
    found = {}
    for key, said in value.items():
        info = known.get(key)
        inner = _model_of(info.annotation) if info is not None else None
        said = _said_spec_fields(said, inner) if inner is not None else said
        if said is not None and (
            info is None or said != _spec_field_default(info.get_default(call_default_factory=True))
        ):
            found[key] = said
    return found


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a field that is one, or one or None."""
    found = (part for part in (annotation, *get_args(annotation)) if isinstance(part, type))
    return next((part for part in found if issubclass(part, BaseModel)), None)


def _spec_field_default(value: Any) -> Any:
    """A default as the API server writes it; None where it writes nothing."""
    if isinstance(value, BaseModel):
        return {}
    if isinstance(value, tuple):
        return list(value)
    return None if value is PydanticUndefined else value


def _spec_laid_over(below: Any, above: Any, key: str = "") -> Any:
    if isinstance(above, Mapping):
        found = dict(below) if isinstance(below, Mapping) else {}
        for name, value in above.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = _spec_laid_over(found.get(name), value, name)
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
    """Those of one name are merged; one without a name is the first."""
    found = [dict(container) for container in below]
    for container in above:
        names = [one.get("name") for one in found]
        name = container.get("name") or (names or [None])[0]
        if name in names:
            found[names.index(name)] = _spec_laid_over(found[names.index(name)], container)
        else:
            found.append(_spec_laid_over({}, container))
    return found


def _replaced_by_name(below: Sequence[Mapping[str, Any]], above: Sequence[Mapping[str, Any]]) -> list[Json]:
    """All entries of a name that `above` has are its own: in their place, or at the end."""
    found: list[Json] = []
    left = list(above)
    for entry in below:
        ours = [one for one in above if one.get("name") == entry.get("name")]
        found += [dict(one) for one in ours if one in left] if ours else [dict(entry)]
        left = [one for one in left if one not in ours]
    return [*found, *map(dict, left)]
