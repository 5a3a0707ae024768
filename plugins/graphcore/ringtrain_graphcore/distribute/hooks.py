"""Session hooks that write an Estimator's checkpoints, summaries and log lines, and report progress."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringtrain.report import report
from ringtrain_graphcore.distribute.specs import EstimatorSpec, RunConfig

_v1 = tf.compat.v1


def scaffold_of(spec: EstimatorSpec, config: RunConfig) -> Any:
    """Return the scaffold of `spec`; if the scaffold has no saver, add a saver with the limits in `config`."""
    if spec.scaffold is not None and spec.scaffold.saver is not None:
        return spec.scaffold
    saver = _v1.train.Saver(
        max_to_keep=config.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
        save_relative_paths=True,
    )
    return _v1.train.Scaffold(saver=saver, copy_from_scaffold=spec.scaffold)


def hooks_of_rank_0(spec: EstimatorSpec, config: RunConfig, scaffold: Any, listeners: Sequence[Any]) -> list[Any]:
    """Return rank 0's hooks, which log, save checkpoints, and write summaries: loss, steps per second, and the
    summaries of `model_fn`."""
    global_step = _v1.train.get_global_step()
    hooks = list(spec.training_chief_hooks or ())
    if every := config.log_step_count_steps:
        hooks.append(_v1.train.LoggingTensorHook({"loss": spec.loss, "step": global_step}, every_n_iter=every))
        hooks.append(_v1.train.StepCounterHook(every_n_steps=every, output_dir=config.model_dir))
    if every := config.save_summary_steps:
        _v1.summary.scalar("loss", tf.reduce_mean(spec.loss))
        hooks.append(_v1.train.SummarySaverHook(every, output_dir=config.model_dir, scaffold=scaffold))
    if config.save_checkpoints_steps or config.save_checkpoints_secs:
        hooks.append(
            _v1.train.CheckpointSaverHook(
                config.model_dir,
                save_secs=config.save_checkpoints_secs,
                save_steps=config.save_checkpoints_steps,
                scaffold=scaffold,
                listeners=list(listeners),
                save_graph_def=config.checkpoint_save_graph_def,
            )
        )
    return hooks


class EstimatorReportHook(tf.compat.v1.train.SessionRunHook):
    """Hook that reports this rank's progress to the launcher. `total`: number of the last step, if known."""

    def __init__(self, loss: Any, global_step: Any, total: int | None) -> None:
        self._loss, self._global_step, self._total = loss, global_step, total
        self._step = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._step = int(session.run(self._global_step))

    def before_run(self, run_context: Any) -> Any:
        return _v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._step += 1  # a fetched global step may be the one before the step or the one after it
        report(step=self._step, loss=float(np.mean(run_values.results)), total_steps=self._total)
