"""What driver and tasks of a run agree on: values that travel with the tasks, and the places of ranks."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.place import RankPlace


@dataclass(frozen=True)
class TaskRun:
    """One run. `scheduler`: whose tasks they are, such as Spark. `secrets`: the files that an agent proves itself
    with, by name. `work`: function and arguments, pickled by the module `pickler`. `env`: variables that ranks get
    on top of their task's. `on_loss`: of a run whose ranks may come and go, in which `size` is the most; empty for
    one whose world stays."""

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
    """Raise ConfigurationError, for the argument `name` of the function `where`, unless `value` is a number of
    ranks."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{where}: {name} is {value!r}; expected a number of ranks of at least 1")


@dataclass(frozen=True)
class TaskWorldBounds:
    """How many ranks a run begins with that may come and go, and how many it may have. `timeout_s`: how long lost
    ones are waited for; `resets`: how often the world may be made again, None: 99 times."""

    least: int
    begin: int
    most: int
    timeout_s: float
    resets: int | None = None

    @property
    def on_loss(self) -> str:
        """The others go on at once where so few are enough; else they wait."""
        return "Shrink" if self.least < self.begin else "Replace"

    def variables(self) -> dict[str, str]:
        """What the launcher is told."""
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
    """A task as it describes itself. `host`: the same text for tasks that share memory and devices."""

    partition: int
    host: str
    address: str


def task_place_variables(place: RankPlace) -> dict[str, str]:
    """What differs from a pod of one rank, which the task's agent takes itself for."""
    own = {"LOCAL_RANK": place.local_rank, "LOCAL_WORLD_SIZE": place.local_size, "GROUP_RANK": place.cross_rank}
    return {**place.variables(), **{name: str(value) for name, value in own.items()}}


def task_places(tasks: Sequence[Task]) -> dict[int, RankPlace]:
    """The place of each task, by partition: ranks of one host follow each other, that of partition 0 is 0."""
    hosts: dict[str, list[int]] = {}
    for task in sorted(tasks, key=lambda task: task.partition):
        hosts.setdefault(task.host, []).append(task.partition)
    ranks = itertools.count()
    numbered = [[next(ranks) for _ in partitions] for partitions in hosts.values()]
    in_order = itertools.chain(*hosts.values())
    return {partition: RankPlace.among(numbered, rank) for rank, partition in enumerate(in_order)}
