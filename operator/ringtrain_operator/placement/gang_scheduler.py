"""A group of pods of which a scheduler places all or none, and what a gang scheduler's file has to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..spec.scheduling import Topology
from .base import Json


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
