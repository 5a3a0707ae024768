"""Interface of a placement, which the other modules of this folder implement.

A placement is a job's attempt together with the observed state of its scheduler or autoscaler (its view). It calls no
API. `GangScheduler` describes a scheduler that places all pods of a group or none.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from .. import contract
from ..build import names
from ..build.names import ObjectRef
from ..spec.job import Job
from ..spec.scheduling import Topology

Json = dict[str, Any]
# Interval at which a job checks for a missing scheduler or autoscaler.
RECHECK_S = 60
# Fields of a pod's spec that determine possible nodes and used resources. Quota and autoscalers need no others.
_WEIGHED = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "overhead",
    "resources",
    "resourceClaims",
)
_OF_A_CONTAINER = ("name", "image", "resources", "restartPolicy")


@dataclass(frozen=True)
class PlacementAttempt:
    """The current attempt of a job. `workers`: number of workers; `needed`: number of workers that the attempt needs to
    start.

    `scheduler`: the gang scheduler chosen for it. `is_open`: whether the attempt has no pods, so that its scheduler can
    still be chosen. `is_over`: whether the attempt must have no pods. `is_held`: whether its pods wait for something
    other than placement. `unplaced`: messages of pods without a node; None if all needed pods have one.
    """

    job: Job
    number: int
    now: datetime
    workers: int
    needed: int
    scheduler: str | None = None
    is_open: bool = False
    is_over: bool = False
    is_held: bool = False
    unplaced: frozenset[str] | None = None

    @property
    def name(self) -> str:
        """Name under which its pods are queued or placed. It is unique per job and attempt."""
        return names.group_name(self.job.name, self.job.uid, self.number)

    @property
    def next_check(self) -> datetime:
        """Next requeue time for a missing scheduler or autoscaler."""
        return self.now + timedelta(seconds=RECHECK_S)


@dataclass(frozen=True)
class PlacementWait:
    """Reason for which the gang does not run yet: reason and message of Running=False."""

    reason: str
    message: str


class Placement(Protocol):
    """A component that influences where the pods of an attempt run."""

    @property
    def holds(self) -> bool:
        """Whether the pods must not be created yet."""

    def waits_for(self) -> PlacementWait | None:
        """Return the reason for which the gang does not run, in the words of the component that places
        it; None if none.
        """

    def requeue_times(self) -> tuple[datetime, ...]:
        """Return the requeue times."""

    def marked(self, pod: Json) -> Json:
        """Return the launcher's or a worker's pod with the fields that this placement needs."""

    def unwanted(self) -> Iterable[tuple[ObjectRef, str]]:
        """Return objects to delete, with their uids."""


def reduced_template(pod: Json) -> Json:
    """Return a pod template reduced to the fields that matter for quota and placement."""
    spec = pod["spec"]
    weighed = {name: copy.deepcopy(spec[name]) for name in _WEIGHED if spec.get(name)}
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            weighed[kind] = [{name: c[name] for name in _OF_A_CONTAINER if c.get(name)} for c in spec[kind]]
    labels = pod["metadata"]["labels"]
    changing = (contract.LABEL_ATTEMPT, contract.LABEL_WORKER_INDEX, contract.LABEL_DATA_INDEX)
    stable = {name: value for name, value in labels.items() if name not in changing}
    return {"metadata": {"labels": stable}, "spec": {"restartPolicy": "Never", **weighed}}


@dataclass(frozen=True)
class PlacedGang:
    """Pods of one attempt, of which at least `min_pods` are placed together. `queue`: Volcano's; empty
    for its default.
    """

    name: str
    min_pods: int
    queue: str = ""
    priority_class: str = ""
    topology: Topology | None = None


@dataclass(frozen=True)
class GangScheduler:
    """A scheduler that places gangs, described by `PodGroup` objects of its API group.

    `versions`: versions of this API, newest first. `scheduler_name`: default schedulerName of the pods; empty for the
    cluster's own scheduler. `spec` returns the spec of a gang's PodGroup; `join` adds a pod to the group of that name,
    in place. `no_room`: type and status of the condition of a group that does not fit; None if the pods report this.
    """

    api_group: str
    versions: tuple[str, ...]
    scheduler_name: str
    spec: Callable[[PlacedGang], Json]
    join: Callable[[Json, str], None]
    no_room: tuple[str, str] | None = None
