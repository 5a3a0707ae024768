"""`run_elastic`: a function as ranks in Spark's tasks, which goes on when some are lost and takes new ones in."""

from __future__ import annotations

import os
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from ringtrain.errors import ConfigurationError, RingtrainError
from ringtrain.spark.runner import PICKLER, active_context, check_slots, driver_host, error_text, say_no_effect
from ringtrain.spark.task import elastic_rank_of
from ringtrain.tasks.launcher import Results, RunOptions, Tasks, pickled_by, run_in_tasks
from ringtrain.tasks.plan import TaskRun, WorldBounds

_TIMEOUT_S: Final = 600.0


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    log_dir: str | os.PathLike[str] = "runs",
) -> list[Any]:
    """Return what `fn(*args, **kwargs)` returned on each rank of the last world, by rank.

    `fn` trains with `ringtrain.elastic` (`hvd.elastic.run`). Every rank is a process beside one of `max_num_proc`
    tasks of Spark, which runs as many as it has slots for. When an executor or a task is lost, the other ranks go
    on at their last commit with at least `min_num_proc` ranks, else they wait; Spark starts the task elsewhere,
    and its rank joins.

    `num_proc`: ranks to begin with, by default Spark's default parallelism; the two bounds are `num_proc` where
    they are not given. `start_timeout`, `elastic_timeout`: seconds that ranks get to come together at first, and
    that lost ranks are waited for, 600 by default. `reset_limit`: how often the world may be made again, by
    default 99 times. `env`, `stdout`, `stderr`, `verbose`, `log_dir`: as of `run`. The other arguments are
    Horovod's and have no effect; `min_np` and `max_np` are its former names.

    Raises RankFailed when training failed, RingtrainError when Spark gave a task up (`spark.task.maxFailures`),
    and ConfigurationError when there is no Spark session, or the cluster has fewer slots than `num_proc`.
    """
    context = active_context()
    say_no_effect(nics=nics, prefix_output_with_timestamp=prefix_output_with_timestamp)
    bounds = WorldBounds(
        *_numbers(
            context.defaultParallelism if num_proc is None else num_proc,
            _renamed("min_np", min_np, min_num_proc),
            _renamed("max_np", max_np, max_num_proc),
        ),
        _TIMEOUT_S if elastic_timeout is None else float(elastic_timeout),
        reset_limit,
    )
    limit_s = _TIMEOUT_S if start_timeout is None else float(start_timeout)
    check_slots(context, bounds.begin, limit_s, limit_s)
    stage = _ElasticStage(context, f"ringtrain-{uuid.uuid4()}", bounds.most)
    return run_in_tasks(
        RunOptions(
            scheduler="Spark",
            size=bounds.most,
            host=driver_host(context),
            work=pickled_by(PICKLER, fn, args, kwargs),
            pickler=PICKLER,
            env=env or {},
            executable=None,
            start_timeout_s=limit_s,
            level="info" if verbose >= 2 else "warning",
            log_dir=Path(log_dir).resolve(),
            stdout=stdout or sys.stdout,
            stderr=stderr or sys.stderr,
            bounds=bounds,
        ),
        Tasks(stage.run, stage.cancel, lambda _: None, error_text),
    )


@dataclass(frozen=True)
class _ElasticStage:
    """A stage whose tasks come and go, as a group of Spark's jobs."""

    context: Any
    group: str
    size: int

    def run(self, task_run: TaskRun) -> Results:
        self.context.setJobGroup(self.group, f"up to {self.size} ranks of Ringtrain", interruptOnCancel=True)
        tasks = self.context.parallelize(range(self.size), self.size)
        found = tasks.mapPartitions(elastic_rank_of(task_run)).collect()
        sizes = {size for _, size, _ in found}
        ranks = sorted(rank for rank, _, _ in found)
        if len(sizes) != 1 or ranks != list(range(*sizes)):
            raise RingtrainError(f"results are those of ranks {ranks}, of worlds of {sorted(sizes)}")
        return [(rank, result) for rank, _, result in found]

    def cancel(self) -> None:
        self.context.cancelJobGroup(self.group)


def _renamed(name: str, former: int | None, value: int | None) -> int | None:
    if former is None:
        return value
    warnings.warn(f"{name} is now called {name[:4]}num_proc", DeprecationWarning, stacklevel=3)
    return former


def _numbers(begin: Any, least: Any, most: Any) -> tuple[int, int, int]:
    """The least, the first and the most number of ranks. Raises ConfigurationError."""
    low, high = begin if least is None else least, begin if most is None else most
    for name, value in (("num_proc", begin), ("min_num_proc", low), ("max_num_proc", high)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"run_elastic: {name} is {value!r}; expected a number of ranks of at least 1")
    if not low <= begin <= high:
        raise ConfigurationError(
            f"run_elastic: num_proc is {begin}; expected a number from min_num_proc, {low}, to max_num_proc, "
            f"{high}"
        )
    return low, begin, high
