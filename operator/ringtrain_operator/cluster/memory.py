"""What the operator remembers of a job from earlier looks: what is not read again, and what was seen to end."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from ..build.names import ObjectRef
from ..observe.model import Foreign, PodView, Refusal
from ..observe.pods import Pull, view_pod
from ..placement.gangs import GroupView
from ..placement.provisioning import ProvisioningView

Json = dict[str, Any]
T = TypeVar("T")
# What a kubelet may take beyond a pod's grace period to end it, and to say so.
ENDS_WITHIN_S = 5.0


@dataclass
class KnownReading(Generic[T]):
    """What is read once, and again when a watch tells of another: a queue of a thousand jobs costs nothing."""

    value: T
    is_read: bool = False

    async def read(self, read: Callable[[], Awaitable[T]]) -> T:
        """What was read last; read now, if it is not known. Raises ApiError."""
        if not self.is_read:
            self.is_read = True  # before it is asked for: news that come meanwhile are news
            try:
                self.value = await read()
            except BaseException:
                self.is_read = False
                raise
        return self.value


@dataclass(frozen=True)
class Ending:
    """A worker's pod that is being deleted, and when its grace period is over."""

    worker: int
    incarnation: int
    due: datetime


@dataclass
class ReconcileMemory:
    """What one job's reconciles tell the next. Losing it costs reads, never correctness.

    `owned` are objects that were made or read as ours since `looked_at`; the Secret is only ever known this way,
    because the operator may not read Secrets. `lost_incarnations`: by worker of an elastic job, the newest
    incarnation of which no container runs any more; `ending`: by uid, pods that were being deleted at the last look.
    `workload`: Kueue's, None: there is none. `groups`: of gang schedulers. `provisioning`: what an autoscaler was
    asked for. `views`: by name, pods of a large job as they were read, and what was seen in them. `pulls`: by uid,
    when a pod pulled its image. `reported_events`: an attempt, and which events of its pods its launcher was told.
    `sites`: by node.
    """

    owned: set[ObjectRef] = field(default_factory=set)
    sites: dict[str, str] = field(default_factory=dict)
    foreign: dict[ObjectRef, Foreign] = field(default_factory=dict)
    taken_secrets: set[ObjectRef] = field(default_factory=set)
    refusals: tuple[Refusal, ...] = ()
    looked_at: float = float("-inf")
    is_outdated: bool = False  # an object was deleted since the last look began
    listed: bool = False
    secret_attempt: int = 0
    workload: KnownReading[Json | None] = field(default_factory=lambda: KnownReading(None))
    workload_refused: str = ""
    groups: KnownReading[tuple[GroupView, ...]] = field(default_factory=lambda: KnownReading(()))
    provisioning: KnownReading[ProvisioningView] = field(default_factory=lambda: KnownReading(ProvisioningView()))
    ending: dict[str, Ending] = field(default_factory=dict)
    lost_incarnations: dict[int, int] = field(default_factory=dict)
    views: dict[str, tuple[Json, PodView]] = field(default_factory=dict)
    pulls: dict[str, Pull] = field(default_factory=dict)
    reported_events: tuple[int, tuple[Json, ...]] = (0, ())

    def outdate(self, kind: str) -> bool:
        """An object of this kind is another by now, or gone. Returns whether the next look reads the kind anew."""
        match kind:
            case "Workload":
                self.workload.is_read = False
            case "PodGroup":
                self.groups.is_read = False
            case "ProvisioningRequest" | "PodTemplate":
                self.provisioning.is_read = False
            case _:
                return False
        return True

    def views_of(self, pods: Sequence[Json], nodes: Mapping[str, bool], keep: bool) -> tuple[PodView, ...]:
        """What `plan` needs of `pods`; of those that are the same as at the last look, what was seen then. `keep`:
        for the next look, at which they may be."""
        views = {}
        for pod in pods:
            read, view = self.views.get(pod["metadata"]["name"], (None, None))
            if view is None or read is not pod or nodes:
                view = view_pod(pod, nodes)
            views[pod["metadata"]["name"]] = pod, view
        self.views = views if keep else {}
        return tuple(view for _, view in views.values())

    def note_lost_pods(self, pods: Sequence[PodView], now: datetime) -> None:
        """Note which workers' pods have ended: their containers have, or they were deleted and are gone in time.

        A pod that is gone later was deleted by force, and what it ran may run still; so may that of one whose
        deletion nobody saw.
        """
        workers = [pod for pod in pods if pod.id.role == "worker" and pod.id.incarnation]
        ended = [Ending(p.id.index, p.id.incarnation, now) for p in workers if p.end.code is not None]
        present = {pod.id.uid for pod in pods}
        within = timedelta(seconds=ENDS_WITHIN_S)
        ended += [one for uid, one in self.ending.items() if uid not in present and now <= one.due + within]
        for one in ended:
            self.lost_incarnations[one.worker] = max(one.incarnation, self.lost_incarnations.get(one.worker, 0))
        self.ending = {
            pod.id.uid: Ending(pod.id.index, pod.id.incarnation, pod.deletion_time)
            for pod in workers
            if pod.deletion_time is not None and pod.place.node_ready is not False
        }

    def object_deleted(self, ref: ObjectRef) -> None:
        """One was deleted. Who looks at this moment may have seen it before, so that the next look asks anew."""
        self.owned.discard(ref)
        self.looked_at, self.is_outdated = float("-inf"), True

    def forget_objects(self, attempt: int) -> None:
        """Look at them again; the Secret, which nobody may read, is made anew once in each attempt."""
        if self.secret_attempt != attempt:
            self.owned = {ref for ref in self.owned if ref.kind != "Secret"}
        self.looked_at = float("-inf")
