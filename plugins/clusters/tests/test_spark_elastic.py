"""ringtrain.spark.run_elastic on real Spark: executors are lost and replaced while ranks train. Tests compare the
samples of each step and the bits of the final weights with an undisturbed training."""

import inspect
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install -r requirements-frameworks.txt")
if not shutil.which("java"):
    pytest.skip("Spark needs Java: apt install default-jre-headless", allow_module_level=True)

from pyspark.sql import SparkSession
from spark_sessions import jvm, session
from support.elastic_training import ledger_of
from support.gang import until
from support.planned_changes import undisturbed
from support.planned_training import STEPS

import ringtrain.spark
from ringtrain.errors import ConfigurationError, RankFailed

TESTS = str(Path(__file__).parents[3] / "tests")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with jvm(), session(tmp_path_factory.mktemp("spark"), spark_task_maxFailures="8") as made:
        yield made


def trains(kind: str, holds: dict[int, int]) -> Callable[[], tuple[int, int, list[str], str]]:
    """Rank, size, ledger and digest of the training. `holds`: sizes of the world that steps wait for: what makes
    the world that small comes while they wait, or it would have grown again."""

    def train() -> tuple[int, int, list[str], str]:
        import time

        from support import planned_training as training
        from support.elastic_training import BATCH, SAMPLES, SEED, digest_of

        import ringtrain as rt

        def hold(state: Any, step: int) -> None:
            began = time.monotonic()
            while rt.size() != holds.get(step, rt.size()):
                if time.monotonic() - began > 200:
                    raise TimeoutError(f"step {step} waits for {holds[step]} ranks, and there are {rt.size()}")
                time.sleep(training.STEP_S)
                state.check_host_updates()

        training.hold = hold
        rt.init()
        kept = training.KINDS[kind]()
        shard = rt.elastic.shard(SAMPLES, rt.elastic.FixedGlobal(BATCH), seed=SEED)
        state = rt.elastic.State(**kept.values, shard=shard, step=0, ledger=[])
        rt.elastic.run(lambda state: training.train(state, kept, {"step": 0}))(state)
        return rt.rank(), rt.size(), state.ledger, digest_of(kept.weights(state))

    return train


def run(directory: Path, kind: str, holds: dict[int, int], **options: Any) -> list[Any]:
    env = {"DIRECTORY": str(directory), "OPENBLAS_NUM_THREADS": "1", "RINGTRAIN_TIMEOUT": "20"}
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    return ringtrain.spark.run_elastic(
        trains(kind, holds), env={**env, "PYTHONPATH": path}, log_dir=directory, stdout=io.StringIO(), **options
    )


def executors() -> list[psutil.Process]:
    """Return the session's executors, each a JVM."""
    below = psutil.Process().children(recursive=True)
    return [one for one in below if "CoarseGrainedExecutorBackend" in " ".join(_command(one))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize("kind", ["host", "arrays"])
def test_an_executor_that_is_lost(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """The other rank goes on; the lost one is back with Spark's next executor; each sample counts in its step."""

    def kill_one() -> None:
        until("step 10", lambda: (tmp_path / "step-10").exists())
        executors()[-1].kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    found = run(tmp_path, kind, {8: 2, 12: 1, 40: 2}, num_proc=2, min_num_proc=1)
    killer.join()
    undisturbed_run = (ledger_of(STEPS), undisturbed(kind))
    assert [(rank, size) for rank, size, _, _ in found] == [(0, 2), (1, 2)]
    assert [(ledger, digest) for _, _, ledger, digest in found] == [undisturbed_run] * 2


def test_more_tasks_than_slots(spark: SparkSession, tmp_path: Path) -> None:
    """Ranks begin with `num_proc`, grow with the tasks that Spark runs, and tasks that never ran leave nothing."""
    found = run(tmp_path, "host", {8: 2}, num_proc=1, max_num_proc=4)
    assert [(rank, size, ledger) for rank, size, ledger, _ in found] == [(n, 2, ledger_of(STEPS)) for n in (0, 1)]


def test_a_function_that_raises(spark: SparkSession, tmp_path: Path) -> None:
    """If all ranks raise, the run ends with the traceback."""

    def fails() -> None:
        import ringtrain as rt

        rt.init()
        raise ValueError("no such file")

    with pytest.raises(RankFailed, match="ValueError: no such file"):
        ringtrain.spark.run_elastic(fails, num_proc=2, min_num_proc=1, log_dir=tmp_path, stdout=io.StringIO())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_proc": 0}, "num_proc is 0"),
        ({"num_proc": 2, "min_num_proc": 3}, "num_proc is 2; expected a number from min_num_proc, 3,"),
        ({"num_proc": 2, "max_num_proc": 1}, "to max_num_proc, 1"),
        ({"num_proc": 3, "start_timeout": 0.1}, "num_proc is 3, but local.* has only 2 task slots"),
    ],
)
def test_numbers_that_cannot_be(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    """Said before anything starts."""
    with pytest.raises(ConfigurationError, match=message):
        ringtrain.spark.run_elastic(lambda: None, **options)


def test_horovods_arguments() -> None:
    """Arguments are in the order of Horovod 0.28.1; additional ones follow, by name only."""
    names = list(inspect.signature(ringtrain.spark.run_elastic).parameters)
    assert names == [
        *("fn", "args", "kwargs", "num_proc", "min_num_proc", "max_num_proc", "start_timeout", "elastic_timeout"),
        *("reset_limit", "env", "stdout", "stderr", "verbose", "nics", "prefix_output_with_timestamp"),
        *("min_np", "max_np", "log_dir"),
    ]
