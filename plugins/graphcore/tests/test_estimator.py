"""Checks of the Estimator and of resolvers in one process and in small worlds, forked from one that has Keras."""

import json
import logging
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from frameworks.horovod_names import differences
from support.ports import free_addresses
from support.ranks import Outcome, ranks_ended, run_ranks

RUN_IN = {"framework": "keras"}

FORK = multiprocessing.get_context("fork")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "RINGTRAIN_TIMEOUT": "60"}


def in_one_process(function: Callable[..., Any], *args: Any, **env: str) -> Any:
    """Return the result of `function(*args)` in a process whose only variables of this project are `env`."""
    return run_ranks(function, 1, *args, env_of=lambda _: {**QUIET, **env}, context=FORK)[0]


def tf_config(kind: str, index: int, **cluster: list[str]) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def linear(features: Any, labels: Any, mode: str, params: Any) -> Any:
    import tensorflow as tf

    from ringtrain.tensorflow import distribute

    v1 = tf.compat.v1
    weights = v1.get_variable("w", initializer=tf.ones([2]))
    predictions = tf.linalg.matvec(features, weights)
    if mode == distribute.ModeKeys.PREDICT:
        return distribute.EstimatorSpec(mode, predictions={"y": predictions, "twice": 2 * predictions})
    loss = tf.reduce_mean(tf.square(predictions - labels))
    if mode == distribute.ModeKeys.EVAL:
        return distribute.EstimatorSpec(mode, loss=loss, evaluation_hooks=params.get("hooks"))
    v1.summary.scalar("mine", loss)
    gradients = tf.gradients(loss, [weights])

    def update(gradient: Any) -> Any:
        return v1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, weights)])

    return distribute.EstimatorSpec(mode, loss=loss, host_call=(update, gradients), training_hooks=params.get("hooks"))


def endless() -> Any:
    import numpy as np
    import tensorflow as tf

    x = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32) / 8
    return tf.data.Dataset.from_tensor_slices((x, 3 * x.sum(1))).repeat().batch(4)


def _settings(by_resolver: bool) -> dict[str, Any]:
    import tensorflow as tf

    import ringtrain.tensorflow as hvd
    from ringtrain._core.process_groups import context
    from ringtrain.tensorflow import distribute

    if by_resolver:
        distribute.MultiWorkerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    else:
        hvd.init()
    return asdict(context.current().config)


def test_a_resolver_keeps_every_setting_of_the_environment():
    """The world that a resolver makes has all that `init()` reads of the environment, Horovod's names, too."""
    with tempfile.TemporaryDirectory() as folder:
        env = {
            "TF_CONFIG": tf_config("worker", 0, worker=free_addresses(1)),
            "RINGTRAIN_TIMEOUT": "7",
            "RINGTRAIN_TOKEN": "of this job",
            "RINGTRAIN_TRANSPORT": "grpc",
            "RINGTRAIN_DATA_PATH": "grpcio",
            "RINGTRAIN_TIMELINE": f"{folder}/timeline",
            "RINGTRAIN_CHECKPOINT_DIR": folder,
            "RINGTRAIN_RESTORE_FROM": "earlier",
            "RINGTRAIN_TRACEBACKS": "1",
            "RINGTRAIN_ATTEMPT": "3",
            "HOROVOD_LOG_LEVEL": "debug",
        }
        init, resolver = (in_one_process(_settings, by_resolver, **env) for by_resolver in (False, True))
    assert resolver == init
    found = init["waits"]["timeout_s"], init["trust"]["token_text"], init["source"]
    assert found == (7.0, "of this job", "tf_config")


def test_a_resolver_does_not_replace_the_addresses_of_a_job():
    """A job's agent gives ranks their addresses, and a TF_CONFIG with the ports of TensorFlow."""
    ring = ",".join(free_addresses(1))
    env = {"TF_CONFIG": tf_config("worker", 0, worker=["elsewhere:1"]), "RINGTRAIN_RING_ADDRESSES": ring}
    env |= {"RINGTRAIN_RANK": "0", "RINGTRAIN_SIZE": "1"}
    assert in_one_process(_settings, True, **env)["addresses"] == (ring,)


def _fit_as(folder: str) -> None:
    from ringtrain.tensorflow import distribute

    distribute.Estimator(linear, folder).train(endless, max_steps=2)


