"""What whoever places a job's pods is asked: one interface, which the files beside this one fill in.

A placement is a job's attempt and what was read of its scheduler or autoscaler (its view). It touches nothing.
`GangScheduler` is what the file of a scheduler has to say that places all pods of a group or none.
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
# How often a job looks whether the scheduler or autoscaler that it asks for has come.
LOOK_AGAIN_S = 60
# Of a pod's spec what decides where it may run and what it takes there. Quota and autoscalers need no more.
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
    """The present attempt of a job. `workers`: that it was made for; `needed`: without which it can't begin.

    `scheduler`: the gang scheduler that was chosen for it. `is_open`: none of its pods exists, and it is still to
    be chosen who places them. `is_over`: it is to have no pods. `is_held`: its pods wait for something that comes
    first. `unplaced`: what is said of pods without a node; None: as many as are needed have one.
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
        """Name of what its pods are queued or placed as; no other job has it, and no other attempt."""
        return names.group_name(self.job.name, self.job.uid, self.number)

    @property
    def next_look(self) -> datetime:
        """When to look again for one who is not there."""
        return self.now + timedelta(seconds=LOOK_AGAIN_S)


@dataclass(frozen=True)
class PlacementWait:
    """Why the gang does not run yet: reason and message of Running=False."""

    reason: str
    message: str


class Placement(Protocol):
    """One who has a say in where the pods of an attempt run."""

    @property
    def holds(self) -> bool:
        """Whether the pods are not to be made yet."""

    def waits_for(self) -> PlacementWait | None:
        """What keeps the gang from running, in the words of whoever places it."""

    def wakes(self) -> tuple[datetime, ...]:
        """When to look again if nothing happens."""

    def marked(self, pod: Json) -> Json:
        """The launcher's or a worker's pod with what it must say to be placed so."""

    def unwanted(self) -> Iterable[tuple[ObjectRef, str]]:
        """Objects, with their uids, that are of no use any more."""


def weighed_template(pod: Json) -> Json:
    """The pod's template, as far as quota and places are concerned."""
    spec = pod["spec"]
    weighed = {name: copy.deepcopy(spec[name]) for name in _WEIGHED if spec.get(name)}
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            weighed[kind] = [{name: c[name] for name in _OF_A_CONTAINER if c.get(name)} for c in spec[kind]]
    labels = pod["metadata"]["labels"]
    changing = (contract.LABEL_ATTEMPT, contract.LABEL_WORKER_INDEX, contract.LABEL_DATA_INDEX)
    lasting = {name: value for name, value in labels.items() if name not in changing}
    return {"metadata": {"labels": lasting}, "spec": {"restartPolicy": "Never", **weighed}}


@dataclass(frozen=True)
class PlacedGang:
    """One attempt's pods; with fewer than `min_pods` none is placed. `queue` is Volcano's; empty: its default."""

    name: str
    min_pods: int
    queue: str = ""
    priority_class: str = ""
    topology: Topology | None = None


@dataclass(frozen=True)
class GangScheduler:
    """A scheduler that knows gangs, as `PodGroup` objects of its API group.

    `versions`: of that API, the newest first. `scheduler_name`: who places the pods unless the installation or the
    template says otherwise; empty: the cluster's own scheduler. `spec` is that of a gang's PodGroup; `join` makes
    a pod one of the group of that name. `no_room`: type and status of the condition of a group whose
    gang finds no room; None: the pods say it.
    """

    api_group: str
    versions: tuple[str, ...]
    scheduler_name: str
    spec: Callable[[PlacedGang], Json]
    join: Callable[[Json, str], None]
    no_room: tuple[str, str] | None = None
