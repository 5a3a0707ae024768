"""What exists, as `plan` sees it: frozen values made from the API's dicts, nothing remembered."""

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
from ..placement.line import NodeDevices, PlacementContention
from ..placement.provisioning import ProvisioningView
from ..spec.training_template import Template

# A container is made, or waits for its image and says so, in less.
SPEAKS_WITHIN_S = 30
Role = Literal["launcher", "worker", "data", "evaluator"]
Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True)
class Foreign:
    """An object that has a name of ours and does not belong to this job."""

    ref: ObjectRef
    owner: str = ""


@dataclass(frozen=True)
class Refusal:
    """A creation that the API refused in the last apply, in the API's own words."""

    ref: ObjectRef
    code: int
    reason: str
    message: str


@dataclass(frozen=True)
class PodIdentity:
    """Identity of a pod within its job.

    `attempt`: 0 for the roles that outlive attempts. `incarnation`: counts the pods of one name; 0 in a job that is not
    elastic.
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
    """Placement of a pod. `node`: empty until the scheduler has found one. `unschedulable_since`, `scheduled_at`:
    since when the scheduler has found none for it, or when it found one."""

    node: str = ""
    node_ready: bool | None = None
    unschedulable_since: datetime | None = None
    scheduled_at: datetime | None = None


@dataclass(frozen=True)
class PodReason:
    """A cause that the cluster gives for a pod's state, in its words; empty where there is none."""

    reason: str = ""
    message: str = ""
    time: datetime | None = None


@dataclass(frozen=True)
class MainContainer:
    """The container of a pod that has our variables.

    `pulling_at`, `pulled_at`: when the kubelet began and ended to pull its image, as far as Events of it were read;
    there is no beginning where the image was on the node. `image`, `image_id`: as the kubelet words them.
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
    """End of a pod's containers. `beside`: the container besides the main one that ended the pod, if one did.
    `side_failure`: what became of a container beside the main one, while that one runs on."""

    code: int | None = None
    reason: str = ""
    time: datetime | None = None
    message: str = ""
    beside: str = ""
    side_failure: str = ""


@dataclass(frozen=True)
class PodView:
    """One pod of this job.

    `secret`: name of the job's Secret that it mounts. `state`: the pod's own reason and message, as of an eviction.
    `wait`: why it does not run yet. `disrupted`: what Kubernetes took it away for.
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
        """Itself, with when its main container's image was pulled."""
        return replace(self, main=replace(self.main, pulling_at=pulling_at, pulled_at=pulled_at))

    @cached_property
    def finished(self) -> bool:
        """Whether its main container has ended; a side-car may still run. Pods of ours never restart in place."""
        return self.phase in ("Succeeded", "Failed") or self.end.code is not None

    @cached_property
    def ended_badly(self) -> bool:
        """Whether it has ended, and not well."""
        return self.finished and self.phase != "Succeeded" and self.end.code != 0

    @property
    def speaks_by(self) -> datetime | None:
        """When a kubelet that has got it should have said something of it; None: it has, or there is none."""
        silent = self.phase == "Pending" and not self.wait.reason and self.deletion_time is None
        return (
            self.place.scheduled_at + timedelta(seconds=SPEAKS_WITHIN_S) if silent and self.place.scheduled_at else None
        )

    @property
    def outlives_attempts(self) -> bool:
        """Whether it is beside the gang: a data worker or the evaluator."""
        return self.id.role in ("data", "evaluator")

    @property
    def ref(self) -> ObjectRef:
        """Its kind and name."""
        return ObjectRef("Pod", self.id.name)


@dataclass(frozen=True)
class LauncherReport:
    """The launcher's /status (docs/contract.md), as far as `plan` and the display read it.

    `workers`: see `by_index`. `ranks`: empty where the brief answer was asked for.
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
    """What exists for one job at one moment.

    `objects`: what this job owns besides pods. `foreign`: objects of our names that are someone else's, pods
    included. `taken_secrets`: Secrets that were there when they were to be created. `launcher`: its /status as
    of `launcher_age_s` ago, or None with the cause in `launcher_error`; `launcher_unreadable`: that stays as long
    as this launcher runs. `launcher_refused`: why an elastic job's launcher does not take the number of workers.
    `refusals`: creations that the API refused in the last apply. `status`: the CR's own, as it was read.
    `contention`: the jobs that wait for places. `nodes`: what each node of the cluster has of extended
    resources; None: not known, or of no interest. `kueue`: None where it is not served, or not allowed.
    `nodes_ready`: of a node whose pod went silent, whether it was ready all the while, as far as it is known.
    `gangs`, `provisioning`: None where pods are not placed by a scheduler, as on one machine. `template`: what the
    job's spec was laid over, `template_problem`: why the job could not be laid over the one that it names.
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
    def lasting_pods(self) -> tuple[PodView, ...]:
        """Data workers and the evaluator, by index."""
        found = (pod for pod in self.pods if pod.outlives_attempts)
        return tuple(sorted(found, key=lambda pod: (pod.id.role, pod.id.index)))
