"""A job's pods as a look needs them: listed; of a large job that was listed before, as a watch has told since.

A list of a thousand pods costs the API server and this process 0.1 s of processor time each, and all pods of such
a job change within seconds when it starts. What a watch tells counts only while nothing has ended: who ended first
is told by one list, in which all pods are of one moment. See docs/decisions/0010-cached-lists.md.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .queue import JobKey

Json = dict[str, Any]

# A list of fewer costs less than to remember them.
LARGE: Final = 64
# A change whose event was lost is seen after so long; by half of that the lists of many jobs are spread.
_FRESH_S: Final = 600.0


@dataclass(frozen=True)
class PodChange:
    """A pod is at `version`. `event`: as a watch calls it; None: it was listed before one. `pod`: what a watch
    brought of it."""

    name: str
    version: str
    event: str | None
    pod: Json | None


@dataclass
class KnownPodList:
    """Pods of one job by name, as they were listed, and told of since. `fresh_until`: in seconds of the monotonic
    clock. `pending_changes`: changes that are not in `pods` yet."""

    pods: dict[str, Json] = field(default_factory=dict)
    fresh_until: float = float("-inf")
    pending_changes: list[PodChange] = field(default_factory=list)


class KnownPods:
    """The pods of large jobs. Losing them costs a list."""

    def __init__(self, large: int = LARGE, clock: Callable[[], float] = time.monotonic) -> None:
        self._large = large
        self._clock = clock
        self._known: dict[JobKey, KnownPodList] = {}

    def note(self, key: JobKey, change: PodChange) -> None:
        """A pod of the job has changed."""
        if (known := self._known.get(key)) is not None:
            known.pending_changes.append(change)

    def forget(self, key: JobKey) -> None:
        """List them at the next look: some were made or deleted, or the job is gone."""
        self._known.pop(key, None)

    def has(self, key: JobKey) -> bool:
        """Whether the job's pods are remembered until its next look."""
        return key in self._known

    def begin(self, key: JobKey) -> KnownPodList:
        """A list of the job's pods begins: `keep` is to get what it had; from now on changes are noted."""
        known = self._known[key] = KnownPodList()
        return known

    def keep(self, key: JobKey, known: KnownPodList, pods: Sequence[Json]) -> None:
        """The list that began with `known` had these."""
        known.pods = {pod["metadata"]["name"]: pod for pod in pods}
        known.fresh_until = self._clock() + _FRESH_S * random.uniform(0.5, 1.0)
        if len(pods) < self._large and self._known.get(key) is known:
            self._known.pop(key)

    def now(self, key: JobKey) -> list[Json] | None:
        """All pods of the job, as far as was told; None where a list has to tell."""
        known = self._known.get(key)
        if known is None or self._clock() > known.fresh_until:
            return None
        told, known.pending_changes = known.pending_changes, []
        if all(_is_pod_told(change, known.pods) for change in told):
            return list(known.pods.values())
        self.forget(key)
        return None


def _is_pod_told(change: PodChange, pods: dict[str, Json]) -> bool:
    """Whether `pods`, after this, have all that there is to know of `change`."""
    before = pods.get(change.name)
    if change.event is None:
        return False  # what was deleted before the watches began anew has no event
    if before is None:
        return change.event == "DELETED"
    if not _is_newer_pod(change.version, str(before["metadata"].get("resourceVersion"))):
        return True
    if change.event != "MODIFIED" or change.pod is None or not _pod_goes_on(change.pod):
        return False
    pods[change.name] = change.pod
    return True


def _is_newer_pod(version: str, known: str) -> bool:
    if version.isdecimal() and known.isdecimal():
        return int(version) > int(known)
    return version != known


def _pod_goes_on(pod: Json) -> bool:
    """Whether nothing of the pod has ended or is about to; an init container ends well in every start."""
    status = pod.get("status") or {}
    ended = any(True for _ in _container_ends(status.get("containerStatuses") or ()))
    failed = any(end.get("exitCode") for end in _container_ends(status.get("initContainerStatuses") or ()))
    if ended or failed or "deletionTimestamp" in pod["metadata"]:
        return False
    disrupted = any(condition.get("type") == "DisruptionTarget" for condition in status.get("conditions") or ())
    return not disrupted and status.get("phase") in ("Pending", "Running")


def _container_ends(containers: Iterable[Json]) -> Iterator[Json]:
    """How containers ended, now or the last time."""
    for container in containers:
        for which in ("state", "lastState"):
            if end := (container.get(which) or {}).get("terminated"):
                yield end
