"""Alternation of an Estimator's training and evaluation, and a process that only evaluates."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

import ringtrain as rt
from ringtrain.adapter import current_world
from ringtrain.errors import ConfigurationError
from ringtrain_graphcore.distribute.estimator import Estimator
from ringtrain_graphcore.distribute.specs import EvalSpec, TrainSpec
from ringtrain_tensorflow.objects import broadcast_object

# Interval at which an evaluator looks for a checkpoint, and its limit on the wait for one.
_LOOK_S: Final = 1.0
_PATIENCE_S: Final = 3600.0


def train_and_evaluate(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> dict[str, Any]:
    """Train to `train_spec.max_steps`. Rank 0 evaluates saved checkpoints during the training, and the last one. Every
    rank returns the last metrics. Collective.

    A process with the type evaluator in TF_CONFIG does not train: it evaluates each new checkpoint of `model_dir` up to
    the last. Raises ConfigurationError if no checkpoint appears for an hour.
    """
    if current_world().config.role == "evaluator":
        return _evaluate_checkpoints(estimator, train_spec, eval_spec)
    listener = _EstimatorEvaluation(estimator, eval_spec, train_spec.max_steps)
    estimator.train(
        train_spec.input_fn,
        hooks=train_spec.hooks,
        max_steps=train_spec.max_steps,
        saving_listeners=[*(train_spec.saving_listeners or ()), listener],
    )
    found = listener.last if rt.rank() == 0 else None
    if rt.rank() == 0 and found is None:  # there was nothing to train
        found = listener.evaluate()
    return dict(broadcast_object(found, 0))


class _EstimatorEvaluation(tf.compat.v1.train.CheckpointSaverListener):
    """Listener that evaluates each saved checkpoint, except the one saved before the first step."""

    def __init__(self, estimator: Estimator, spec: EvalSpec, last_step: int | None) -> None:
        self._estimator, self._spec, self._last_step = estimator, spec, last_step
        self._first: int | None = None
        self._evaluated = time.monotonic()
        self.last: dict[str, Any] | None = None

    def evaluate(self, is_final: bool = True) -> dict[str, Any]:
        """Evaluate the newest checkpoint, pass the metrics to exporters, and return the metrics.

        `is_final`: whether this is the last evaluation, for exporters.
        """
        self.last = _evaluated_estimator(self._estimator, self._spec, is_final)
        self._evaluated = time.monotonic()
        return self.last

    def after_save(self, session: Any, global_step_value: int) -> None:
        if self._first is None:
            self._first = global_step_value
        elif time.monotonic() - self._evaluated >= self._spec.throttle_secs:
            self.evaluate(is_final=self._last_step is not None and global_step_value >= self._last_step)

    def end(self, session: Any, global_step_value: int) -> None:
        if self.last is None or self.last["global_step"] != global_step_value:
            self.evaluate()


def _evaluated_estimator(estimator: Estimator, spec: EvalSpec, is_final: bool) -> dict[str, Any]:
    path = estimator.latest_checkpoint()
    found = estimator.evaluate_here(spec.input_fn, spec.steps, spec.hooks, path, spec.name)
    exporters = spec.exporters or ()
    for exporter in exporters if isinstance(exporters, Iterable) else (exporters,):
        folder = str(Path(estimator.model_dir, "export", exporter.name))
        exporter.export(
            estimator=estimator,
            export_path=folder,
            checkpoint_path=path,
            eval_result=found,
            is_the_final_export=is_final,
        )
    return found


def _evaluate_checkpoints(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    seen = None
    last_step = float("inf") if train_spec.max_steps is None else train_spec.max_steps
    begin = time.monotonic() + eval_spec.start_delay_secs
    deadline = time.monotonic() + _PATIENCE_S
    while found.get("global_step", -1) < last_step:
        path = estimator.latest_checkpoint()
        if path is not None and path != seen:
            is_final = tf.train.load_variable(path, "global_step") >= last_step
            if is_final or time.monotonic() >= begin:
                found, seen = _evaluated_estimator(estimator, eval_spec, is_final), path
                deadline = time.monotonic() + _PATIENCE_S
                continue
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"model_dir {estimator.model_dir} has had no new checkpoint for {_PATIENCE_S:g} s; the last is "
                f"{seen}, and training ends at step {train_spec.max_steps}"
            )
        time.sleep(_LOOK_S)
    return found
