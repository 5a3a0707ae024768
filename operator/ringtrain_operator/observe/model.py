"""Observed state of a job, the input of `plan`: immutable values parsed from the API's dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal

from ..build.names import ObjectRef
from ..errors import Invalid
from ..placement.gangs import GangsView
from ..placement.kueue.view import KueueView
from ..placement.own_queue import NodeDevices, PlacementContention
from ..placement.provisioning import ProvisioningView
from ..spec.training_template import Template

# Within this time a kubelet creates a container, or reports that it waits for the image.
KUBELET_REPORTS_WITHIN_S = 30
Role = Literal["launcher", "worker", "data", "evaluator"]
Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True)
class Foreign:
    """An object that has the name of one of the job's objects but belongs to another owner."""

    ref: ObjectRef
    owner: str = ""


@dataclass(frozen=True)
class Refusal:
    """A create request of the last reconcile that the API refused, with the API's own message."""

    ref: ObjectRef
    code: int
    reason: str
    message: str

    def __str__(self) -> str:
        return f"the API refused {self.ref} ({self.code} {self.reason}): {self.message}"

    @property
    def is_permanent(self) -> bool:
        """Whether a field of the object is invalid, so that only another job helps. Policies and quotas may change."""
        return self.code == 422 and f'"{self.ref.name}" is invalid: ' in self.message


@dataclass(frozen=True)
class PodIdentity:
    """Name, role and number of a pod within its job.

    `attempt`: 0 for auxiliary pods. `incarnation`: number of the pod among those of the same name; 0 if not elastic.
    """

    name: str
    uid: str
    role: Role
    attempt: int
    index: int = 0
    incarnation: int = 0
    created_at: datetime | None = None


@dataclass(frozen=True)
class PodPlace:
    """Node of a pod (empty until it is scheduled), with times from the PodScheduled condition."""

    node: str = ""
    node_ready: bool | None = None
    unschedulable_since: datetime | None = None
    scheduled_at: datetime | None = None


@dataclass(frozen=True)
class PodReason:
    """Reason and message with which the cluster explains a pod's state; empty if it gives none."""

    reason: str = ""
    message: str = ""
    time: datetime | None = None


@dataclass(frozen=True)
class MainContainer:
    """State of a pod's main container, which runs the agent, the launcher or an auxiliary program.

    `pulling_at`, `pulled_at`: start and end of its image pull, from Events; there is no start if the node already had
    the image. `image`, `image_id`: image and its ID in the kubelet's report.
    """

    name: str = ""
    image: str = ""
    image_id: str = ""
    ready: bool = False
    pulling_at: datetime | None = None
    pulled_at: datetime | None = None
    started_at: datetime | None = None


@dataclass(frozen=True)
class PodEnd:
    """Exit code, reason and time of the end of a pod's containers.

    `other_container`: name of the other container that ended the pod, if one did. `side_failure`: failure of another
    container while the main one runs. `all_ended`: whether all containers have ended, and none is restarted.
    """

    code: int | None = None
    reason: str = ""
    time: datetime | None = None
    message: str = ""
    other_container: str = ""
    side_failure: str = ""
    all_ended: bool = False


@dataclass(frozen=True)
class PodView:
    """State of one pod of a job, parsed from the API's object.

    `secret`: name of the job's Secret that the pod mounts. `state`: the pod's own reason and message, as for an
    eviction. `wait`: reason why the pod does not run yet. `disrupted`: reason for which Kubernetes removes the pod.
    """

    id: PodIdentity
    phase: Phase = "Pending"
    deletion_time: datetime | None = None
    secret: str = ""
    place: PodPlace = PodPlace()
    main: MainContainer = MainContainer()
    state: PodReason = PodReason()
    wait: PodReason = PodReason()
    disrupted: PodReason = PodReason()
    end: PodEnd = PodEnd()

    def with_pull(self, pulling_at: datetime | None, pulled_at: datetime | None) -> PodView:
        """Return a copy with the start and end of the image pull of the main container."""
        return replace(self, main=replace(self.main, pulling_at=pulling_at, pulled_at=pulled_at))

    @cached_property
    def finished(self) -> bool:
        """Whether the pod's main container has ended. Its sidecars may still run."""
        return self.phase in ("Succeeded", "Failed") or self.end.code is not None

    @cached_property
    def ended_badly(self) -> bool:
        """Whether the pod's main container has ended and failed."""
        return self.finished and self.phase != "Succeeded" and self.end.code != 0

    @property
    def kubelet_report_due(self) -> datetime | None:
        """Time by which the kubelet should have reported the pod's state; None if the kubelet has reported it, or if
        the pod has no node."""
        silent = self.phase == "Pending" and not self.wait.reason and self.deletion_time is None
        return (
            self.place.scheduled_at + timedelta(seconds=KUBELET_REPORTS_WITHIN_S)
            if silent and self.place.scheduled_at
            else None
        )

    @property
    def outlives_attempts(self) -> bool:
        """Whether the pod is an auxiliary pod (data worker or evaluator), which does not end with an attempt."""
        return self.id.role in ("data", "evaluator")

    @property
    def ref(self) -> ObjectRef:
        """Reference to the pod: kind and name."""
        return ObjectRef("Pod", self.id.name)


