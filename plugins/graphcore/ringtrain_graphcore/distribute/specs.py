"""Classes with `tf.estimator`'s names for the result of a model function and the settings of training and
evaluation."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ringtrain as rt
from ringtrain.adapter import current_world
from ringtrain.errors import ConfigurationError, kind_of


class ModeKeys:
    """Values of `mode`."""

    TRAIN: Final = "train"
    EVAL: Final = "eval"
    PREDICT: Final = "infer"


@dataclass(frozen=True)
class EstimatorSpec:
    """Result of `model_fn`, with the arguments of `tf.estimator.EstimatorSpec` and `host_call`.

    `train_op`: the operation of a training step. `host_call`: `(fn, gradients)`, which replaces or extends `train_op`:
    the gradients are averaged over all ranks, and `fn(*gradients)` returns the operation that updates the weights, on
    the host. `eval_metric_ops`: `(value, update)` by name, as in `tf.compat.v1.metrics`. `predictions`: a tensor, or
    tensors by name. `export_outputs`: for each name of a signature, tensors by name or an object with
    `as_signature_def`. `training_chief_hooks`: hooks that only rank 0 runs.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, tuple[Any, Any]] | None = None
    export_outputs: Mapping[str, Any] | None = None
    training_chief_hooks: Sequence[Any] | None = None
    training_hooks: Sequence[Any] | None = None
    scaffold: Any = None
    evaluation_hooks: Sequence[Any] | None = None
    prediction_hooks: Sequence[Any] | None = None
    host_call: tuple[Callable[..., Any], Sequence[Any]] | None = None

    def __post_init__(self) -> None:
        if self.mode == ModeKeys.PREDICT:
            missing = [] if self.predictions is not None else ["predictions"]
        else:
            missing = [] if self.loss is not None else ["loss"]
        if self.mode == ModeKeys.TRAIN and self.train_op is None and self.host_call is None:
            missing.append("train_op or host_call")
        if missing:
            shifted = self.loss is None and self.predictions is not None and self.mode != ModeKeys.PREDICT
            hint = "; after mode come predictions, loss and train_op: give them by name" if shifted else ""
            raise ConfigurationError(f"EstimatorSpec(mode={self.mode!r}) has no {' and no '.join(missing)}{hint}")
        if self.host_call is not None:
            _check_estimator_host_call(self.host_call)


def _check_estimator_host_call(host_call: Any) -> None:
    if not isinstance(host_call, tuple) or len(host_call) != 2 or not callable(host_call[0]):
        raise ConfigurationError(f"host_call is {kind_of(host_call)}; expected (function, gradients)")
    if not host_call[1] or any(gradient is None for gradient in host_call[1]):
        raise ConfigurationError(
            f"host_call has the gradients {list(host_call[1])!r}; expected one or more gradients, none of which is "
            "None; a gradient is None if the loss does not depend on its variable"
        )


class _Default:
    def __repr__(self) -> str:
        return "600 s where neither is given"


_DEFAULT: Final[Any] = _Default()
_DEFAULT_SAVE_SECS: Final = 600
_NO_MEANING: Final = (
    "device_fn",
    "protocol",
    "eval_distribute",
    "experimental_distribute",
    "experimental_max_worker_delay_secs",
)


@dataclass(frozen=True)
class RunConfig:
    """Settings of an Estimator, with the arguments of `tf.estimator.RunConfig`.

    `train_distribute`: a strategy of this module; the default is `MultiWorkerStrategy()`. Rank 0 writes checkpoints
    every `save_checkpoints_steps` steps or `save_checkpoints_secs` seconds, and at the end; by default every 600
    seconds. Rank 0 writes summaries for TensorBoard every `save_summary_steps` steps. The value None switches
    checkpoints or summaries off.
    """

    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = _DEFAULT
    save_checkpoints_secs: float | None = _DEFAULT
    session_config: Any = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float = 10000
    log_step_count_steps: int | None = 100
    train_distribute: Any = None
    device_fn: Any = None
    protocol: Any = None
    eval_distribute: Any = None
    experimental_distribute: Any = None
    experimental_max_worker_delay_secs: Any = None
    session_creation_timeout_secs: float = 7200
    checkpoint_save_graph_def: bool = True

    def __post_init__(self) -> None:
        steps, secs = self.save_checkpoints_steps, self.save_checkpoints_secs
        if _DEFAULT not in (steps, secs) and None not in (steps, secs):
            raise ConfigurationError(
                f"save_checkpoints_steps={steps} and save_checkpoints_secs={secs} are both set; pass one of them"
            )
        both = steps is _DEFAULT and secs is _DEFAULT
        object.__setattr__(self, "save_checkpoints_steps", None if steps is _DEFAULT else steps)
        chosen = _DEFAULT_SAVE_SECS if both else None if secs is _DEFAULT else secs
        object.__setattr__(self, "save_checkpoints_secs", chosen)
        if given := [name for name in _NO_MEANING if getattr(self, name) is not None]:
            warnings.warn(f"RunConfig: ignoring {', '.join(given)}, which Ringtrain does not support", stacklevel=3)

    def replace(self, **changes: Any) -> "RunConfig":
        """Return a copy with the values in `changes`."""
        every = {"save_checkpoints_steps", "save_checkpoints_secs"}
        if len(every & set(changes)) == 1:
            changes = {**dict.fromkeys(every, None), **changes}
        return dataclasses.replace(self, **changes)

    @property
    def is_chief(self) -> bool:
        """Whether this process is rank 0."""
        return rt.rank() == 0 and self.task_type != "evaluator"

    @property
    def task_type(self) -> str:
        """Type of this process in TF_CONFIG; "worker" if it is not set."""
        return current_world().config.role

    @property
    def task_id(self) -> int:
        """Rank of this process."""
        return rt.rank()

    @property
    def global_id_in_cluster(self) -> int:
        """Rank of this process."""
        return rt.rank()

    @property
    def num_worker_replicas(self) -> int:
        """Number of ranks."""
        return rt.size()

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers: always 0."""
        return 0


@dataclass(frozen=True)
class TrainSpec:
    """Training phase of `train_and_evaluate`. `max_steps`: global step at which training ends; None: training ends with
    the input."""

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Any] | None = None
    saving_listeners: Sequence[Any] | None = None


@dataclass(frozen=True)
class EvalSpec:
    """Evaluation phase of `train_and_evaluate`. `steps`: number of batches; None: until the input ends.

    `exporters`: one or several objects with `name` and `export(estimator, export_path, checkpoint_path, eval_result,
    is_the_final_export)`, called after each evaluation. `start_delay_secs`: seconds that a separate evaluator process
    waits before its first evaluation, except for the last checkpoint. `throttle_secs`: minimum seconds between two
    evaluations during training.
    """

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[Any] | None = None
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600
