"""`run(fn)`: run a function as ranks in the tasks of a Spark barrier stage. The launcher runs on the driver."""

from __future__ import annotations

import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TextIO

from ringtrain.errors import ConfigurationError, counted
from ringtrain_clusters.tasks.agent import describe_task, run_agent
from ringtrain_clusters.tasks.launcher import (
    Results,
    ScheduledTasks,
    TaskRunOptions,
    TaskRunOutput,
    TaskScheduler,
    pickled_by,
    run_in_tasks,
)
from ringtrain_clusters.tasks.plan import Task, TaskRun, check_task_count, task_places

log = logging.getLogger("ringtrain.spark")
PICKLER: Final = "pyspark.cloudpickle"
# Seconds to wait for each further executor of a cluster that is still starting.
_SLOTS_S: Final = 30.0
_POLL_S: Final = 0.1
_NO_EFFECT: Final = {
    "use_mpi": "ranks exchange over Ringtrain's own connections",
    "use_gloo": "ranks exchange over Ringtrain's own connections",
    "extra_mpi_args": "ranks are not started by mpirun",
    "nics": "a rank uses the interface on which its task reaches the driver",
    "prefix_output_with_timestamp": "lines begin with their rank",
}
_FAILED_TASK: Final = re.compile(r"barrier task ResultTask\(\d+, (\d+)\)|Task (\d+) in stage")


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
    *,
    log_dir: str | os.PathLike[str] = "runs",
) -> list[Any]:
    """Run `fn(*args, **kwargs)` as `num_proc` ranks; return the results in rank order.

    Every rank is a child process of one task of a Spark barrier stage, so either all of them run at once or none.

    `num_proc`: number of ranks, by default Spark's default parallelism. `start_timeout`: seconds for the rendezvous of
    ranks, 600 by default. `env`: variables of ranks in addition to their task's. `stdout`, `stderr`: streams for ranks'
    lines and for Ringtrain's log; by default those of this process. `verbose`: 2 also shows the logs of launcher and
    agents. `executable`: the Python of ranks. `log_dir`: directory for every rank's output. The other arguments are
    Horovod's and have no effect.

    Raises RankFailed for the rank that failed first, or whose task died; all other ranks have ended then. Raises
    ConfigurationError if there is no Spark session, or the cluster has fewer slots than `num_proc`.
    """
    context = active_context()
    warn_no_effect(
        use_mpi=use_mpi,
        use_gloo=use_gloo,
        extra_mpi_args=extra_mpi_args,
        nics=nics,
        prefix_output_with_timestamp=prefix_output_with_timestamp,
    )
    size = context.defaultParallelism if num_proc is None else num_proc
    check_task_count("run", "num_proc", size)
    output = TaskRunOutput(stdout, stderr, verbose, log_dir)
    options = TaskRunOptions(spark_of(context), size, start_timeout, output, env, executable)
    check_slots(context, size, options.start_timeout_s, min(_SLOTS_S, options.start_timeout_s))
    stage = _SparkBarrierStage(context, size)
    work = pickled_by(PICKLER, fn, args, kwargs)
    return run_in_tasks(options, work, ScheduledTasks(stage.run, stage.cancel, _spark_partition_of, spark_error_text))


def check_slots(context: Any, size: int, limit_s: float, patience_s: float) -> None:
    """Raise ConfigurationError unless the cluster can run `size` tasks at once; Spark itself would wait for more
    executor cores.

    `limit_s`: seconds to wait for the first executor of a cluster that is still starting; `patience_s`: seconds to wait
    for each further executor.
    """
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    is_one_process = context.master.startswith("local") and "cluster" not in context.master
    found, end = 0, time.monotonic() + (0.0 if is_one_process else limit_s)
    while (slots := int(scala.maxNumConcurrentTasks(profile))) < size:
        now = time.monotonic()
        if slots > found:
            found, end = slots, min(end, now + patience_s)
        if now >= end:
            fewer = f"{counted(slots, 'rank')}, or " if slots else ""
            raise ConfigurationError(
                f"run: num_proc is {size}, but {context.master} has only {counted(slots, 'task slot')}, and all ranks "
                f"must run at once. Request {fewer}more executors or cores "
                f"(spark.task.cpus is {context.getConf().get('spark.task.cpus', '1')})"
            )
        time.sleep(_POLL_S)


def active_context() -> Any:
    """Return the SparkContext of the active Spark session. Raises ConfigurationError if no session is active."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active().sparkContext
    except PySparkRuntimeError as error:
        raise ConfigurationError(
            "run: no Spark session is active; create one first: SparkSession.builder.getOrCreate()"
        ) from error


def warn_no_effect(**arguments: Any) -> None:
    """Log a line for each of Horovod's `arguments` that is set but has no effect."""
    for name, value in arguments.items():
        if value:
            log.warning("%s has no effect: %s", name, _NO_EFFECT[name])


def spark_of(context: Any) -> TaskScheduler:
    """Return a TaskScheduler for Spark, with the address at which tasks reach the driver."""
    return TaskScheduler("Spark", str(context.getConf().get("spark.driver.host", "127.0.0.1")), PICKLER)


@dataclass(frozen=True)
class SparkStage:
    """Base class of Spark stages with `size` tasks. `group`: name of Spark's job group, used to cancel the stage."""

    context: Any
    size: int
    group: str = field(default_factory=lambda: f"ringtrain-{uuid.uuid4()}")

    def begin(self, said: str) -> Any:
        """Set Spark's job group, and return an RDD with one partition per task. `said`: description for Spark's UI."""
        self.context.setJobGroup(self.group, f"{said} of Ringtrain", interruptOnCancel=True)
        return self.context.parallelize(range(self.size), self.size)

    def cancel(self) -> None:
        """End the tasks."""
        self.context.cancelJobGroup(self.group)


def _spark_rank_of(run: TaskRun) -> Callable[[Iterable[Any]], Iterator[tuple[int, bytes | None]]]:
    """Return the function that each barrier task executes. It yields (rank, pickled result or None if failed)."""

    def task(_: Iterable[Any]) -> Iterator[tuple[int, bytes | None]]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        own = describe_task(run.launcher, context.partitionId())
        everyone = [Task(**json.loads(text)) for text in context.allGather(json.dumps(asdict(own)))]
        place = task_places(everyone)[own.partition]
        yield place.rank, run_agent(run, own, place)

    return task


class _SparkBarrierStage(SparkStage):
    def run(self, task_run: TaskRun) -> Results:
        tasks = self.begin(counted(self.size, "rank")).barrier()
        return list(tasks.mapPartitions(_spark_rank_of(task_run)).collect())


def _spark_partition_of(error: BaseException) -> int | None:
    found = _FAILED_TASK.search(spark_error_text(error))
    return int(found[1] or found[2]) if found else None


def spark_error_text(error: BaseException) -> str:
    """Return the message of a Spark error, without Java's stack frames."""
    return str(error).partition("\n\tat ")[0]
