"""Values that driver and tasks of a run share, and the places of ranks."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.place import RankPlace


@dataclass(frozen=True)
class TaskRun:
    """One run. `scheduler`: system that schedules the tasks, such as Spark. `secrets`: files with which an agent
    authenticates itself, by name. `work`: function and arguments, pickled by the module `pickler`. `env`: variables of
    ranks in addition to their task's. `on_loss`: policy of an elastic run, in which `size` is the maximum; empty for a
    fixed world."""

    scheduler: str
    name: str
    size: int
    launcher: str
    secrets: Mapping[str, bytes] = field(repr=False)
    work: bytes = field(repr=False)
    pickler: str
    env: Mapping[str, str]
    executable: str | None
    start_timeout_s: float
    level: str
    on_loss: str = ""


def check_task_count(where: str, name: str, value: Any) -> None:
    """Raise ConfigurationError unless `value` is a number of ranks. `where`, `name`: function and argument for the
    message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{where}: {name} is {value!r}; expected a number of ranks of at least 1")


@dataclass(frozen=True)
class TaskWorldBounds:
    """Limits of an elastic run's world: least, first and highest number of ranks. `timeout_s`: seconds to wait for lost
    ranks. `resets`: limit on new generations; None stands for 99."""

    least: int
    begin: int
    most: int
    timeout_s: float
    resets: int | None = None

    @property
    def on_loss(self) -> str:
        """Policy after a loss: continue at once with fewer ranks if the limits permit, else wait."""
        return "Shrink" if self.least < self.begin else "Replace"

    def variables(self) -> dict[str, str]:
        """Return the launcher's variables."""
        values = {
            contract.ENV_ELASTIC: self.on_loss,
            contract.ENV_ELASTIC_MIN_RANKS: self.least,
            contract.ENV_ELASTIC_MAX_RANKS: self.most,
            contract.ENV_ELASTIC_START_RANKS: self.begin,
            contract.ENV_ELASTIC_JOIN_DELAY: 2,
            contract.ENV_ELASTIC_REPLACE_TIMEOUT: f"{self.timeout_s:g}",
            contract.ENV_ELASTIC_FORMATION_LIMIT: None if self.resets is None else self.resets + 1,
        }
        return {name: f"{value}" for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Task:
    """A task as it describes itself. `host`: equal for tasks that share memory and devices."""

    partition: int
    host: str
    address: str


def task_place_variables(place: RankPlace) -> dict[str, str]:
    """Return the variables that differ from those of a pod with one rank, which the task's agent assumes."""
    own = {"LOCAL_RANK": place.local_rank, "LOCAL_WORLD_SIZE": place.local_size, "GROUP_RANK": place.cross_rank}
    return {**place.variables(), **{name: str(value) for name, value in own.items()}}


def task_places(tasks: Sequence[Task]) -> dict[int, RankPlace]:
    """Return the place of each task, by partition: ranks of one host are consecutive, and partition 0 has rank 0."""
    hosts: dict[str, list[int]] = {}
    for task in sorted(tasks, key=lambda task: task.partition):
        hosts.setdefault(task.host, []).append(task.partition)
    ranks = itertools.count()
    numbered = [[next(ranks) for _ in partitions] for partitions in hosts.values()]
    in_order = itertools.chain(*hosts.values())
    return {partition: RankPlace.among(numbered, rank) for rank, partition in enumerate(in_order)}
