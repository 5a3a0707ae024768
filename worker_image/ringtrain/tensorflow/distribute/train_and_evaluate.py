"""Training with evaluations in between, and an evaluator's own process."""

import time
from typing import Any, Final

import tensorflow as tf

from ringtrain.errors import ConfigurationError
from ringtrain.process_groups import context
from ringtrain.tensorflow.distribute.estimator import Estimator
from ringtrain.tensorflow.distribute.specs import EvalSpec, TrainSpec
from ringtrain.tensorflow.objects import broadcast_object

# How often an evaluator looks for a checkpoint, and how long it waits for one at most.
_LOOK_S: Final = 1.0
_PATIENCE_S: Final = 3600.0


def train_and_evaluate(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> dict[str, Any]:
    """Train to `train_spec.max_steps`; rank 0 evaluates checkpoints as it saves them, and the last one. Every rank
    returns the last metrics. Collective.

    A process that TF_CONFIG calls the evaluator trains nothing: it evaluates each new checkpoint of `model_dir` up
    to the last. Raises ConfigurationError when there is none for an hour.
    """
    if context.current().config.role == "evaluator":
        return _evaluate_checkpoints(estimator, train_spec, eval_spec)
    listener = _Evaluating(estimator, eval_spec)
    estimator.train(train_spec.input_fn, train_spec.max_steps, train_spec.hooks, [listener])
    found = listener.last if context.rank() == 0 else None
    if context.rank() == 0 and found is None:  # there was nothing to train
        found = listener.evaluate()
    return dict(broadcast_object(found, 0))


class _Evaluating(tf.compat.v1.train.CheckpointSaverListener):
    """Evaluates what was saved; the first checkpoint, before the first step, is left out."""

    def __init__(self, estimator: Estimator, spec: EvalSpec) -> None:
        self._estimator, self._spec = estimator, spec
        self._first: int | None = None
        self._evaluated = time.monotonic()
        self.last: dict[str, Any] | None = None

    def evaluate(self) -> dict[str, Any]:
        """Metrics of the newest checkpoint."""
        self.last = self._estimator.evaluate_here(self._spec.input_fn, self._spec.steps, self._spec.name)
        self._evaluated = time.monotonic()
        return self.last

    def after_save(self, session: Any, global_step_value: int) -> None:
        if self._first is None:
            self._first = global_step_value
        elif time.monotonic() - self._evaluated >= self._spec.throttle_secs:
            self.evaluate()

    def end(self, session: Any, global_step_value: int) -> None:
        if self.last is None or self.last["global_step"] != global_step_value:
            self.evaluate()


def _evaluate_checkpoints(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> dict[str, Any]:
    seen, found = None, None
    deadline = time.monotonic() + _PATIENCE_S
    while found is None or found["global_step"] < train_spec.max_steps:
        path = estimator.latest_checkpoint()
        if path is not None and path != seen:
            found, seen = estimator.evaluate_here(eval_spec.input_fn, eval_spec.steps, eval_spec.name), path
            deadline = time.monotonic() + _PATIENCE_S
            continue
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"model_dir {estimator.model_dir} has had no new checkpoint for {_PATIENCE_S:g} s; the last is "
                f"{seen}, and training ends at step {train_spec.max_steps}"
            )
        time.sleep(_LOOK_S)
    return found
