"""Estimator: the training loop of `tf.estimator`, which TensorFlow 2 has removed, on many ranks."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import ringtrain as rt
from ringtrain.errors import ConfigurationError
from ringtrain.report import report
from ringtrain_graphcore.distribute import export
from ringtrain_graphcore.distribute.graphs import EstimatorModelFunction, training_operation
from ringtrain_graphcore.distribute.specs import EstimatorSpec, ModeKeys, RunConfig
from ringtrain_graphcore.distribute.strategy import HorovodStrategy, MultiWorkerStrategy
from ringtrain_tensorflow.objects import broadcast_object
from ringtrain_tensorflow.variables import BroadcastGlobalVariablesHook


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


_v1 = tf.compat.v1


class Estimator:
    """Estimator that trains, evaluates and exports the model of `model_fn(features, labels, mode, params, config)`.

        estimator = Estimator(model_fn, model_dir="model", config=RunConfig())
        estimator.train(input_fn, max_steps=1000)          # goes on from the newest checkpoint in model_dir
        estimator.evaluate(test_fn)                        # {"accuracy": …, "loss": …, "global_step": 1000}

    `model_fn` is called in a `tf.compat.v1` graph and returns an `EstimatorSpec`; an `input_fn` may have arguments
    named `mode`, `params`, `config` and `input_context`. Every rank creates and calls the Estimator equally; only rank
    0 reads and writes `model_dir` while training, and sends its weights to the others. Rank 0 logs TensorFlow's lines
    (`loss = 0.3, step = 100 (1.2 sec)`) with `tf.compat.v1.logging` at INFO.

    `model_dir`: folder of checkpoints; the default is the folder of `config`, otherwise a new folder whose name rank 0
    logs. `warm_start_from`: a checkpoint with the initial weights, used if `model_dir` has no checkpoint.
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        """Initialize Ringtrain and choose the model directory. Collective."""
        config = config or RunConfig()
        self.strategy: HorovodStrategy = config.train_distribute or MultiWorkerStrategy()
        self.model_dir = _estimator_model_dir(model_dir, config)
        self.config = config.replace(model_dir=self.model_dir)
        self.model_fn = model_fn
        self._params = copy.deepcopy(dict(params or {}))
        self._model = EstimatorModelFunction(model_fn, self._params, self.config)
        self._warm_start_from = warm_start_from

    @property
    def params(self) -> dict[str, Any]:
        """Copy of the argument `params`."""
        return copy.deepcopy(self._params)

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> "Estimator":
        """Train, and return this estimator: for `steps` more steps, or until the global step (which checkpoints
        restore) is `max_steps`. With neither, train until the input ends.

        The input must have the same number of batches on every rank; a rank whose input ends early causes an error on
        all others. `saving_listeners`: rank 0's, called after it has saved a checkpoint. Collective.
        """
        last_step = self._last_step(steps, max_steps)
        if last_step is not None and broadcast_object(self._saved_step(), 0) >= last_step:
            _v1.logging.info("Skipping training since max_steps has already saved.")
            return self
        with self._graph() as graph:
            global_step = _v1.train.get_or_create_global_step()
            elements = self._model.input_of(input_fn, ModeKeys.TRAIN, self.strategy.input_context)
            spec = self._model.build(self.strategy, ModeKeys.TRAIN, elements)
            operation = training_operation(spec, self.strategy, graph, global_step)
            self._warm_start()
            scaffold = scaffold_of(spec, self.config)
            chosen = [
                BroadcastGlobalVariablesHook(0),
                *([] if last_step is None else [_v1.train.StopAtStepHook(last_step=last_step)]),
                _v1.train.NanTensorHook(spec.loss),
                EstimatorReportHook(spec.loss, global_step, last_step),
                *(hooks or ()),
                *(spec.training_hooks or ()),
            ]
            if rt.rank() == 0:
                chosen += hooks_of_rank_0(spec, self.config, scaffold, saving_listeners or ())
            creator = _v1.train.ChiefSessionCreator(
                scaffold,
                config=self.config.session_config,
                checkpoint_dir=self.model_dir if not rt.rank() else None,
            )
            with _v1.train.MonitoredSession(creator, hooks=chosen) as session:
                while not session.should_stop():
                    session.run(operation)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Return metrics of a checkpoint (the newest by default) over `steps` batches or all input. Collective: rank 0
        evaluates, and every rank returns its result. Raises ConfigurationError without a checkpoint."""
        found: Any = None
        if rt.rank() == 0:
            try:
                found = self.evaluate_here(input_fn, steps, hooks, checkpoint_path, name)
            except ConfigurationError as error:  # otherwise the other ranks would wait for the result
                found = str(error)
        found = broadcast_object(found, 0)
        if isinstance(found, str):
            raise ConfigurationError(found)
        return dict(found)

    def evaluate_here(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate on this rank alone; return the metrics and write them for TensorBoard to `eval_dir(name)`."""
        with self._graph():
            global_step = _v1.train.get_or_create_global_step()
            elements = self._model.input_of(input_fn, ModeKeys.EVAL)
            spec = self._model.build(self.strategy, ModeKeys.EVAL, elements)
            metrics = {"loss": _v1.metrics.mean(spec.loss), **(spec.eval_metric_ops or {})}
            updates = tf.group(*(update for _, update in metrics.values()))
            values = {**{key: value for key, (value, _) in metrics.items()}, "global_step": global_step}
            final = _v1.train.FinalOpsHook(values)
            chosen = [*(hooks or ()), *(spec.evaluation_hooks or ()), final]
            with self._restored(spec, checkpoint_path, chosen) as session:
                done = 0
                while not session.should_stop() and (steps is None or done < steps):
                    session.run(updates)
                    done += 1
            if not done:
                raise ConfigurationError("evaluate: input_fn returned no batch; expected at least one")
        found = {key: _plain_evaluation_value(value) for key, value in final.final_ops_values.items()}
        shown = ", ".join(f"{key} = {found[key]}" for key in sorted(found))
        of = f" {name}" if name else ""
        _v1.logging.info("Saving dict%s for global step %d: %s", of, found["global_step"], shown)
        _write_evaluation_summary(self.eval_dir(name), found)
        return found

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yield the predictions of a checkpoint (the newest by default), one example at a time, or a batch with
        `yield_single_examples=False`. Named predictions are dicts with the keys `predict_keys` (default: all). Runs on
        this rank alone. Raises ConfigurationError without a checkpoint."""
        with self._graph():
            _v1.train.get_or_create_global_step()
            elements = self._model.input_of(input_fn, ModeKeys.PREDICT)
            features = elements[0] if isinstance(elements, tuple) and len(elements) == 2 else elements
            spec = self._model.build(self.strategy, ModeKeys.PREDICT, features)
            wanted = _wanted_predictions(spec.predictions, predict_keys)
            made = self._restored(spec, checkpoint_path, [*(hooks or ()), *(spec.prediction_hooks or ())])
        # outside of the graph, which must not be the caller's default while this generator is suspended
        with made as session:
            while not session.should_stop():
                batch = session.run(wanted)
                yield from _prediction_examples(batch) if yield_single_examples else (batch,)

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> str:
        """Write the model of a checkpoint (the newest by default) as a SavedModel to a new folder in `export_dir_base`;
        return its path. Runs on this rank alone. Raises ConfigurationError without a checkpoint.

        `serving_input_receiver_fn()` returns an object with `features` and `receiver_tensors`.
        """
        with self._graph():
            _v1.train.get_or_create_global_step()
            receiver = serving_input_receiver_fn()
            spec = self._model.build(self.strategy, experimental_mode, receiver.features)
            path = self._checkpoint(checkpoint_path)
            session_config = self.config.session_config
            return export.write_saved_model(
                export_dir_base, receiver, spec, path, session_config, assets_extra, as_text
            )

    def latest_checkpoint(self) -> str | None:
        """Return the path of the newest checkpoint in the model directory, or None."""
        return tf.train.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Return the names of variables in the newest checkpoint. Raises ConfigurationError without one."""
        return [name for name, _ in tf.train.list_variables(self._checkpoint(None))]

    def get_variable_value(self, name: str) -> Any:
        """Return the value of a variable in the newest checkpoint. Raises ConfigurationError without one."""
        path = self._checkpoint(None)
        if name not in (names := self.get_variable_names()):
            raise ConfigurationError(f"the checkpoint {path} has no variable {name!r}; it has {', '.join(names)}")
        return tf.train.load_variable(path, name)

    def eval_dir(self, name: str | None = None) -> str:
        """Return the directory for TensorBoard summaries of the evaluation `name`."""
        return str(Path(self.model_dir, f"eval_{name}" if name else "eval"))

    def _last_step(self, steps: int | None, max_steps: int | None) -> int | None:
        if self.config.task_type == "evaluator":
            raise ConfigurationError(
                "TF_CONFIG makes this process the evaluator, which does not train; call "
                "train_and_evaluate, or evaluate()"
            )
        if steps is not None and max_steps is not None:
            raise ConfigurationError(f"steps={steps} and max_steps={max_steps} are both set; pass one of them")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value <= 0:
                raise ConfigurationError(f"{name} is {value}; expected 1 or more")
        return max_steps if steps is None else int(broadcast_object(self._saved_step(), 0)) + steps

    def _saved_step(self) -> int:
        path = self.latest_checkpoint()
        return 0 if path is None else int(tf.train.load_variable(path, "global_step"))

    def _checkpoint(self, path: str | None) -> str:
        if (found := path or self.latest_checkpoint()) is None:
            raise ConfigurationError(f"model_dir {self.model_dir} has no checkpoint; train first")
        return found

    def _warm_start(self) -> None:
        given = self._warm_start_from
        if given is None or rt.rank() or self.latest_checkpoint() is not None:
            return  # the other ranks receive rank 0's weights
        _v1.train.warm_start(*(given if isinstance(given, tuple) else (given,)))

    @contextmanager
    def _graph(self) -> Iterator[Any]:
        with tf.Graph().as_default() as graph:
            _v1.set_random_seed(self.config.tf_random_seed)
            yield graph

    def _restored(self, spec: EstimatorSpec, path: str | None, hooks: Sequence[Any]) -> Any:
        creator = _v1.train.ChiefSessionCreator(
            scaffold_of(spec, self.config),
            config=self.config.session_config,
            checkpoint_filename_with_path=self._checkpoint(path),
        )
        return _v1.train.MonitoredSession(creator, hooks=hooks)


