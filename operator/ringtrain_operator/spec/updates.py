"""What of a spec may change, and when: rules that compare a spec with the one before."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from pydantic.alias_generators import to_snake

from .base import Rule
from .data_workers import DataWorkers

# CEL on the whole object: what a job is made of may change. A job that never ran may have to be corrected, and one
# that has ended would not take notice.
MAY_CHANGE = (
    "oldSelf.spec.runPolicy.suspend || !has(oldSelf.status) || !(has(oldSelf.status.ledger) && "
    "has(oldSelf.status.ledger.hasRun) && oldSelf.status.ledger.hasRun || has(oldSelf.status.state) && "
    "oldSelf.status.state in ['Succeeded', 'Failed'])"
)


def is_spec_fixed(status: Mapping[str, Any] | None) -> bool:
    """Whether a job with this status, unless suspended, keeps what it is made of: it has run, or has ended."""
    found = status or {}
    return bool((found.get("ledger") or {}).get("hasRun")) or found.get("state") in ("Succeeded", "Failed")


def unchanged_field(field: str, optional: bool) -> str:
    """CEL: `field` of the spec is as it was; an `optional` one may be absent, before as after."""
    same = f"self.{field} == oldSelf.{field}"
    return f"(has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same}))" if optional else same


def frozen_field(field: str, *, optional: bool = False, name: str = "") -> Rule:
    """A field (`name`: in the message) that, once the job has run, can change only while the job is suspended."""
    of = attrgetter(".".join(map(to_snake, field.split("."))))
    return Rule(
        cel=unchanged_field(field, optional),
        message=f"{name or field} can change only while the job is suspended, or before it has run; set "
        "runPolicy.suspend: true first",
        path=field,
        holds_update=lambda new, old: old.run_policy.suspend or of(new) == of(old),
        once_fixed=True,
    )


# Of dataWorkers what can be followed while the job runs.
_SCALED = frozenset({"replicas", "autoscale"})


def same_data_workers() -> Rule:
    """Of data workers only the number changes while the job runs, and whether there are any does not."""
    both = "has(self.dataWorkers) && has(oldSelf.dataWorkers)"
    same = (
        unchanged_field(f"dataWorkers.{info.alias}", optional=info.default is None)
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
    """All of `data_workers` but how many there are."""
    return data_workers and data_workers.model_copy(update={"replicas": 1, "autoscale": None})
