"""`run(fn)`: run a function as ranks in the actors of a Ray placement group. The launcher runs on the driver's node."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TextIO

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ringtrain.errors import ConfigurationError, RingtrainError, counted
from ringtrain.shared.place import RankPlace
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

log = logging.getLogger("ringtrain.ray")
PLACEMENTS: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_PICKLER: Final = "ray.cloudpickle"
# Seconds without a placement after which a line is logged.
_PATIENCE_S: Final = 5.0
_DEVICES: Final = "CUDA_VISIBLE_DEVICES"


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_workers: int,
    resources_per_worker: Mapping[str, float] | None = None,
    workers_per_node: int | None = None,
    placement: str | PlacementGroup = "PACK",
    start_timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    executable: str | None = None,
    log_dir: str | os.PathLike[str] = "runs",
) -> list[Any]:
    """Run `fn(*args, **kwargs)` as `num_workers` ranks; return the results in rank order.

    Every rank is a child process of its own actor. All actors belong to one placement group, so either all of them are
    placed or none. Ranks on one node are consecutive and see the devices of all of them; a rank uses the device with
    its local rank.

    `resources_per_worker`: resources with Ray's names, `{"CPU": 1}` by default, for example `{"CPU": 4, "GPU": 1}`.
    `workers_per_node`: exactly this number of ranks on each node. `placement`: Ray's strategy, one of PACK, SPREAD,
    STRICT_PACK and STRICT_SPREAD, or a placement group with a bundle for each rank. `start_timeout`: seconds for
    placement and rendezvous of ranks, 600 by default. `env`: additional variables of ranks. `stdout`, `stderr`: streams
    for ranks' lines and for Ringtrain's log; by default those of this process. `verbose`: 2 also shows the logs of
    launcher and agents. `executable`: the Python of ranks. `log_dir`: directory for every rank's output, on the
    driver's machine.

    Raises RankFailed for the rank that failed first, or whose actor died; all other ranks have ended then. Raises
    ConfigurationError for invalid arguments, and if the cluster has no free resources in time.
    """
    resources = _checked_ray_placement(num_workers, resources_per_worker, workers_per_node, placement)
    work = pickled_by(_PICKLER, fn, args, kwargs)
    if not ray.is_initialized():
        ray.init()
    with ExitStack() as stack:
        per_bundle = workers_per_node or 1
        if isinstance(placement, PlacementGroup):
            group = placement
            if (bundles := len(group.bundle_specs)) != num_workers:
                raise ConfigurationError(
                    f"run: the placement group has {bundles} bundles; expected {num_workers}, one per rank"
                )
        else:
            bundle = {name: amount * per_bundle for name, amount in resources.items()}
            strategy = "STRICT_SPREAD" if workers_per_node else placement
            group = placement_group([bundle] * (num_workers // per_bundle), strategy=strategy)
            stack.callback(remove_placement_group, group)
        scheduler = TaskScheduler("Ray", ray.util.get_node_ip_address(), _PICKLER)
        output = TaskRunOutput(stdout, stderr, verbose, log_dir)
        options = TaskRunOptions(scheduler, num_workers, start_timeout, output, env, executable)
        _await_places(group, num_workers, resources, options.start_timeout_s)
        actors = _RankActors(group, num_workers, per_bundle, resources)
        tasks = ScheduledTasks(actors.run, actors.cancel, lambda error: getattr(error, "partition", None))
        return run_in_tasks(options, work, tasks)


def _checked_ray_placement(
    num_workers: Any, resources: Mapping[str, float] | None, per_node: Any, placement: Any
) -> dict[str, float]:
    for name, count in (("num_workers", num_workers), ("workers_per_node", 1 if per_node is None else per_node)):
        check_task_count("run", name, count)
    if per_node and num_workers % per_node:
        raise ConfigurationError(f"run: num_workers={num_workers}; expected a multiple of workers_per_node={per_node}")
    if per_node and placement != "PACK":
        raise ConfigurationError("run: workers_per_node and placement are both set; omit one of them")
    if not isinstance(placement, PlacementGroup) and placement not in PLACEMENTS:
        expected = f"{', '.join(PLACEMENTS)}, or a placement group of Ray"
        raise ConfigurationError(f"run: placement is {placement!r}; expected {expected}")
    for name, amount in (resources or {}).items():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
            raise ConfigurationError(f"run: resources_per_worker has {name}: {amount!r}; expected a number >= 0")
    return {name: amount for name, amount in {"CPU": 1, **(resources or {})}.items() if amount}


def _await_places(group: PlacementGroup, size: int, resources: Mapping[str, float], limit_s: float) -> None:
    """Wait until Ray has placed the group. Raises ConfigurationError after `limit_s`."""
    end = time.monotonic() + limit_s
    if group.wait(min(_PATIENCE_S, limit_s)):
        return
    log.warning(
        "waiting for Ray to place %s with %s each; Ray's nodes have %s in total",
        counted(size, "worker"),
        dict(resources),
        _whole_ray_actors(),
    )
    if not group.wait(max(0.0, end - time.monotonic())):
        raise ConfigurationError(
            f"run: Ray did not place {counted(size, 'worker')} with {dict(resources)} each within {limit_s:g} s; "
            f"Ray's nodes have {_whole_ray_actors()} in total. Request fewer workers, or enlarge the cluster"
        )


def _whole_ray_actors() -> dict[str, float]:
    return {name: amount for name, amount in ray.cluster_resources().items() if name in ("CPU", "GPU")}


class ActorDied(RingtrainError):
    """A Ray actor failed, or its process died. `partition`: index of the actor in the run."""

    def __init__(self, partition: int, error: BaseException) -> None:
        super().__init__(str(error))
        self.partition = partition


class RankActor:
    """Ray actor that runs one rank under an agent."""

    def __init__(self, run: TaskRun, partition: int) -> None:
        self._run, self._task = run, describe_task(run.launcher, partition)

    def describe(self) -> tuple[Task, str]:
        """Return this actor as a Task, and the GPUs that Ray has assigned to it (CUDA_VISIBLE_DEVICES)."""
        return self._task, os.environ.get(_DEVICES, "")

    def work(self, place: RankPlace, devices: str) -> tuple[int, bytes | None]:
        """Run the actor's rank; return its number and its pickled result (None if it failed). `devices`: GPUs of all
        ranks on this node, for CUDA_VISIBLE_DEVICES."""
        env = {_DEVICES: devices, **self._run.env} if devices else self._run.env
        return place.rank, run_agent(replace(self._run, env=env), self._task, place)


@dataclass
class _RankActors:
    """The `size` Ray actors of a run, `per_bundle` of them in each bundle of the placement group `group`."""

    group: PlacementGroup
    size: int
    per_bundle: int
    resources: Mapping[str, float]
    started: list[Any] = field(default_factory=list)

    def run(self, task_run: TaskRun) -> Results:
        try:
            self.started += [self._start(task_run, partition) for partition in range(self.size)]
            described = _each_ray_future([actor.describe.remote() for actor in self.started])
            found = task_places([task for task, _ in described])
            devices = [_ray_devices_of(task, described, found) for task, _ in described]
            return _each_ray_future([actor.work.remote(found[i], devices[i]) for i, actor in enumerate(self.started)])
        finally:
            self.cancel()

    def _start(self, task_run: TaskRun, partition: int) -> Any:
        place = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=partition // self.per_bundle)
        actor = ray.remote(RankActor).options(
            num_cpus=self.resources.get("CPU", 0),
            num_gpus=self.resources.get("GPU", 0),
            resources={name: amount for name, amount in self.resources.items() if name not in ("CPU", "GPU")},
            max_restarts=0,
            scheduling_strategy=place,
        )
        return actor.remote(task_run, partition)

    def cancel(self) -> None:
        for actor in self.started:
            with suppress(Exception):  # it has ended, or Ray has
                ray.kill(actor)


def _each_ray_future(futures: list[Any]) -> list[Any]:
    """Wait for one future per actor; return their results in order. Raises ActorDied as soon as one actor fails."""
    results: dict[int, Any] = {}
    left = {future: partition for partition, future in enumerate(futures)}
    while left:
        (ready,), _ = ray.wait(list(left), num_returns=1)
        partition = left.pop(ready)
        try:
            results[partition] = ray.get(ready)
        except ray.exceptions.RayError as error:
            raise ActorDied(partition, error) from error
    return [results[partition] for partition in range(len(futures))]


def _ray_devices_of(task: Task, described: Sequence[tuple[Task, str]], found: Mapping[int, RankPlace]) -> str:
    """Return the GPUs of all ranks on the task's host, by local rank; empty if one of these ranks has no GPU."""
    here = [(found[other.partition].local_rank, given) for other, given in described if other.host == task.host]
    return ",".join(given for _, given in sorted(here)) if all(given for _, given in here) else ""
