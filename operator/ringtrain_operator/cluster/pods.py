"""Pods of a job for a reconcile, from a list request, or for a large job from a cache that watch events update.

A list of 1,000 pods costs the API server and this process 0.1 s of CPU each, and all pods of such a job change within
seconds when it starts. Watch events are used only while no pod has ended: the order of ends needs one list, in which
all pods are of the same moment. See docs/decisions/0010-cached-lists.md.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .queue import JobKey

Json = dict[str, Any]

# Below this number a list costs less than a cache.
LARGE: Final = 64
# A change whose event was lost is noticed after this time at the latest. Lists of many jobs are spread over half of it.
_FRESH_S: Final = 600.0


@dataclass(frozen=True)
class PodChange:
    """Change of a pod to `version`. `event`: type of the watch event; None for a pod from a list request."""

    name: str
    version: str
    event: str | None
    pod: Json | None


@dataclass
class KnownPodList:
    """Cached pods of one job by name, valid until `fresh_until` (monotonic clock, in seconds). `pending_changes`: watch
    events that are not yet applied to `pods`.
    """

    pods: dict[str, Json] = field(default_factory=dict)
    fresh_until: float = float("-inf")
    pending_changes: list[PodChange] = field(default_factory=list)


class KnownPods:
    """Cache of the pods of large jobs. A missing entry costs one list request."""

    def __init__(self, large: int = LARGE, clock: Callable[[], float] = time.monotonic) -> None:
        self._large = large
        self._clock = clock
        self._known: dict[JobKey, KnownPodList] = {}

    def record(self, key: JobKey, change: PodChange) -> None:
        """Record a change of one of the job's pods, from a watch."""
        if (known := self._known.get(key)) is not None:
            known.pending_changes.append(change)

    def forget(self, key: JobKey) -> None:
        """Drop the job's cached pods, so that the next reconcile requests a list."""
        self._known.pop(key, None)

    def has(self, key: JobKey) -> bool:
        """Return whether the job has a cache entry, which may be out of date."""
        return key in self._known

    def begin(self, key: JobKey) -> KnownPodList:
        """Create a cache entry before a list request. The entry records changes meanwhile, and `complete` adds the
        listed pods."""
        known = self._known[key] = KnownPodList()
        return known

    def complete(self, key: JobKey, known: KnownPodList, pods: Sequence[Json]) -> None:
        """Add the pods of a list request to the entry `known` that `begin` has returned."""
        known.pods = {pod["metadata"]["name"]: pod for pod in pods}
        known.fresh_until = self._clock() + _FRESH_S * random.uniform(0.5, 1.0)
        if len(pods) < self._large and self._known.get(key) is known:
            self._known.pop(key)

    def cached(self, key: JobKey) -> list[Json] | None:
        """Return all pods of the job from the cache; None if a list request is necessary."""
        known = self._known.get(key)
        if known is None or self._clock() > known.fresh_until:
            return None
        changes, known.pending_changes = known.pending_changes, []
        if all(_apply_change(change, known.pods) for change in changes):
            return list(known.pods.values())
        self.forget(key)
        return None


def _apply_change(change: PodChange, pods: dict[str, Json]) -> bool:
    """Apply `change` to the pods by name. Returns false if it cannot be applied and a list is necessary."""
    before = pods.get(change.name)
    if change.event is None:
        return False  # deletions before a restart of the watches have no event
    if before is None:
        return change.event == "DELETED"
    if not _is_newer_pod(change.version, str(before["metadata"].get("resourceVersion"))):
        return True
    if change.event != "MODIFIED" or change.pod is None or not _is_pod_continuing(change.pod):
        return False
    pods[change.name] = change.pod
    return True


def _is_newer_pod(version: str, known: str) -> bool:
    if version.isdecimal() and known.isdecimal():
        return int(version) > int(known)
    return version != known


def _is_pod_continuing(pod: Json) -> bool:
    """Return whether nothing ends the pod: no ended container, failed init container, deletion or disruption."""
    status = pod.get("status") or {}
    ended = any(True for _ in _container_ends(status.get("containerStatuses") or ()))
    failed = any(end.get("exitCode") for end in _container_ends(status.get("initContainerStatuses") or ()))
    if ended or failed or "deletionTimestamp" in pod["metadata"]:
        return False
    disrupted = any(condition.get("type") == "DisruptionTarget" for condition in status.get("conditions") or ())
    return not disrupted and status.get("phase") in ("Pending", "Running")


def _container_ends(containers: Iterable[Json]) -> Iterator[Json]:
    """Yield the terminated states of containers, those of a previous run included."""
    for container in containers:
        for which in ("state", "lastState"):
            if end := (container.get(which) or {}).get("terminated"):
                yield end
