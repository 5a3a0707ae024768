"""Distribution strategies that behave like `HostStrategy`, under TensorFlow's and Graphcore's names."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import ringtrain as rt
from ringtrain.adapter import parse_tf_config
from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.host import HostStrategy
from ringtrain_tensorflow.reduce import allreduce


class HorovodStrategy(HostStrategy):
    """Strategy that trains on all ranks. The environment (of mpirun, horovodrun or a job) describes the world.

        strategy = HorovodStrategy()
        with strategy.scope():
            …                                              # variables, on the host
        dataset = strategy.distribute_datasets_from_function(lambda context: …)

    `variables_on_host`: whether variables, the reduction of gradients and updates are in host memory.
    """

    def __init__(self, variables_on_host: bool = True) -> None:
        """Initialize Ringtrain if the script has not. Raises the errors of `init()`."""
        rt.init()
        super().__init__(variables_on_host=variables_on_host)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of ranks."""
        return rt.size()

    @property
    def input_context(self) -> tf.distribute.InputContext:
        """Context for input functions: this rank is one of `size` pipelines."""
        return tf.distribute.InputContext(rt.size(), rt.rank(), rt.size())

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any = None) -> Any:
        """Return this rank's dataset, `dataset_fn(input_context)`. `options` has no effect."""
        return dataset_fn(self.input_context)

    def experimental_distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any]) -> Any:
        """Old name of `distribute_datasets_from_function` in TensorFlow."""
        return self.distribute_datasets_from_function(dataset_fn)

    def experimental_run_v2(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Old name of `run` in TensorFlow."""
        return self.run(fn, args, kwargs)

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Call `fn(*args, **kwargs)` once, inside `scope()`, and return its result."""
        with self.scope():
            return fn(*args, **(kwargs or {}))

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Return `value` reduced over all ranks by `reduce_op`: `"SUM"`, `"MEAN"` or TensorFlow's `ReduceOp`. `axis`:
        axis to reduce on each rank first. Collective. Raises ConfigurationError for another operation."""
        name = str(getattr(reduce_op, "value", reduce_op)).upper()
        local = {"SUM": tf.reduce_sum, "MEAN": tf.reduce_mean}
        if name not in local:
            raise ConfigurationError(f'reduce_op is {reduce_op!r}; expected "SUM" or "MEAN"')
        here = value if axis is None else local[name](value, axis=axis)
        return allreduce(here, average=name == "MEAN")


class MultiWorkerStrategy(HorovodStrategy):
    """`HorovodStrategy` for the cluster of `cluster_resolver`, which is used in place of `TF_CONFIG`. If a job's agent
    or `horovodrun` has defined the world, the resolver must describe the same one.

    The resolver is one of `tf.distribute.cluster_resolver`. Chief and workers are ranks, the chief first.
    """

    def __init__(self, cluster_resolver: Any = None, variables_on_host: bool = True) -> None:
        """Initialize Ringtrain. Raises ConfigurationError if the world differs from the resolver's cluster."""
        if cluster_resolver is not None:
            _join_estimator_cluster(cluster_resolver)
        super().__init__(variables_on_host)


def _join_estimator_cluster(resolver: Any) -> None:
    cluster = resolver.cluster_spec().as_dict()
    if not cluster:
        return
    task = {"type": resolver.task_type, "index": resolver.task_id}
    if None in task.values():
        raise ConfigurationError(
            f"cluster_resolver has a cluster and task_type={task['type']!r}, "
            f"task_id={task['index']!r}; set task_type and task_id to the task of this process"
        )
    text = json.dumps({"cluster": cluster, "task": task})
    found = parse_tf_config(text)
    rt.init(tf_config=text)
    expected = (0, 1) if found is None else (found.rank, max(1, len(found.addresses)))
    here = rt.rank(), rt.size()
    if here != expected:
        raise ConfigurationError(
            f"cluster_resolver makes this process rank {expected[0]} of {expected[1]}, but the process is rank "
            f"{here[0]} of {here[1]} already; create the strategy before init(), or omit the resolver"
        )
