"""Interface of placements: components that decide where and when the pods of an attempt run.

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
    """Current attempt of a job, as input of the placements. `needed`: number of workers with which it can start.

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
        """Unique name under which schedulers and queues know the attempt's pods."""
        return names.group_name(self.job.name, self.job.uid, self.number)

    @property
    def next_check(self) -> datetime:
        """Time of the next reconcile if a scheduler or autoscaler is missing."""
        return self.now + timedelta(seconds=RECHECK_S)


@dataclass(frozen=True)
class PlacementWait:
    """Reason and message of the condition Running=False while a gang waits for its placement."""

    reason: str
    message: str


class Placement(Protocol):
    """A component that decides where or when the pods of an attempt run."""

    @property
    def holds(self) -> bool:
        """Whether the pods must not be created yet."""

    def waits_for(self) -> PlacementWait | None:
        """Return why the gang waits for this component, as the component reports it; None if it does not wait."""

    def requeue_times(self) -> tuple[datetime, ...]:
        """Return the times at which the job must be reconciled because of this placement."""

    def marked(self, pod: Json) -> Json:
        """Return a launcher's or worker's pod with the fields that this placement adds."""

    def unwanted(self) -> Iterable[tuple[ObjectRef, str]]:
        """Yield objects of this placement that are no longer needed, with their uids."""


def reduced_template(pod: Json) -> Json:
    """Return a pod template with only those fields that matter for quota and placement."""
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
    """An attempt's pods, of which at least `min_pods` start together. `queue`: queue of Volcano, or empty."""

    name: str
    min_pods: int
    queue: str = ""
    priority_class: str = ""
    topology: Topology | None = None


@dataclass(frozen=True)
class GangScheduler:
    """A scheduler that starts the pods of a group together. `PodGroup` objects of its API describe the groups.

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
