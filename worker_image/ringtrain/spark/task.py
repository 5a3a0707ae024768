"""In a task of Spark's barrier stage: find this task's rank with the others, and run it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from ringtrain.tasks.agent import describe, run_agent, run_elastic_agent
from ringtrain.tasks.plan import Task, TaskRun, places


def rank_of(run: TaskRun) -> Callable[[Iterable[Any]], Iterator[tuple[int, bytes | None]]]:
    """What each task runs: it yields (rank, pickled result), None for a rank that failed."""

    def task(_: Iterable[Any]) -> Iterator[tuple[int, bytes | None]]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        own = describe(run.launcher, context.partitionId())
        everyone = [Task(**json.loads(text)) for text in context.allGather(json.dumps(asdict(own)))]
        place = places(everyone)[own.partition]
        yield place.rank, run_agent(run, own, place)

    return task


def elastic_rank_of(run: TaskRun) -> Callable[[Iterable[Any]], Iterator[tuple[int, int, bytes]]]:
    """What each task of a run runs whose ranks may come and go: it yields (rank, size of the last world, pickled
    result), and nothing where there is none."""

    def task(_: Iterable[Any]) -> Iterator[tuple[int, int, bytes]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "this runs in a task"
        found = run_elastic_agent(run, describe(run.launcher, context.partitionId()))
        if found is not None:
            yield found

    return task