@dataclass(frozen=True)
class LauncherReport:
    """The fields of a launcher's /status (docs/contract.md) that `plan` and the CLI use.

    `workers`: in the format that `by_index` reads. `ranks`: empty in an answer to `/status?brief`.
    """

    attempt: int
    phase: Literal["Waiting", "Running", "Succeeded", "Failed"]
    world_size: int
    progress: dict[str, Any] | None = None
    last_progress_time: datetime | None = None
    running_since: datetime | None = None
    slowest: dict[str, Any] | None = None
    workers: tuple[dict[str, Any], ...] = ()
    ranks: tuple[dict[str, Any], ...] = ()
    logs: dict[str, Any] = field(default_factory=dict)
    elastic: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    start_time: datetime | None = None
    first_step_time: datetime | None = None


@dataclass(frozen=True)
class Observed:
    """All that was observed for one job at one moment: its pods, other objects, and its launcher's report.

    `objects`: the job's objects other than pods.
    `foreign`: objects of other owners, including pods, that have names of the job's objects.
    `taken_secrets`: Secrets that already existed when the operator tried to create them.
    `launcher`: the launcher's /status, read `launcher_age_s` seconds ago; None, with `launcher_error`, if unreadable.
    `launcher_unreadable`: whether no later poll of this launcher can succeed.
    `launcher_refused`: reason why an elastic job's launcher refuses the number of workers.
    `refusals`: creations that the API refused in the last apply.
    `nodes`: extended resources of each node; None if unknown or not needed.
    `nodes_ready`: for each node of a silent pod, whether the node stayed ready, if known.
    `kueue`: None if Kueue is not served or not permitted. `gangs`, `provisioning`: None outside a cluster.
    `template`: the template that was merged into the spec; `template_problem`: reason why none could be merged.
    """

    pods: tuple[PodView, ...] = ()
    objects: frozenset[ObjectRef] = frozenset()
    foreign: tuple[Foreign, ...] = ()
    taken_secrets: frozenset[ObjectRef] = frozenset()
    launcher: LauncherReport | None = None
    launcher_error: str = ""
    launcher_unreadable: bool = False
    launcher_age_s: float = 0.0
    launcher_refused: str = ""
    refusals: tuple[Refusal, ...] = ()
    kueue: KueueView | None = None
    gangs: GangsView | None = None
    provisioning: ProvisioningView | None = None
    status: dict[str, Any] = field(default_factory=dict)
    contention: PlacementContention = field(default_factory=PlacementContention)
    nodes: NodeDevices | None = None
    nodes_ready: Mapping[str, bool] = field(default_factory=dict)
    template: Template | None = None
    template_problem: Invalid | None = None

    @cached_property
    def gang_pods(self) -> tuple[PodView, ...]:
        """The gang's pods, of all attempts."""
        return tuple(pod for pod in self.pods if not pod.outlives_attempts)

    @cached_property
    def auxiliary_pods(self) -> tuple[PodView, ...]:
        """Pods of the job's data workers, by index, then of its evaluator."""
        found = (pod for pod in self.pods if pod.outlives_attempts)
        return tuple(sorted(found, key=lambda pod: (pod.id.role, pod.id.index)))
