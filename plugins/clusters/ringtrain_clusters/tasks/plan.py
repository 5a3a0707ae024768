"""Description of a run that the driver sends to its tasks, and the assignment of ranks to tasks."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.place import RankPlace


@dataclass(frozen=True)
class TaskRun:
    """Description of a run for its tasks. `scheduler`: Spark or Ray. `secrets`: content by file name, with which an
    agent authenticates. `work`: function and arguments, pickled by the module `pickler`. `env`: variables of ranks in
    addition to their task's. `on_loss`: policy after a loss in an elastic run, whose maximum is `size`; empty for a
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
    """Raise ConfigurationError unless `value` is an integer of at least 1. `where`, `name`: function and argument that
    the message names."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{where}: {name} is {value!r}; expected a number of ranks of at least 1")


@dataclass(frozen=True)
class TaskWorldBounds:
    """Limits of an elastic world: minimum, initial and maximum number of ranks. `timeout_s`: seconds to wait for lost
    ranks. `resets`: maximum number of new generations; None stands for 99."""

    least: int
    begin: int
    most: int
    timeout_s: float
    resets: int | None = None

    @property
    def on_loss(self) -> str:
        """Policy after a lost rank: Shrink (continue with fewer) if the limits permit, otherwise Replace (wait)."""
        return "Shrink" if self.least < self.begin else "Replace"

    def variables(self) -> dict[str, str]:
        """Return these limits as environment variables of the launcher."""
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
    """Identity of a task. `host`: equal for tasks that share memory and devices. `address`: IP address of the task."""

    partition: int
    host: str
    address: str


def task_place_variables(place: RankPlace) -> dict[str, str]:
    """Return the rank variables for `place`. They override the agent's, which assumes one rank per host."""
    own = {"LOCAL_RANK": place.local_rank, "LOCAL_WORLD_SIZE": place.local_size, "GROUP_RANK": place.cross_rank}
    return {**place.variables(), **{name: str(value) for name, value in own.items()}}


def task_places(tasks: Sequence[Task]) -> dict[int, RankPlace]:
    """Return each task's rank numbers, by partition. Ranks on one host are consecutive; partition 0 has rank 0."""
    hosts: dict[str, list[int]] = {}
    for task in sorted(tasks, key=lambda task: task.partition):
        hosts.setdefault(task.host, []).append(task.partition)
    ranks = itertools.count()
    numbered = [[next(ranks) for _ in partitions] for partitions in hosts.values()]
    in_order = itertools.chain(*hosts.values())
    return {partition: RankPlace.among(numbered, rank) for rank, partition in enumerate(in_order)}
