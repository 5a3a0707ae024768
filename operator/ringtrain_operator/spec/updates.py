"""Rules for a change of a job's spec, which compare the new spec with the old one."""

from collections.abc import Mapping
from typing import Any

from .base import Rule, field_at
from .data_workers import DataWorkers

# CEL on the whole object: true if the frozen fields may change. A job that never ran may need a correction. A job that
# has ended ignores changes.
MAY_CHANGE = (
    "oldSelf.spec.runPolicy.suspend || !has(oldSelf.status) || !(has(oldSelf.status.ledger) && "
    "has(oldSelf.status.ledger.hasRun) && oldSelf.status.ledger.hasRun || has(oldSelf.status.state) && "
    "oldSelf.status.state in ['Succeeded', 'Failed'])"
)


def is_spec_fixed(status: Mapping[str, Any] | None) -> bool:
    """Return whether a job with this status has run or ended, so that some fields are fixed until a suspension."""
    found = status or {}
    return bool((found.get("ledger") or {}).get("hasRun")) or found.get("state") in ("Succeeded", "Failed")


def unchanged_cel(field: str, optional: bool) -> str:
    """Return CEL that is true if `field` of the spec is unchanged. `optional`: whether it may be absent."""
    same = f"self.{field} == oldSelf.{field}"
    return f"(has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same}))" if optional else same


def frozen_field(field: str, *, optional: bool = False, name: str = "") -> Rule:
    """Return a rule by which `field` of a job that has run can change only while the job is suspended.

    `optional`: whether the field may be absent. `name`: name of the field in the message.
    """
    return Rule(
        cel=unchanged_cel(field, optional),
        message=f"{name or field} can change only while the job is suspended, or before it has run; set "
        "runPolicy.suspend: true first",
        path=field,
        holds_update=lambda new, old: old.run_policy.suspend or field_at(new, field) == field_at(old, field),
        once_fixed=True,
    )


# Fields of dataWorkers that can change while the job runs.
_SCALED = frozenset({"replicas", "autoscale"})


def frozen_data_workers() -> Rule:
    """Return a rule by which only the number of data workers can change while the job runs."""
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
    """Return `data_workers` with its numbers at their defaults, to compare the other fields."""
    return data_workers and data_workers.model_copy(update={"replicas": 1, "autoscale": None})