def test_tasks_that_do_not_train_leave_model_dir_alone():
    """A parameter server has nothing to do, and an evaluator does not train."""
    workers = free_addresses(2)
    with tempfile.TemporaryDirectory() as folder:
        for kind, expected in (("ps", "the parameter server ps 0"), ("evaluator", "the evaluator, which does not")):
            config = tf_config(kind, 0, worker=workers, **{kind: free_addresses(1)})
            ended = _ended(_fit_as, folder, TF_CONFIG=config)
            assert ended.error is not None
            assert expected in ended.error
        assert list(Path(folder).iterdir()) == []


def _ended(function: Callable[..., Any], *args: Any, **env: str) -> Outcome:
    return ranks_ended(function, 1, *args, env_of=lambda _: {**QUIET, **env}, context=FORK)[0]


def _chief_of(addresses: list[str]) -> tuple[int, int]:
    import tensorflow as tf

    import ringtrain.tensorflow as hvd
    from ringtrain.tensorflow import distribute

    distribute.MultiWorkerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    return hvd.rank(), hvd.size()


def test_the_chief_is_rank_0():
    addresses = free_addresses(3)
    tasks = [("worker", 0), ("worker", 1), ("chief", 0)]

    def env_of(place: int) -> dict[str, str]:
        kind, index = tasks[place]
        return {**QUIET, "TF_CONFIG": tf_config(kind, index, chief=addresses[:1], worker=addresses[1:])}

    found = run_ranks(_chief_of, 3, addresses, env_of=env_of, context=FORK)
    assert found == [(1, 3), (2, 3), (0, 3)]


def _without_model_dir() -> list[tuple[str, int]]:
    from ringtrain.tensorflow import distribute

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tensorflow").addHandler(handler)
    found = []
    for _ in range(2):
        made = distribute.Estimator(linear)
        made.train(endless, max_steps=2)
        found.append((made.model_dir, int(made.get_variable_value("global_step"))))
        assert any(made.model_dir in line for line in said)
    by_config = distribute.Estimator(linear, config=distribute.RunConfig(model_dir=found[0][0]))
    assert by_config.model_dir == found[0][0]
    with pytest.raises(ValueError, match=r"model_dir is a, but config\.model_dir is b; pass one of them"):
        distribute.Estimator(linear, "a", distribute.RunConfig(model_dir="b"))
    return found


def test_without_model_dir_each_estimator_has_a_new_folder_that_is_named():
    """The folder is RunConfig's or a new one, as in tf.estimator; a second run starts without checkpoints."""
    (first, step), (second, again) = in_one_process(_without_model_dir)
    assert first != second
    assert (step, again) == (2, 2)
    assert not Path("None").exists()


def test_names_and_defaults_are_those_of_tf_estimator():
    from ringtrain.tensorflow import distribute

    assert differences("tf.estimator", distribute, "estimator_names.txt") == []


def _asked_for() -> list[dict[str, Any]]:
    import functools

    from ringtrain.tensorflow import distribute

    asked: list[dict[str, Any]] = []

    def note(**given: Any) -> Any:
        asked.append(given)
        return endless()

    def every(mode: Any, params: Any, config: Any, input_context: Any) -> Any:
        return note(mode=mode, params=params, config=config.model_dir, pipelines=input_context.num_input_pipelines)

    with tempfile.TemporaryDirectory() as folder:
        made = distribute.Estimator(linear, folder, params={"rows": 4})
        made.train(every, max_steps=1)
        made.evaluate(lambda mode=None: note(mode=mode), steps=1)
        next(made.predict(lambda params, mode: note(mode=mode, params=params)))
        made.train(functools.partial(lambda mode, params: note(mode=mode), mode="bound"), steps=1)
        assert asked[0].pop("config") == folder
    return asked


def test_input_fn_gets_what_it_asks_for_by_name():
    """mode, params, config and input_context, in any mix, with a default or without; not what is bound."""
    train = {"mode": "train", "params": {"rows": 4}, "pipelines": 1}
    predict = {"mode": "infer", "params": {"rows": 4}}
    assert in_one_process(_asked_for) == [train, {"mode": "eval"}, predict, {"mode": "bound"}]


class Counting:
    """Hook that counts the calls of each of its methods."""

    def __init__(self) -> None:
        import tensorflow as tf

        class Hook(tf.compat.v1.train.SessionRunHook):
            runs = 0

            def after_run(self, run_context: Any, run_values: Any) -> None:
                type(self).runs += 1

        self.hook = Hook()

    @property
    def runs(self) -> int:
        return type(self.hook).runs


