"""State of a job that the operator caches between reconciles: objects as read, and observed ends of pods."""

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
# Time that a kubelet may need beyond a pod's grace period to end it and report that.
ENDS_WITHIN_S = 5.0


@dataclass
class KnownReading(Generic[T]):
    """Cache of one value read from the API, which is read again after a watch has reported a change."""

    value: T
    is_read: bool = False

    async def read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the cached value; call `read` first if there is no valid value. Raises ApiError if `read` does."""
        if not self.is_read:
            self.is_read = True  # set before the request: a change during the request invalidates it again
            try:
                self.value = await read()
            except BaseException:
                self.is_read = False
                raise
        return self.value


@dataclass(frozen=True)
class Ending:
    """A worker's pod that is being deleted. `due`: end of its grace period."""

    worker: int
    incarnation: int
    due: datetime


@dataclass
class ReconcileMemory:
    """Cache of one job's state between reconciles. Without it the operator only reads more.

    `owned`: objects that were created or read as the job's own since `objects_read_at`. The Secret is known only in
    this way, because the operator may not read Secrets. `lost_incarnations`: for each worker of an elastic job, the
    newest incarnation of which no container runs any more. `ending`: pods that were being deleted at the last
    observation, by uid. `workload`: Kueue's Workload of the job, or None. `groups`: PodGroups of gang schedulers.
    `provisioning`: requests to an autoscaler. `views`: pods of a large job as read, with their parsed views, by name.
    `pulls`: image pull times, by pod uid. `reported_events`: an attempt and the pod events already sent to its
    launcher. `sites`: site of each node.
    """

    owned: set[ObjectRef] = field(default_factory=set)
    sites: dict[str, str] = field(default_factory=dict)
    foreign: dict[ObjectRef, Foreign] = field(default_factory=dict)
    taken_secrets: set[ObjectRef] = field(default_factory=set)
    refusals: tuple[Refusal, ...] = ()
    objects_read_at: float = float("-inf")
    is_outdated: bool = False  # an object was deleted since the last observation began
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
        """Invalidate the cached objects of a kind. Returns whether objects of this kind are cached here."""
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
        """Return the parsed `pods`. Unchanged pods are not parsed again. `keep`: whether to cache the result."""
        views = {}
        for pod in pods:
            read, view = self.views.get(pod["metadata"]["name"], (None, None))
            if view is None or read is not pod or nodes:
                view = view_pod(pod, nodes)
            views[pod["metadata"]["name"]] = pod, view
        self.views = views if keep else {}
        return tuple(view for _, view in views.values())

    def record_lost_pods(self, pods: Sequence[PodView], now: datetime) -> None:
        """Record worker pods whose processes certainly no longer run: pods that have ended, and deleted pods that
        disappeared before their grace period was over.

        A pod that disappears later may have been deleted by force, and the processes of such a pod may still run. The
        same is possible for a pod whose deletion was not observed. Such pods are not recorded.
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
        """Record that an object was deleted, and make the next reconcile read all objects again."""
        self.owned.discard(ref)
        self.objects_read_at, self.is_outdated = float("-inf"), True

    def forget_objects(self, attempt: int) -> None:
        """Make the next reconcile read all objects. The job's Secret, which the operator may not read, is created once
        per attempt."""
        if self.secret_attempt != attempt:
            self.owned = {ref for ref in self.owned if ref.kind != "Secret"}
        self.objects_read_at = float("-inf")
