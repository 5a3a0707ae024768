"""The user's manifest file. It is read at the start and again after each save, as `kubectl apply` would."""

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ringtrain_operator.contract import KIND
from ringtrain_operator.errors import Invalid, ManifestUnreadable, Problem, spelling_hint
from ringtrain_operator.spec.base import format_time
from ringtrain_operator.spec.job import is_ours
from ringtrain_operator.spec.parse import parse_job, update_problems

from .documents import read_documents
from .references import file_problems
from .templates import LocalTemplates


def load_jobs(path: Path) -> list[dict[str, Any]]:
    """Return every DistributedTrainingJob in the file. Raises ManifestUnreadable with the file's name, and Invalid with
    the problems of the file's other objects."""
    return _checked_jobs(read_documents(path), path, LocalTemplates())


def _checked_jobs(documents: list[Any], path: Path, templates: LocalTemplates) -> list[dict[str, Any]]:
    """Return the jobs of a file, and add its templates to `templates`. Raises as `load_jobs`."""
    templates.add(documents)
    jobs = jobs_among(documents, path)
    if problems := file_problems(documents, map(namespace_of, jobs)):
        raise Invalid(problems)
    return jobs


def is_job(document: object) -> bool:
    """Return whether a document is a DistributedTrainingJob."""
    return isinstance(document, dict) and document.get("kind") == KIND


def jobs_among(documents: list[Any], path: Path) -> list[dict[str, Any]]:
    """Return the jobs of a file. Raises ManifestUnreadable if the file has no job."""
    jobs = [doc for doc in documents if is_job(doc)]
    if not jobs:
        raise ManifestUnreadable(f"{path}: {_no_job_text(documents)}")
    return jobs


def job_label(job: dict[str, Any], jobs: list[dict[str, Any]]) -> str:
    """Return the start of an error line about one of a file's `jobs`; empty if the file has no other job."""
    return f"{_name_of(job) or 'job without a name'}: " if len(jobs) > 1 else ""


def namespace_of(job: dict[str, Any]) -> str:
    """Return the namespace of a job of a file, which need not be valid."""
    metadata = job.get("metadata")
    return str((metadata.get("namespace") if isinstance(metadata, dict) else None) or "default")


# Kinds that `dtj convert` converts to jobs.
_CONVERTED = frozenset({"MPIJob", "TrainJob", "PyTorchJob", "TFJob", "JAXJob", "XGBoostJob", "JobSet", "Job"})


def _name_of(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def _no_job_text(documents: list[Any]) -> str:
    """Return what a file without a job has instead, for an error message."""
    present = [doc for doc in documents if doc is not None]
    objects = [doc for doc in present if isinstance(doc, dict)]
    if not present:
        return f"the file is empty; expected a {KIND}"
    if not objects:
        return f"the file has {'a list' if isinstance(present[0], list) else 'plain text'}; expected a {KIND}"
    if not any(doc.get("kind") for doc in objects):
        return f"kind is missing; expected kind: {KIND}"
    return f"has no {KIND}, but {_kinds_text([doc for doc in objects if doc.get('kind')])}"


def _kinds_text(objects: list[dict[str, Any]]) -> str:
    """Return the kinds and names of objects for an error message."""
    named = (f"{doc['kind']} {_name_of(doc)}".strip() for doc in objects[:5])
    more = f" and {len(objects) - 5} more" if len(objects) > 5 else ""
    kinds = [str(doc["kind"]) for doc in objects]
    convert = "dtj convert converts it to a job" if _CONVERTED.intersection(kinds) else ""
    hint = convert or next(filter(None, (spelling_hint(kind, [KIND]) for kind in kinds)), "")
    return "; ".join(filter(None, [f"{', '.join(named)}{more}", hint]))


def read_merged_jobs(path: Path, templates: LocalTemplates) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return all documents of the file, and every job in it, merged over the template that it names.

    The template is in the file or in `templates`, to which the file's templates are added. Raises ManifestUnreadable or
    Invalid.
    """
    documents = read_documents(path)
    jobs = _checked_jobs(documents, path, templates)
    return documents, [templates.merged_with_template(job) for job in jobs]


def load_job(path: Path, templates: LocalTemplates | None = None) -> dict[str, Any]:
    """Return the file's one job as an API server would store it, merged over its template.

    Raises ManifestUnreadable or Invalid.
    """
    _, jobs = read_merged_jobs(path, templates or LocalTemplates())
    if len(jobs) > 1:
        names = ", ".join(_name_of(job) or "without a name" for job in jobs)
        raise ManifestUnreadable(f"{path}: has {len(jobs)} jobs ({names}); put the job to run into a separate file")
    return as_stored(jobs[0])


def as_stored(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job of a manifest as an API server would store it. Raises Invalid for an invalid job."""
    parsed = parse_job(job)
    if not is_ours(parsed.spec.managed_by):
        message = f"is {parsed.spec.managed_by!r}, a controller that is not on this machine; remove it"
        raise Invalid([Problem("spec.managedBy", message)])
    metadata = {
        **job["metadata"],
        "name": parsed.name,
        "namespace": parsed.namespace,
        "uid": str(uuid.uuid4()),
        "generation": 1,
        "creationTimestamp": format_time(datetime.now(UTC)),
    }
    return {**job, "metadata": metadata}


@dataclass
class LocalManifestFile:
    """The user's manifest file, which is read again while its job runs.

    `refusal`: the reason for which the present file has no effect, or an empty string. `templates`: the templates that
    existed when the job started.
    """

    path: Path
    templates: LocalTemplates = field(default_factory=LocalTemplates)
    seen: tuple[int, ...] = ()
    refusal: str = ""
    _unreadable: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self.seen = _manifest_file_version(self.path)

    def refresh(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return `job`, with the spec of the manifest file if the file has changed since the last call.

        A change that admission would refuse, such as one of an immutable field, has no effect.
        """
        now = _manifest_file_version(self.path)
        if now == self.seen:
            return job
        try:
            new = self.templates.merged_with_template(load_jobs(self.path)[0])
            problems = update_problems(parse_job(new).spec, parse_job(job).spec, job.get("status"))
        except (ManifestUnreadable, Invalid) as exc:
            # The file may be half-saved: report the problem only if the next read finds the same version.
            self.refusal = str(exc) if now == self._unreadable else ""
            self._unreadable = now
            return job
        self.seen = now
        self.refusal = "; ".join(f"{problem.path}: {problem.message}" for problem in problems)
        if problems or new["spec"] == job["spec"]:
            return job
        generation = job["metadata"]["generation"] + 1
        return {**job, "spec": new["spec"], "metadata": {**job["metadata"], "generation": generation}}


def _manifest_file_version(path: Path) -> tuple[int, ...]:
    """Return a value that changes with every save of the file. Times alone are too coarse for two quick saves."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)
