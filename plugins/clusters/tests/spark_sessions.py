"""A JVM for tests of Spark, and sessions in it."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from frameworks.harness import SHORT_JVM
from ring.leftovers import leftovers
from support.gang import until

# As a cluster has them: two executors, each a JVM of its own.
CLUSTER = "local-cluster[2,1,1024]"
SLOTS = 2


@contextmanager
def jvm() -> Iterator[None]:
    """The one of this process, which outlives its sessions, ends after the block and leaves no socket to it, and
    no handler of Ctrl-C that speaks to it."""
    from pyspark import SparkContext

    on_ctrl_c = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, on_ctrl_c)
    if (gateway := SparkContext._gateway) is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # it ends when nobody can speak to it any more
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None
    assert not leftovers()


@contextmanager
def session(directory: Path, master: str = CLUSTER, **more: str):  # type: ignore[no-untyped-def]
    """A session of Spark whose executors are there; `more`: its further settings, with underscores for dots."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("SPARK_LOCAL_DIRS", str(directory))
        patch.setenv("SPARK_SUBMIT_OPTS", SHORT_JVM)
        builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
        settings = {"spark.driver.maxResultSize": "1m", "spark.log.level": "FATAL"}
        settings["spark.executor.extraJavaOptions"] = SHORT_JVM
        for name, value in {**settings, **{name.replace("_", "."): value for name, value in more.items()}}.items():
            builder = builder.config(name, value)
        made = builder.getOrCreate()
        scala = made.sparkContext._jsc.sc()
        profile = scala.resourceProfileManager().defaultResourceProfile()
        until("all executors", lambda: int(scala.maxNumConcurrentTasks(profile)) == SLOTS)
        yield made
        made.stop()
