"""What a model function returns, and how an Estimator is to train and evaluate: with `tf.estimator`'s names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ringtrain.errors import ConfigurationError, kind_of


class ModeKeys:
    """Values of `mode`."""

    TRAIN: Final = "train"
    EVAL: Final = "eval"
    PREDICT: Final = "infer"


@dataclass(frozen=True)
class EstimatorSpec:
    """What `model_fn` returns.

    `train_op`: the operation of a training step. `host_call`: `(fn, gradients)` in its place, or beside it: the
    gradients are averaged over all ranks, and `fn(*gradients)` returns the operation that updates the weights, on
    the host. `eval_metric_ops`: `(value, update)` by name, as `tf.compat.v1.metrics` has them. `predictions`: a
    tensor, or tensors by name.
    """

    mode: str
    loss: Any = None
    train_op: Any = None
    host_call: tuple[Callable[..., Any], Sequence[Any]] | None = None
    eval_metric_ops: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    predictions: Any = None

    def __post_init__(self) -> None:
        if self.mode == ModeKeys.PREDICT:
            missing = [] if self.predictions is not None else ["predictions"]
        else:
            missing = [] if self.loss is not None else ["loss"]
        if self.mode == ModeKeys.TRAIN and self.train_op is None and self.host_call is None:
            missing.append("train_op or host_call")
        if missing:
            raise ConfigurationError(f"EstimatorSpec(mode={self.mode!r}) has no {' and no '.join(missing)}")
        if self.host_call is not None:
            _check_host_call(self.host_call)


def _check_host_call(host_call: Any) -> None:
    if not isinstance(host_call, tuple) or len(host_call) != 2 or not callable(host_call[0]):
        raise ConfigurationError(f"host_call is {kind_of(host_call)}; expected (function, gradients)")
    if not host_call[1] or any(gradient is None for gradient in host_call[1]):
        raise ConfigurationError(
            f"host_call has the gradients {list(host_call[1])!r}; expected at least one, and none that is None: a "
            "variable that the loss does not depend on has no gradient"
        )


@dataclass(frozen=True)
class RunConfig:
    """How an Estimator runs. `train_distribute`: a strategy of this module; None: `MultiWorkerStrategy()`.

    Checkpoints are rank 0's, every `save_checkpoints_steps` steps and at the end; `keep_checkpoint_max` are kept.
    """

    train_distribute: Any = None
    save_checkpoints_steps: int = 1000
    log_step_count_steps: int = 100
    keep_checkpoint_max: int = 5
    tf_random_seed: int | None = None
    session_config: Any = None


@dataclass(frozen=True)
class TrainSpec:
    """The training of `train_and_evaluate`."""

    input_fn: Callable[..., Any]
    max_steps: int
    hooks: Sequence[Any] = ()


@dataclass(frozen=True)
class EvalSpec:
    """The evaluation of `train_and_evaluate`. `steps`: batches; None: until the input ends. `throttle_secs`:
    at most one evaluation in so many seconds while training goes on."""

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    throttle_secs: float = 600
