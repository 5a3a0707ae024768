"""What `plan` answers: what to write, in the order in which it is written."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..build.names import ObjectRef


@dataclass(frozen=True)
class PlannedDeletion:
    """An object to delete: only if it still has this uid. `grace_s` None: its own grace period; 0: by force."""

    ref: ObjectRef
    uid: str
    grace_s: int | None = None


@dataclass(frozen=True)
class WorkloadChange:
    """What becomes of the job's Workload. `body`: the object to create, or `name`, `patch` and `subresource`."""

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
    """What to do now.

    The order matters and makes it safe to die between any two writes: first `status` is written (the whole new
    status, with the resourceVersion that was read; None: nothing changed); when that succeeded, `delete`,
    `create`, `workload` and `events`, in any order. Decisions are thus recorded before they are acted upon, and
    what was left undone is planned again from what exists. `requeue_after_s`: look again then, whatever happens;
    None: wait for an event.
    """

    create: tuple[dict[str, Any], ...] = ()
    delete: tuple[PlannedDeletion, ...] = ()
    status: dict[str, Any] | None = None
    workload: WorkloadChange | None = None
    events: tuple[PlannedEvent, ...] = ()
    requeue_after_s: float | None = None

    @property
    def acts(self) -> bool:
        """Whether anything besides the status is written."""
        return bool(self.create or self.delete or self.workload)
