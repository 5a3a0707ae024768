"""Template of a job, which is read once, when the job is accepted, and stored in the job's status."""

from dataclasses import dataclass
from typing import Any

from ..errors import Invalid, Problem
from ..spec.parts import CLUSTER
from ..spec.training_template import (
    Template,
    last_stored_template,
    named_template,
    read_template,
    resolved_job_spec,
    stored_template,
)
from .api.client import ApiClient
from .api.errors import Forbidden, NotFound
from .api.resources import TEMPLATES

Json = dict[str, Any]


@dataclass(frozen=True)
class JobWithTemplate:
    """A job with its template merged in, and the template; or the unchanged job, and why it has no template."""

    job: Json
    template: Template | None = None
    problem: Invalid | None = None


async def merge_job_template(api: ApiClient, job: Json) -> JobWithTemplate:
    """Merge the job with the template stored in its status; if none is stored, with the template that it names.

    Raises ApiError if a request fails.
    """
    try:
        named = named_template(job)
        if named is None:
            return JobWithTemplate(job)
        template = stored_template(job) or await read_named_template(
            api, job["metadata"].get("namespace") or "", *named
        )
        return JobWithTemplate(resolved_job_spec(job, template), template)
    except Invalid as exc:
        last = last_stored_template(job) if (job["spec"].get("runPolicy") or {}).get("suspend") else None
        if last is not None:  # its pods may still have to be deleted; the new template is needed when it resumes
            return JobWithTemplate(resolved_job_spec(job, last), last)
        return JobWithTemplate(job, problem=exc)


async def read_named_template(api: ApiClient, namespace: str, kind: str, name: str) -> Template:
    """Read a template from the API server. Raises Invalid if it is missing, invalid or may not be read, ApiError if the
    request fails."""
    where = "" if kind == CLUSTER else f" in namespace {namespace}"
    try:
        found = await api.get(TEMPLATES[kind], namespace, name)
        return read_template(found)
    except NotFound as exc:
        message = f"{kind} {name} does not exist{where}; dtj templates lists the existing ones"
        raise Invalid([Problem("spec.templateRef.name", message)]) from exc
    except Forbidden as exc:
        raise Invalid([Problem("spec.templateRef", f"{kind} {name} cannot be read: {exc}")]) from exc
    except Invalid as exc:
        raise Invalid([Problem("spec.templateRef", f"{kind} {name}: {exc}")]) from exc