def _trained_as_asked() -> None:
    import numpy as np
    import tensorflow as tf

    from ringtrain.tensorflow import distribute

    given, of_spec = Counting(), Counting()
    with tempfile.TemporaryDirectory() as folder:
        config = distribute.RunConfig(save_checkpoints_steps=2, save_summary_steps=1, log_step_count_steps=1)
        made = distribute.Estimator(linear, folder, config, {"hooks": [of_spec.hook]})
        made.train(endless, [given.hook], None, 3)  # tf.estimator's positions
        assert made.get_variable_value("global_step") == 3
        made.train(endless, steps=2)
        assert made.get_variable_value("global_step") == 5
        assert (given.runs, of_spec.runs) == (3, 5)
        assert made.get_variable_names() == ["global_step", "w"]
        older = next(path for path in tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths if "-2" in path)
        found = made.evaluate(endless, 2, [given.hook], older, "old")
        assert (found["global_step"], given.runs, of_spec.runs) == (2, 5, 7)
        assert made.evaluate(endless, steps=1)["loss"] < found["loss"]
        tags = {tag for path in Path(folder).rglob("events*") for tag in _tags(path)}
        assert {"loss", "mine", "global_step/sec"} <= tags
        assert Path(made.eval_dir("old")).name == "eval_old"
        one = next(made.predict(endless))
        whole = next(made.predict(endless, "y", yield_single_examples=False))
        assert (set(one), set(whole), whole["y"].shape) == ({"y", "twice"}, {"y"}, (4,))
        exported = made.export_saved_model(f"{folder}/served", _receiver)
        served = tf.saved_model.load(exported).signatures["serving_default"]
        answer = served(tf.constant([[0.125, 0.25]]))
        np.testing.assert_allclose(answer["y"], [one["y"]], rtol=1e-6)
        warm = distribute.Estimator(linear, f"{folder}/warm", warm_start_from=older)
        warm.train(endless, max_steps=1)
        assert warm.get_variable_value("global_step") == 1
        assert not np.allclose(warm.get_variable_value("w"), tf.train.load_variable(f"{folder}/model.ckpt-0", "w"))
        for wrong, expected in (
            ({"steps": 1, "max_steps": 1}, "pass one of them"),
            ({"steps": 0}, "1 or more"),
        ):
            with pytest.raises(ValueError, match=expected):
                made.train(endless, **wrong)


def _tags(path: Path) -> Iterator[str]:
    import tensorflow as tf

    for event in tf.compat.v1.train.summary_iterator(str(path)):
        yield from (value.tag for value in event.summary.value)


def _receiver() -> Any:
    from types import SimpleNamespace

    import tensorflow as tf

    x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
    return SimpleNamespace(features=x, receiver_tensors={"x": x})


def test_an_estimator_does_what_its_arguments_say():
    in_one_process(_trained_as_asked)


def _predicted_from_endless_input() -> int:
    import itertools

    import tensorflow as tf

    from ringtrain.tensorflow import distribute

    with tempfile.TemporaryDirectory() as folder:
        made = distribute.Estimator(linear, folder)
        made.train(endless, max_steps=1)
        predictions = made.predict(endless)
        first = list(itertools.islice(predictions, 10))
        assert tf.executing_eagerly()  # the graph is not the caller's between two predictions
        predictions.close()
    return len(first)


def test_predictions_come_one_by_one_of_an_input_without_end():
    assert in_one_process(_predicted_from_endless_input) == 10


def _exported() -> list[tuple[str, bool]]:
    from ringtrain.tensorflow import distribute

    class Exporter:
        name = "mine"

        def __init__(self) -> None:
            self.exported: list[tuple[str, bool]] = []

        def export(
            self,
            estimator: Any,
            export_path: str,
            checkpoint_path: str,
            eval_result: Any,
            is_the_final_export: bool,
        ) -> None:
            assert eval_result["global_step"] == int(checkpoint_path.rsplit("-", 1)[1])
            self.exported.append((Path(export_path).name, is_the_final_export))

    exporter, hook = Exporter(), Counting()
    with tempfile.TemporaryDirectory() as folder:
        config = distribute.RunConfig(save_checkpoints_steps=2)
        distribute.train_and_evaluate(
            distribute.Estimator(linear, folder, config),
            distribute.TrainSpec(endless, 5),
            distribute.EvalSpec(endless, 1, hooks=[hook.hook], exporters=exporter, throttle_secs=0),
        )
    assert hook.runs == 3
    return exporter.exported


def test_exporters_and_hooks_of_an_evaluation_are_called():
    assert in_one_process(_exported) == [("mine", False), ("mine", False), ("mine", True)]
