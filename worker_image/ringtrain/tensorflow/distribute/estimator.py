"""`tf.estimator`'s loop, which TensorFlow 2 no longer has, over ranks: train, evaluate, predict, resume."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ringtrain.errors import ConfigurationError
from ringtrain.process_groups import context
from ringtrain.report import report
from ringtrain.tensorflow.distribute.graphs import ModelFunction, elements_of, training_operation
from ringtrain.tensorflow.distribute.specs import EstimatorSpec, ModeKeys, RunConfig
from ringtrain.tensorflow.distribute.strategy import HorovodStrategy, MultiWorkerStrategy
from ringtrain.tensorflow.objects import broadcast_object
from ringtrain.tensorflow.variables import BroadcastGlobalVariablesHook

_v1 = tf.compat.v1


class Estimator:
    """Trains, evaluates and uses the model that `model_fn(features, labels, mode, params, config)` builds.

        estimator = Estimator(model_fn, model_dir="model", config=RunConfig())
        estimator.train(input_fn, max_steps=1000)          # goes on from the newest checkpoint in model_dir
        estimator.evaluate(test_fn)                        # {"accuracy": …, "loss": …, "global_step": 1000}

    `model_fn` is called in a `tf.compat.v1` graph and returns an `EstimatorSpec`. Every rank makes and calls the
    Estimator alike; rank 0 alone reads and writes `model_dir` while training, and sends its weights to the others.
    What TensorFlow logged (`loss = 0.3, step = 100 (1.2 sec)`) rank 0 logs with `tf.compat.v1.logging` at INFO.
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """Meet the other ranks."""
        self.config = config or RunConfig()
        self.model_dir = str(model_dir)
        self.strategy: HorovodStrategy = self.config.train_distribute or MultiWorkerStrategy()
        self._model = ModelFunction(model_fn, params or {}, self.config)

    def train(
        self,
        input_fn: Callable[..., Any],
        max_steps: int,
        hooks: Sequence[Any] = (),
        saving_listeners: Sequence[Any] = (),
    ) -> "Estimator":
        """Train until the global step is `max_steps`, which counts what checkpoints have.

        The input must have as many batches on every rank; a rank whose input ends early is an error on all others.
        `saving_listeners`: rank 0's, called when it has saved a checkpoint. Collective.
        """
        if broadcast_object(self._saved_step(), 0) >= max_steps:
            _v1.logging.info("Skipping training since max_steps has already saved.")
            return self
        with self._graph() as graph:
            global_step = _v1.train.get_or_create_global_step()
            elements = elements_of(input_fn, self.strategy.input_context)
            spec = self._model.build(self.strategy, ModeKeys.TRAIN, elements)
            operation = training_operation(spec, self.strategy, graph, global_step)
            chosen = [
                BroadcastGlobalVariablesHook(0),
                _v1.train.StopAtStepHook(last_step=max_steps),
                _v1.train.NanTensorHook(spec.loss),
                _ReportHook(spec.loss, global_step, max_steps),
                *hooks,
            ]
            chief = self._chief_hooks(spec.loss, global_step, saving_listeners) if context.rank() == 0 else []
            saver = _v1.train.Saver(max_to_keep=self.config.keep_checkpoint_max)
            scaffold = _v1.train.Scaffold(saver=saver)
            creator = _v1.train.ChiefSessionCreator(
                scaffold,
                config=self.config.session_config,
                checkpoint_dir=self.model_dir if not context.rank() else None,
            )
            with _v1.train.MonitoredSession(creator, hooks=[*chosen, *_with_scaffold(chief, scaffold)]) as session:
                while not session.should_stop():
                    session.run(operation)
        return self

    def evaluate(
        self, input_fn: Callable[..., Any], steps: int | None = None, name: str | None = None
    ) -> dict[str, Any]:
        """Metrics of the newest checkpoint over `steps` batches, or until the input ends. Collective: rank 0
        evaluates all of the input, every rank returns it. Raises ConfigurationError without a checkpoint."""
        found: Any = None
        if context.rank() == 0:
            try:
                found = self.evaluate_here(input_fn, steps, name)
            except ConfigurationError as error:  # the others would wait for what it found
                found = str(error)
        found = broadcast_object(found, 0)
        if isinstance(found, str):
            raise ConfigurationError(found)
        return dict(found)

    def evaluate_here(
        self, input_fn: Callable[..., Any], steps: int | None = None, name: str | None = None
    ) -> dict[str, Any]:
        """`evaluate` on this rank alone."""
        with self._graph():
            global_step = _v1.train.get_or_create_global_step()
            spec = self._model.build(
                self.strategy, ModeKeys.EVAL, elements_of(input_fn, tf.distribute.InputContext())
            )
            metrics = {"loss": _v1.metrics.mean(spec.loss), **spec.eval_metric_ops}
            updates = tf.group(*(update for _, update in metrics.values()))
            with self._restored() as session:
                _run_all(session, updates, steps)
                values, step = session.run(({key: value for key, (value, _) in metrics.items()}, global_step))
        found = {**{key: _plain(value) for key, value in values.items()}, "global_step": int(step)}
        shown = ", ".join(f"{key} = {found[key]}" for key in sorted(found))
        _v1.logging.info("Saving dict%s for global step %d: %s", f" {name}" if name else "", step, shown)
        return found

    def predict(self, input_fn: Callable[..., Any]) -> Iterator[Any]:
        """The predictions of the newest checkpoint, example by example, on this rank alone: dictionaries where the
        spec has them by name. Raises ConfigurationError without a checkpoint."""
        with self._graph():
            _v1.train.get_or_create_global_step()
            elements = elements_of(input_fn, tf.distribute.InputContext())
            features = elements[0] if isinstance(elements, tuple) and len(elements) == 2 else elements
            spec = self._model.build(self.strategy, ModeKeys.PREDICT, features)
            with self._restored() as session:
                batches = list(_batches(session, spec.predictions))
        for batch in batches:
            rows = len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)
            for row in range(rows):
                yield {key: part[row] for key, part in batch.items()} if isinstance(batch, dict) else batch[row]

    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint that this rank finds."""
        return tf.train.latest_checkpoint(self.model_dir)

    def _saved_step(self) -> int:
        path = self.latest_checkpoint()
        return 0 if path is None else int(tf.train.load_variable(path, "global_step"))

    def _chief_hooks(self, loss: Any, global_step: Any, listeners: Sequence[Any]) -> list[Any]:
        every = self.config.log_step_count_steps
        return [
            _v1.train.LoggingTensorHook({"loss": loss, "step": global_step}, every_n_iter=every),
            _v1.train.StepCounterHook(every_n_steps=every, output_dir=self.model_dir),
            _Saving(self.model_dir, self.config.save_checkpoints_steps, tuple(listeners)),
        ]

    @contextmanager
    def _graph(self) -> Iterator[Any]:
        with tf.Graph().as_default() as graph:
            _v1.set_random_seed(self.config.tf_random_seed)
            yield graph

    @contextmanager
    def _restored(self) -> Iterator[Any]:
        path = self.latest_checkpoint()
        if path is None:
            raise ConfigurationError(f"model_dir {self.model_dir} has no checkpoint; train first")
        with _v1.Session(config=self.config.session_config) as session:
            session.run([_v1.local_variables_initializer(), _v1.tables_initializer()])
            _v1.train.Saver().restore(session, path)
            yield session


@dataclass(frozen=True)
class _Saving:
    directory: str
    every: int
    listeners: tuple[Any, ...]


def _with_scaffold(hooks: Sequence[Any], scaffold: Any) -> list[Any]:
    return [
        _v1.train.CheckpointSaverHook(
            hook.directory, save_steps=hook.every, scaffold=scaffold, listeners=list(hook.listeners)
        )
        if isinstance(hook, _Saving)
        else hook
        for hook in hooks
    ]


class _ReportHook(tf.compat.v1.train.SessionRunHook):
    """Tells the launcher how far this rank is."""

    def __init__(self, loss: Any, global_step: Any, total: int) -> None:
        self._loss, self._global_step, self._total = loss, global_step, total
        self._step = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._step = int(session.run(self._global_step))

    def before_run(self, run_context: Any) -> Any:
        return _v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._step += 1  # a fetched global step may be the one before the step or the one after it
        report(step=self._step, loss=float(np.mean(run_values.results)), total_steps=self._total)


def _run_all(session: Any, operation: Any, steps: int | None) -> None:
    done = 0
    while steps is None or done < steps:
        try:
            session.run(operation)
        except tf.errors.OutOfRangeError:
            break
        done += 1
    if not done:
        raise ConfigurationError("input_fn gave no batch; expected at least one to evaluate")


def _batches(session: Any, tensors: Any) -> Iterator[Any]:
    while True:
        try:
            yield session.run(tensors)
        except tf.errors.OutOfRangeError:
            return


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
