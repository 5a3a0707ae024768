"""Two strategies with the same behaviour: `HostStrategy`, with the names of TensorFlow's strategies."""

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
    """Strategy for training on the ranks of the world in the environment: mpirun's, horovodrun's, a job's.

        strategy = HorovodStrategy()
        with strategy.scope():
            …                                              # variables, on the host
        dataset = strategy.distribute_datasets_from_function(lambda context: …)

    `variables_on_host`: whether variables, the reduction of gradients and updates are in host memory.
    """

    def __init__(self, variables_on_host: bool = True) -> None:
        """Initialize the world, unless `init()` has. Raises the errors of `init()`."""
        rt.init()
        super().__init__(variables_on_host=variables_on_host)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of ranks."""
        return rt.size()

    @property
    def input_context(self) -> tf.distribute.InputContext:
        """Input context of this rank: one pipeline per rank."""
        return tf.distribute.InputContext(rt.size(), rt.rank(), rt.size())

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any = None) -> Any:
        """Return this rank's dataset: the result of `dataset_fn(input_context)`. `options`: accepted, without
        effect."""
        return dataset_fn(self.input_context)

    def experimental_distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any]) -> Any:
        """Call `distribute_datasets_from_function`, under TensorFlow's first name for it."""
        return self.distribute_datasets_from_function(dataset_fn)

    def experimental_run_v2(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `run`, under TensorFlow's first name for it."""
        return self.run(fn, args, kwargs)

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Call `fn(*args, **kwargs)` in this rank's scope."""
        with self.scope():
            return fn(*args, **(kwargs or {}))

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Return `value` reduced over all ranks: `reduce_op` is `"SUM"` or `"MEAN"`, or TensorFlow's `ReduceOp`.
        `axis`: reduced locally first. Collective. Raises ConfigurationError for another operation."""
        name = str(getattr(reduce_op, "value", reduce_op)).upper()
        local = {"SUM": tf.reduce_sum, "MEAN": tf.reduce_mean}
        if name not in local:
            raise ConfigurationError(f'reduce_op is {reduce_op!r}; expected "SUM" or "MEAN"')
        here = value if axis is None else local[name](value, axis=axis)
        return allreduce(here, average=name == "MEAN")


class MultiWorkerStrategy(HorovodStrategy):
    """`HorovodStrategy` in the cluster of `cluster_resolver`, which replaces `TF_CONFIG`; all other settings are the
    environment's. If a job's agent or `horovodrun` has created the world, the resolver must agree.

    The resolver is one of `tf.distribute.cluster_resolver`. Chief and workers are ranks, the chief first.
    """

    def __init__(self, cluster_resolver: Any = None, variables_on_host: bool = True) -> None:
        """Initialize the world. Raises ConfigurationError if `init()` has created another world than the resolver's."""
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
            f"cluster_resolver has a cluster and task_type={task['type']!r}, task_id={task['index']!r}; "
            "expected both to say which task this process is"
        )
    text = json.dumps({"cluster": cluster, "task": task})
    found = parse_tf_config(text)
    rt.init(tf_config=text)
    expected = (0, 1) if found is None else (found.rank, max(1, len(found.addresses)))
    here = rt.rank(), rt.size()
    if here != expected:
        raise ConfigurationError(
            f"cluster_resolver makes this process rank {expected[0]} of {expected[1]}, and it is rank {here[0]} "
            f"of {here[1]} already; make the strategy first, or leave the resolver out"
        )
