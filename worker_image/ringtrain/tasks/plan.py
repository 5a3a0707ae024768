"""What driver and tasks of a run agree on: values that travel with the tasks, and the places of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringtrain.shared import contract


@dataclass(frozen=True)
class TaskRun:
    """One run. `scheduler`: whose tasks they are, such as Spark. `secrets`: the files that an agent proves itself
    with, by name. `work`: function and arguments, pickled by the module `pickler`. `env`: variables that ranks get
    on top of their task's."""

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


@dataclass(frozen=True)
class Task:
    """A task as it describes itself. `host`: the same text for tasks that share memory and devices."""

    partition: int
    host: str
    address: str


@dataclass(frozen=True)
class TaskPlace:
    """Where a rank is in the world, and among the ranks of its host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def variables(self) -> dict[str, str]:
        """What differs from a pod of one rank, which the task's agent takes itself for."""
        values = {
            contract.ENV_LOCAL_RANK: self.local_rank,
            contract.ENV_LOCAL_SIZE: self.local_size,
            contract.ENV_CROSS_RANK: self.cross_rank,
            contract.ENV_CROSS_SIZE: self.cross_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_RANK": self.cross_rank,
        }
        return {name: str(value) for name, value in values.items()}


def places(tasks: Sequence[Task]) -> dict[int, TaskPlace]:
    """The place of each task, by partition: ranks of one host follow each other, that of partition 0 is 0."""
    hosts: dict[str, list[int]] = {}
    for task in sorted(tasks, key=lambda task: task.partition):
        hosts.setdefault(task.host, []).append(task.partition)
    found: dict[int, TaskPlace] = {}
    for partitions in hosts.values():
        for local_rank, partition in enumerate(partitions):
            column = [others[local_rank] for others in hosts.values() if len(others) > local_rank]
            found[partition] = TaskPlace(
                rank=len(found),
                size=len(tasks),
                local_rank=local_rank,
                local_size=len(partitions),
                cross_rank=column.index(partition),
                cross_size=len(column),
            )
    return found
