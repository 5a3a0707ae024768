"""Observed state, as `plan` reads it: frozen values parsed from the API's dicts, without memory."""

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
    """An object that has one of the job's names but does not belong to the job."""

    ref: ObjectRef
    owner: str = ""


@dataclass(frozen=True)
class Refusal:
    """A creation that the API refused in the last apply, with the API's own message."""

    ref: ObjectRef
    code: int
    reason: str
    message: str


@dataclass(frozen=True)
class PodIdentity:
    """Identity of a pod within its job.

    `attempt`: 0 for auxiliary pods. `incarnation`: number of the pod among those of the same name; 0 in a job that is
    not elastic.
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
    """Placement of a pod. `node`: empty until it is scheduled. `unschedulable_since`, `scheduled_at`: times from the
    PodScheduled condition.
    """

    node: str = ""
    node_ready: bool | None = None
    unschedulable_since: datetime | None = None
    scheduled_at: datetime | None = None


@dataclass(frozen=True)
class PodReason:
    """Cause of a pod's state as the cluster reports it; empty if none."""

    reason: str = ""
    message: str = ""
    time: datetime | None = None


@dataclass(frozen=True)
class MainContainer:
    """The container of a pod that has the job's environment variables.

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
    """End of a pod's containers.

    `other_container`: name of the other container that ended the pod, if one did. `side_failure`: failure of another
    container while the main one runs.
    """

    code: int | None = None
    reason: str = ""
    time: datetime | None = None
    message: str = ""
    other_container: str = ""
    side_failure: str = ""


@dataclass(frozen=True)
class PodView:
    """One pod of this job.

    `secret`: name of the job's Secret that it mounts. `state`: the pod's own reason and message, as for an eviction.
    `wait`: reason why it does not run yet. `disrupted`: reason for which Kubernetes removed it.
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
        """Return a copy with start and end of the main container's image pull."""
        return replace(self, main=replace(self.main, pulling_at=pulling_at, pulled_at=pulled_at))

    @cached_property
    def finished(self) -> bool:
        """Whether its main container has ended; a sidecar may still run. The job's pods never restart in place."""
        return self.phase in ("Succeeded", "Failed") or self.end.code is not None

    @cached_property
    def ended_badly(self) -> bool:
        """Whether it has ended and failed."""
        return self.finished and self.phase != "Succeeded" and self.end.code != 0

    @property
    def kubelet_report_due(self) -> datetime | None:
        """Time by which its kubelet should have reported a state; None if it has, or if the pod has no node."""
        silent = self.phase == "Pending" and not self.wait.reason and self.deletion_time is None
        return (
            self.place.scheduled_at + timedelta(seconds=KUBELET_REPORTS_WITHIN_S)
            if silent and self.place.scheduled_at
            else None
        )

    @property
    def outlives_attempts(self) -> bool:
        """Whether it is an auxiliary pod: a data worker or the evaluator."""
        return self.id.role in ("data", "evaluator")

    @property
    def ref(self) -> ObjectRef:
        """Its kind and name."""
        return ObjectRef("Pod", self.id.name)


@dataclass(frozen=True)
class LauncherReport:
    """The launcher's /status (docs/contract.md), as far as `plan` and the CLI read it.

    `workers`: see `by_index`. `ranks`: empty in the brief answer.
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
    """The objects that exist for one job at one moment.

    `objects`: the job's objects other than pods. `foreign`: objects, including pods, with the job's names that belong
    to others. `taken_secrets`: Secrets that already existed when they were to be created. `launcher`: its /status, read
    `launcher_age_s` ago, or None with the cause in `launcher_error`; `launcher_unreadable`: no retry with this launcher
    will help. `launcher_refused`: reason why an elastic job's launcher refuses the number of workers. `refusals`:
    creations that the API refused in the last apply. `status`: the CR's status as read. `contention`: the jobs that
    wait for placement. `nodes`: extended resources of each node; None if unknown or not needed. `kueue`: None if Kueue
    is not served or not permitted. `nodes_ready`: for nodes of silent pods, whether the node stayed ready, if known.
    `gangs`, `provisioning`: None without a scheduler, as on one machine. `template`: the template that was merged into
    the spec; `template_problem`: reason why the named one could not be merged.
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
        """Data workers and the evaluator, by index."""
        found = (pod for pod in self.pods if pod.outlives_attempts)
        return tuple(sorted(found, key=lambda pod: (pod.id.role, pod.id.index)))
