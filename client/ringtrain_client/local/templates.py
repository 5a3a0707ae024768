"""Templates of jobs, read from files, and their merge into the jobs that name them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringtrain_operator.errors import Invalid, ManifestUnreadable, Problem
from ringtrain_operator.spec.training_template import (
    Template,
    is_template,
    named_template,
    read_template,
    resolved_job_spec,
)

from .documents import read_documents

Json = dict[str, Any]


@dataclass
class LocalTemplates:
    """Templates by kind and name. `lookup`: finds the template that a job names if no file has this template."""

    known: dict[tuple[str, str], Template] = field(default_factory=dict)
    lookup: Callable[[Json], Template] | None = None

    @classmethod
    def of_files(cls, files: Iterable[Path], lookup: Callable[[Json], Template] | None = None) -> "LocalTemplates":
        """Read the templates in all files. Raises Invalid; ManifestUnreadable also for a file without templates."""
        made = cls(lookup=lookup)
        for path in files:
            if not made.add(read_documents(path)):
                raise ManifestUnreadable(f"{path}: has no TrainingTemplate and no ClusterTrainingTemplate")
        return made

    def add(self, documents: Iterable[Any]) -> list[Template]:
        """Add and return the templates among `documents`. Raises Invalid with the template's name."""
        found = [_read_local_template(document) for document in documents if is_template(document)]
        for template in found:
            if self.known.setdefault(template.key, template).spec != template.spec:
                raise Invalid([Problem(str(template), "appears twice with different specs; remove one")])
        return found

    def merged_with_template(self, job: Json) -> Json:
        """Return the job merged over the template that it names, if it names one. Raises Invalid if the reference is
        invalid or the template is not found."""
        named = named_template(job)
        if named is None:
            return job
        if named not in self.known and self.lookup is not None:
            self.known[named] = self.lookup(job)
        if named not in self.known:
            message = f"{' '.join(named)} is in none of the files; add it to the job's file, name its file with "
            raise Invalid(
                [Problem("spec.templateRef.name", f"{message}--templates, or read it from a cluster: --server")]
            )
        return resolved_job_spec(job, self.known[named])


def _read_local_template(document: Json) -> Template:
    """Return the template in `document`. Raises Invalid with the template's name."""
    try:
        return read_template(document)
    except Invalid as exc:
        metadata = document.get("metadata")
        given = metadata.get("name") if isinstance(metadata, dict) else None
        name = f"{document['kind']} {given or ''}".rstrip()
        raise Invalid([Problem(f"{name}: {p.path}", p.message) for p in exc.problems]) from exc