def _estimator_model_dir(given: str | None, config: RunConfig) -> str:
    if given is not None and config.model_dir is not None and str(given) != str(config.model_dir):
        raise ConfigurationError(f"model_dir is {given}, but config.model_dir is {config.model_dir}; pass one of them")
    if (chosen := given or config.model_dir) is not None:
        return str(chosen)
    if config.task_type == "evaluator":
        raise ConfigurationError("model_dir is None; pass the folder to which rank 0 writes checkpoints")
    made = tempfile.mkdtemp(prefix="model-")
    if rt.rank() == 0:
        _v1.logging.warning("model_dir is None; this run writes its checkpoints to the new folder %s", made)
    return made


def _wanted_predictions(predictions: Any, keys: Any) -> Any:
    if keys is None:
        return predictions
    if not isinstance(predictions, dict):
        raise ConfigurationError(
            "predict_keys is set, but the predictions of model_fn are not a dictionary; return a dictionary of tensors"
        )
    chosen = [keys] if isinstance(keys, str) else list(keys)
    if missing := sorted(set(chosen) - set(predictions)):
        raise ConfigurationError(f"predict_keys has {missing[0]!r}; expected some of {', '.join(predictions)}")
    return {key: predictions[key] for key in chosen}


def _prediction_examples(batch: Any) -> Iterator[Any]:
    if not isinstance(batch, dict):
        yield from batch
        return
    for row in range(len(next(iter(batch.values())))):
        yield {key: part[row] for key, part in batch.items()}


def _write_evaluation_summary(directory: str, found: Mapping[str, Any]) -> None:
    numbers = {key: value for key, value in found.items() if isinstance(value, int | float)}
    step = numbers.pop("global_step")
    values = [_v1.Summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
    with tf.Graph().as_default(), _v1.summary.FileWriter(directory) as writer:
        writer.add_summary(_v1.Summary(value=values), step)


def _plain_evaluation_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
