"""The template that a job names: read once, when the job is accepted; from then on its status has it."""

from dataclasses import dataclass
from typing import Any

from ..errors import Invalid, Problem
from ..spec.job import CLUSTER
from ..spec.training_template import (
    Template,
    kept_template,
    last_template,
    named_template,
    read_template,
    resolved_job_spec,
)
from .api.client import ApiClient
from .api.errors import Forbidden, NotFound
from .api.resources import TEMPLATES

Json = dict[str, Any]


@dataclass(frozen=True)
class Whole:
    """A job with its template in its spec, and the template; or the job as it is, and what is wrong."""

    job: Json
    template: Template | None = None
    problem: Invalid | None = None


async def job_with_its_template(api: ApiClient, job: Json) -> Whole:
    """The job laid over the template that it keeps, else over the one that there is now. Raises ApiError."""
    try:
        named = named_template(job)
        if named is None:
            return Whole(job)
        template = kept_template(job) or await read_named_template(api, job["metadata"].get("namespace") or "", *named)
        return Whole(resolved_job_spec(job, template), template)
    except Invalid as exc:
        last = last_template(job) if (job["spec"].get("runPolicy") or {}).get("suspend") else None
        if last is not None:  # its pods may have to go still; the other template has time until it is resumed
            return Whole(resolved_job_spec(job, last), last)
        return Whole(job, problem=exc)


async def read_named_template(api: ApiClient, namespace: str, kind: str, name: str) -> Template:
    """The template as it is now. Raises Invalid where it is not there, or is none; ApiError."""
    where = "" if kind == CLUSTER else f" in namespace {namespace}"
    try:
        found = await api.get(TEMPLATES[kind], namespace, name)
        return read_template(found)
    except NotFound as exc:
        message = f"there is no {kind} {name}{where}; dtj templates lists those that there are"
        raise Invalid([Problem("spec.templateRef.name", message)]) from exc
    except Forbidden as exc:
        raise Invalid([Problem("spec.templateRef", f"{kind} {name} can't be read: {exc}")]) from exc
    except Invalid as exc:
        raise Invalid([Problem("spec.templateRef", f"{kind} {name}: {exc}")]) from exc
