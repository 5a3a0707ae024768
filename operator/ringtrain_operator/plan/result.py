"""Result of `plan`: the changes to make, in the order in which they are applied."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..build.names import ObjectRef


@dataclass(frozen=True)
class PlannedDeletion:
    """Deletion of the object with this uid. `grace_s`: None for the object's own grace period; 0 deletes it at once."""

    ref: ObjectRef
    uid: str
    grace_s: int | None = None


@dataclass(frozen=True)
class WorkloadChange:
    """Change of the job's Workload. `body`: object to create, or (for a patch) name, patch and subresource."""

    verb: Literal["create", "delete", "patch"]
    body: dict[str, Any] = field(default_factory=dict)
    deletion: PlannedDeletion | None = None


@dataclass(frozen=True)
class PlannedEvent:
    """A Kubernetes Event on the job."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """Changes that the operator makes for one job in one reconcile.

    The order makes it safe to be killed between any two writes. First `status` is written: the complete new status,
    with the resourceVersion that was read; None if the status is unchanged. If that succeeds, `delete`, `create`,
    `workload` and `events` follow in any order. So a decision is recorded before it is executed, and unfinished work is
    planned again from the objects that exist. `requeue_after_s`: seconds until the next reconcile in any case, or None
    to wait for an event.
    """

    create: tuple[dict[str, Any], ...] = ()
    delete: tuple[PlannedDeletion, ...] = ()
    status: dict[str, Any] | None = None
    workload: WorkloadChange | None = None
    events: tuple[PlannedEvent, ...] = ()
    requeue_after_s: float | None = None

    @property
    def acts(self) -> bool:
        """Whether the plan changes anything besides the job's status."""
        return bool(self.create or self.delete or self.workload)
