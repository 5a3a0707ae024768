"""ringtrain.spark on real Spark: ranks are tasks of a barrier stage, in one process and in two executors."""

import io
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install -r requirements-frameworks.txt")
if not shutil.which("java"):
    pytest.skip("Spark needs Java: apt install default-jre-headless", allow_module_level=True)

from pyspark.sql import SparkSession
from spark_sessions import CLUSTER, jvm, session
from support.gang import pid_runs, until

import ringtrain.spark
from ringtrain.errors import ConfigurationError, RankFailed, RingtrainError
from ringtrain.shared.place import RankPlace
from ringtrain_clusters.tasks.plan import Task, task_places

# In this order: Spark starts no executors for a second session of its JVM.
both = pytest.mark.parametrize("spark", [CLUSTER, "local[2]"], ids=["two-executors", "local"], indirect=True)


def test_without_a_session() -> None:
    """The error describes how to create a session."""
    with pytest.raises(ConfigurationError, match="no Spark session is active; create one first"):
        ringtrain.spark.run(trains(), num_proc=1)


@pytest.fixture(scope="module", autouse=True)
def _jvm() -> Iterator[None]:
    with jvm():
        yield


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    master = getattr(request, "param", CLUSTER)
    with session(tmp_path_factory.mktemp("spark"), master, spark_task_maxFailures="1") as made:
        yield made


def trains(step: str = "", rank: int = -1) -> Any:
    """A function that travels by value: ranks can't import the tests."""

    def train(factor: float, offset: float = 0.0) -> tuple[int, float, str, str, str]:
        import os
        import pathlib
        import signal
        import subprocess

        import numpy as np

        import ringtrain as rt

        rt.init()
        print(f"this is rank {rt.rank()} of {rt.size()}")
        if rank == rt.rank() and step == "raise":
            raise ValueError("no such file")
        if rank == rt.rank() and step == "kill the task":
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            pathlib.Path(os.environ["MINE"]).write_text(str(child.pid))
            agent = psutil.Process(os.getppid())
            os.kill(agent.ppid(), signal.SIGKILL)
        total = rt.allreduce(np.full(3, factor * (rt.rank() + 1) + offset), op=rt.Sum)
        local = f"{rt.local_rank()}/{rt.local_size()}/{rt.cross_size()}"
        return rt.rank(), float(total[0]), os.environ.get("MINE", ""), os.environ["LOCAL_RANK"], local

    return train


@both
def test_ranks_meet_and_their_results_come_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """Output of the ranks appears in `stdout` and in a log per rank. Every rank has a separate task and nevertheless a
    local rank, by which a script selects its device."""
    out = io.StringIO()
    keywords = {"offset": 1.0}
    results = ringtrain.spark.run(
        trains(), args=(2.0,), kwargs=keywords, num_proc=2, env={"MINE": "yes"}, stdout=out, log_dir=tmp_path
    )
    assert results == [(rank, 8.0, "yes", str(rank), f"{rank}/2/1") for rank in (0, 1)]
    assert sorted(out.getvalue().splitlines()) == [f"[{rank}] this is rank {rank} of 2" for rank in (0, 1)]
    logs = sorted(tmp_path.glob("spark/*/1/rank-*.log"))
    assert [log.read_text() for log in logs] == [f"this is rank {rank} of 2\n" for rank in (0, 1)]


def test_a_rank_that_raises_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """The error contains the end of the rank's output with the traceback."""
    with pytest.raises(RankFailed, match="ValueError: no such file") as caught:
        ringtrain.spark.run(trains("raise", 1), args=(1.0,), num_proc=2, log_dir=tmp_path, stdout=io.StringIO())
    assert caught.value.rank == 1


def test_results_that_spark_does_not_deliver(spark: SparkSession, tmp_path: Path) -> None:
    """The error has Spark's reason, and names no rank: all have succeeded."""
    with pytest.raises(RingtrainError, match=r"bigger than spark\.driver\.maxResultSize") as caught:
        ringtrain.spark.run(lambda: bytes(2 << 20), num_proc=2, log_dir=tmp_path, stdout=io.StringIO())
    assert not isinstance(caught.value, RankFailed)


def test_a_task_that_dies_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """The error names the rank whose Python is killed; Spark ends all tasks of the stage, and the rank's child
    processes end."""
    with pytest.raises(RankFailed, match="the Spark task of rank 1 ") as caught:
        ringtrain.spark.run(
            *(trains("kill the task", 1), (1.0,)),
            num_proc=2,
            env={"MINE": str(tmp_path / "child")},
            log_dir=tmp_path,
            stdout=io.StringIO(),
        )
    assert caught.value.rank == 1
    child = int((tmp_path / "child").read_text())
    until("the child's end", lambda: not pid_runs(child))


def test_more_ranks_than_slots(spark: SparkSession) -> None:
    """An error with both numbers, where Spark would wait."""
    with pytest.raises(ConfigurationError, match=r"num_proc is 3, but local.* has only 2 task slots"):
        ringtrain.spark.run(trains(), num_proc=3, start_timeout=0.1)


@pytest.mark.parametrize("number", [0, -1, True, 1.5])
def test_a_number_of_ranks_that_is_none(spark: SparkSession, number: Any) -> None:
    """Said before anything starts."""
    with pytest.raises(ConfigurationError, match="num_proc is"):
        ringtrain.spark.run(trains(), num_proc=number)


def test_ranks_of_a_host_follow_each_other() -> None:
    """Whichever tasks Spark has put there; partition 0 is rank 0."""
    hosts = ["a", "b", "a", "b", "a"]
    found = task_places([Task(partition, host, "10.0.0.1") for partition, host in reversed(list(enumerate(hosts)))])
    assert found == {
        0: RankPlace(0, 5, 0, 3, 0, 2),
        2: RankPlace(1, 5, 1, 3, 0, 2),
        4: RankPlace(2, 5, 2, 3, 0, 1),
        1: RankPlace(3, 5, 0, 2, 1, 2),
        3: RankPlace(4, 5, 1, 2, 1, 2),
    }


@pytest.mark.parametrize("spark", ["local[2]"], ids=["local"], indirect=True)
def test_the_recipe_in_place_of_estimators(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documentation's program trains from data that Spark wrote, and its predictions equal the labels."""
    dataset = pytest.importorskip("pyarrow.dataset")
    pytest.importorskip("pandas")
    pytest.importorskip("torch")
    page = (Path(__file__).parents[3] / "docs/migrate-from-horovod.md").read_text()
    (recipe,) = re.findall(r"^```python\n(import sys\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.setattr(sys, "argv", ["train.py", tmp_path.as_uri()])
    exec(compile(recipe, "train.py", "exec"), {"__name__": "__main__"})
    rows = dataset.dataset(tmp_path / "predictions").to_table()
    assert rows.num_rows == 512
    np.testing.assert_allclose(rows["prediction"].to_numpy(), rows["y"].to_numpy(), atol=1e-3)
