"""`run_elastic(fn)`: run elastic ranks in Spark tasks. Training continues after lost ranks; new ranks may join."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TextIO

from ringtrain.errors import ConfigurationError, RingtrainError, counted
from ringtrain_clusters.spark.runner import (
    PICKLER,
    SparkStage,
    active_context,
    check_slots,
    spark_error_text,
    spark_of,
    warn_no_effect,
)
from ringtrain_clusters.tasks.agent import describe_task, run_elastic_agent
from ringtrain_clusters.tasks.launcher import (
    Results,
    ScheduledTasks,
    TaskRunOptions,
    TaskRunOutput,
    pickled_by,
    run_in_tasks,
)
from ringtrain_clusters.tasks.plan import TaskRun, TaskWorldBounds, check_task_count

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
    """Run `fn(*args, **kwargs)` as elastic ranks; return the results of the last generation in rank order.

    `fn` trains with `ringtrain.elastic` (`hvd.elastic.run`). Every rank is a child process of one of `max_num_proc`
    tasks of Spark, which runs as many of them as it has slots for. If an executor or a task is lost, the other ranks
    continue from their last commit with at least `min_num_proc` ranks, otherwise they wait. Spark restarts the task
    elsewhere, and its rank joins.

    `num_proc`: number of ranks at the start, by default Spark's default parallelism; both bounds default to `num_proc`.
    `start_timeout`, `elastic_timeout`: seconds for the first rendezvous, and to wait for lost ranks, 600 by default.
    `reset_limit`: limit on new generations, 99 by default. `env`, `stdout`, `stderr`, `verbose`, `log_dir`: see `run`.
    The other arguments are Horovod's and have no effect; `min_np` and `max_np` are former names of the bounds.

    Raises RankFailed if training failed, RingtrainError if Spark gave a task up (`spark.task.maxFailures`), and
    ConfigurationError if there is no Spark session, or the cluster has fewer slots than `num_proc`.
    """
    context = active_context()
    warn_no_effect(nics=nics, prefix_output_with_timestamp=prefix_output_with_timestamp)
    bounds = TaskWorldBounds(
        *_spark_world_numbers(
            context.defaultParallelism if num_proc is None else num_proc,
            _renamed_spark_argument("min_np", min_np, min_num_proc),
            _renamed_spark_argument("max_np", max_np, max_num_proc),
        ),
        _TIMEOUT_S if elastic_timeout is None else float(elastic_timeout),
        reset_limit,
    )
    output = TaskRunOutput(stdout, stderr, verbose, log_dir)
    options = TaskRunOptions(spark_of(context), bounds.most, start_timeout, output, env, bounds=bounds)
    check_slots(context, bounds.begin, options.start_timeout_s, options.start_timeout_s)
    stage = _ElasticSparkStage(context, bounds.most)
    work = pickled_by(PICKLER, fn, args, kwargs)
    return run_in_tasks(options, work, ScheduledTasks(stage.run, stage.cancel, lambda _: None, spark_error_text))


def _rank_of(run: TaskRun) -> Callable[[Iterable[Any]], Iterator[tuple[int, int, bytes]]]:
    """Return the function that each task of an elastic run executes. It yields (rank, world size, pickled result), or
    nothing if the task has no result."""

    def task(_: Iterable[Any]) -> Iterator[tuple[int, int, bytes]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "this runs in a task"
        found = run_elastic_agent(run, describe_task(run.launcher, context.partitionId()))
        if found is not None:
            yield found

    return task


class _ElasticSparkStage(SparkStage):
    """Spark stage of an elastic run: its tasks may be lost, and Spark restarts them."""

    def run(self, task_run: TaskRun) -> Results:
        found = self.begin(f"up to {counted(self.size, 'rank')}").mapPartitions(_rank_of(task_run)).collect()
        sizes = {size for _, size, _ in found}
        ranks = sorted(rank for rank, _, _ in found)
        if len(sizes) != 1 or ranks != list(range(*sizes)):
            raise RingtrainError(
                f"ranks {ranks} of worlds of {sorted(sizes)} ranks have returned results; expected a "
                "result of every rank of one world"
            )
        return [(rank, result) for rank, _, result in found]


def _renamed_spark_argument(name: str, former: int | None, value: int | None) -> int | None:
    if former is None:
        return value
    warnings.warn(f"{name} is now called {name[:4]}num_proc", DeprecationWarning, stacklevel=3)
    return former


def _spark_world_numbers(begin: Any, least: Any, most: Any) -> tuple[int, int, int]:
    """Return the minimum, initial and maximum number of ranks: `least`, `begin` and `most`. None stands for `begin`.

    Raises ConfigurationError if a number is invalid.
    """
    low, high = begin if least is None else least, begin if most is None else most
    for name, value in (("num_proc", begin), ("min_num_proc", low), ("max_num_proc", high)):
        check_task_count("run_elastic", name, value)
    if not low <= begin <= high:
        raise ConfigurationError(
            f"run_elastic: num_proc is {begin}; expected a number from min_num_proc, {low}, to max_num_proc, {high}"
        )
    return low, begin, high
