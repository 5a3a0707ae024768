"""Templates from files, and the jobs of files laid over them."""

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
    """Templates by kind and name. `ask`: who knows the one that a job names and no file has."""

    known: dict[tuple[str, str], Template] = field(default_factory=dict)
    ask: Callable[[Json], Template] | None = None

    @classmethod
    def of_files(cls, files: Iterable[Path], ask: Callable[[Json], Template] | None = None) -> "LocalTemplates":
        """All of these files. Raises ManifestUnreadable, also for a file that holds none, and Invalid."""
        made = cls(ask=ask)
        for path in files:
            if not made.take(read_documents(path)):
                raise ManifestUnreadable(f"{path}: holds no TrainingTemplate and no ClusterTrainingTemplate")
        return made

    def take(self, documents: Iterable[Any]) -> list[Template]:
        """Add those among the documents, which are returned. Raises Invalid, which names the template."""
        found = [_read_local_template(document) for document in documents if is_template(document)]
        for template in found:
            if self.known.setdefault(template.key, template).spec != template.spec:
                raise Invalid([Problem(str(template), "is given twice, and not as the same; keep one")])
        return found

    def merged_with_template(self, job: Json) -> Json:
        """The job laid over the template that it names, if it names one. Raises Invalid."""
        named = named_template(job)
        if named is None:
            return job
        if named not in self.known and self.ask is not None:
            self.known[named] = self.ask(job)
        if named not in self.known:
            message = f"{' '.join(named)} is in none of the files; put it beside the job, name its file with "
            raise Invalid([Problem("spec.templateRef.name", f"{message}--templates, or ask a cluster: --server")])
        return resolved_job_spec(job, self.known[named])


def _read_local_template(document: Json) -> Template:
    try:
        return read_template(document)
    except Invalid as exc:
        name = f"{document['kind']} {(document.get('metadata') or {}).get('name')}"
        raise Invalid([Problem(f"{name}: {p.path}", p.message) for p in exc.problems]) from exc
