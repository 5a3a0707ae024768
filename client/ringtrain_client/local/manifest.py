"""The user's file: read at the start, and again whenever it is saved, as `kubectl apply` would."""

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ringtrain_operator.contract import KIND
from ringtrain_operator.errors import Invalid, ManifestUnreadable, Problem
from ringtrain_operator.spec.job import is_ours
from ringtrain_operator.spec.parse import parse_job, update_problems
from ringtrain_operator.status.model import format_time

from .documents import read_documents
from .templates import LocalTemplates


def load_objects(path: Path) -> list[dict[str, Any]]:
    """Every DistributedTrainingJob in the file. Raises ManifestUnreadable, which names the file."""
    return jobs_among(read_documents(path), path)


def is_job(document: object) -> bool:
    """Whether a document is a DistributedTrainingJob."""
    return isinstance(document, dict) and document.get("kind") == KIND


def jobs_among(documents: list[Any], path: Path) -> list[dict[str, Any]]:
    """The jobs of a file. Raises ManifestUnreadable where there is none."""
    jobs = [doc for doc in documents if is_job(doc)]
    if not jobs:
        raise ManifestUnreadable(f"{path}: holds no {KIND}, but {_held_documents(documents)}")
    return jobs


# What `dtj convert` makes jobs of.
_CONVERTED = frozenset({"MPIJob", "TrainJob", "PyTorchJob", "TFJob", "JAXJob", "XGBoostJob"})


def _name_of(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def _held_documents(documents: list[Any]) -> str:
    """What documents are, for a message."""
    objects = [doc for doc in documents if isinstance(doc, dict) and doc.get("kind")]
    if not objects:
        return "nothing with a kind"
    named = (f"{doc['kind']} {_name_of(doc)}".strip() for doc in objects[:5])
    more = f" and {len(objects) - 5} more" if len(objects) > 5 else ""
    way = "; dtj convert makes a job of it" if any(doc["kind"] in _CONVERTED for doc in objects) else ""
    return f"{', '.join(named)}{more}{way}"


def load_whole(path: Path, templates: LocalTemplates) -> list[dict[str, Any]]:
    """Every job in the file, laid over the template that it names: one of the file, or of `templates`, which gets
    those of the file. Raises ManifestUnreadable or Invalid."""
    documents = read_documents(path)
    templates.take(documents)
    return [templates.merged_with_template(job) for job in jobs_among(documents, path)]


def load_job(path: Path, templates: LocalTemplates | None = None) -> dict[str, Any]:
    """The file's one job as an API server would hold it, its template in its spec. Raises ManifestUnreadable or
    Invalid."""
    jobs = load_whole(path, templates or LocalTemplates())
    if len(jobs) > 1:
        names = ", ".join(str((job.get("metadata") or {}).get("name")) for job in jobs)
        raise ManifestUnreadable(f"{path}: holds {len(jobs)} jobs ({names}); give the one to run its own file")
    return as_stored(jobs[0])


def as_stored(job: dict[str, Any]) -> dict[str, Any]:
    """The job of a manifest as an API server would hold it. Raises Invalid."""
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
    """A manifest on disk, followed while its job runs. `complaint`: why the file as it is has no effect, if so.
    `templates`: as they were when the job began."""

    path: Path
    templates: LocalTemplates = field(default_factory=LocalTemplates)
    seen: tuple[int, ...] = ()
    complaint: str = ""
    _unreadable: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self.seen = _manifest_file_version(self.path)

    def refresh(self, job: dict[str, Any]) -> dict[str, Any]:
        """`job`, with the file's spec if the file was saved since.

        A change that admission would refuse, such as one of an immutable field, leaves what runs as it is.
        """
        now = _manifest_file_version(self.path)
        if now == self.seen:
            return job
        try:
            new = self.templates.merged_with_template(load_objects(self.path)[0])
            problems = update_problems(parse_job(new).spec, parse_job(job).spec, job.get("status"))
        except (ManifestUnreadable, Invalid) as exc:
            # Half-saved or wrong: read again next time, and then it is wrong.
            self.complaint = str(exc) if now == self._unreadable else ""
            self._unreadable = now
            return job
        self.seen = now
        self.complaint = "; ".join(f"{problem.path}: {problem.message}" for problem in problems)
        if problems or new["spec"] == job["spec"]:
            return job
        generation = job["metadata"]["generation"] + 1
        return {**job, "spec": new["spec"], "metadata": {**job["metadata"], "generation": generation}}


def _manifest_file_version(path: Path) -> tuple[int, ...]:
    """Differs after every save: times alone are too coarse for two saves at once."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)
