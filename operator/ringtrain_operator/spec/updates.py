"""Rules for changes of a spec, which compare the new spec with the old one."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from pydantic.alias_generators import to_snake

from .base import Rule
from .data_workers import DataWorkers

# CEL on the whole object: true if the frozen fields may change. A job that never ran may need a correction. A job that
# has ended ignores changes.
MAY_CHANGE = (
    "oldSelf.spec.runPolicy.suspend || !has(oldSelf.status) || !(has(oldSelf.status.ledger) && "
    "has(oldSelf.status.ledger.hasRun) && oldSelf.status.ledger.hasRun || has(oldSelf.status.state) && "
    "oldSelf.status.state in ['Succeeded', 'Failed'])"
)


def is_spec_fixed(status: Mapping[str, Any] | None) -> bool:
    """Return whether the frozen fields of a job with this status cannot change unless suspended: it has run or has
    ended.
    """
    found = status or {}
    return bool((found.get("ledger") or {}).get("hasRun")) or found.get("state") in ("Succeeded", "Failed")


def unchanged_cel(field: str, optional: bool) -> str:
    """Return CEL for "`field` of the spec is unchanged". An `optional` field may be absent in both specs."""
    same = f"self.{field} == oldSelf.{field}"
    return f"(has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same}))" if optional else same


def frozen_field(field: str, *, optional: bool = False, name: str = "") -> Rule:
    """Return a rule: once the job has run, `field` can change only while it is suspended. `name` is for the message."""
    of = attrgetter(".".join(map(to_snake, field.split("."))))
    return Rule(
        cel=unchanged_cel(field, optional),
        message=f"{name or field} can change only while the job is suspended, or before it has run; set "
        "runPolicy.suspend: true first",
        path=field,
        holds_update=lambda new, old: old.run_policy.suspend or of(new) == of(old),
        once_fixed=True,
    )


# Fields of dataWorkers that can change while the job runs.
_SCALED = frozenset({"replicas", "autoscale"})


def frozen_data_workers() -> Rule:
    """Return a rule: while the job runs only the number of data workers can change."""
    both = "has(self.dataWorkers) && has(oldSelf.dataWorkers)"
    same = (
        unchanged_cel(f"dataWorkers.{info.alias}", optional=info.default is None)
        for name, info in DataWorkers.model_fields.items()
        if name not in _SCALED
    )
    return Rule(
        cel=f"(has(self.dataWorkers) == has(oldSelf.dataWorkers) && (!({both}) || ({' && '.join(same)})))",
        message="of dataWorkers only replicas and autoscale can change once the job has run and while it is not "
        "suspended; set runPolicy.suspend: true first",
        path="dataWorkers",
        holds_update=lambda new, old: (
            old.run_policy.suspend or _without_number(new.data_workers) == _without_number(old.data_workers)
        ),
        once_fixed=True,
    )


def _without_number(data_workers: DataWorkers | None) -> DataWorkers | None:
    """Return `data_workers` with default numbers, to compare everything else."""
    return data_workers and data_workers.model_copy(update={"replicas": 1, "autoscale": None})
