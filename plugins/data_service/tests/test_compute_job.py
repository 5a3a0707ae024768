"""ringtrain.tensorflow.data: a compute job serves a training job in every mode, and what dies comes back."""

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import pytest
from frameworks.harness import ENV, SHORT_JVM
from frameworks.warm_python import shared_python
from support.commands import completed
from support.deadlines import patient
from support.namespaces import network, why_not

import ringtrain_clusters

SCRIPT = Path(__file__).with_name("data_service_scripts") / "mnist_data_service.py"
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
SPARK_WORKER = Path(ringtrain_clusters.__file__).parent / "spark/tensorflow/compute_worker.py"
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
DEADLINE_S = patient(300.0)
# The other modes, without processes of their own: test_tensorflow_service.py.
MODES = {
    "shared": ((), ("--reuse-dataset",)),
    "training-side": (("--dispatcher-side", "training"), ("--reuse-dataset", "--round-robin")),
}


@pytest.fixture(scope="module")
def python() -> str:
    """A `python` that has imported TensorFlow, which takes longer than all that its processes do here."""
    return shared_python("tensorflow")


def started(directory: Path, python: str, *words: str | Path) -> "subprocess.Popen[str]":
    spark = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    spark["SPARK_SUBMIT_OPTS"] = SHORT_JVM
    return subprocess.Popen(
        words,
        cwd=directory,
        env={**os.environ, **ENV, **spark, "TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


OF_A_JOB = """
import sys
import tensorflow as tf
import ringtrain.tensorflow as hvd
from ringtrain_data_service.tensorflow.compute_service import JobDataService

hvd.init()
dispatchers = int(sys.argv[1])
dataset = tf.data.Dataset.range(300)
service = JobDataService(dispatchers, timeout=200)
shared = dispatchers == 1
dataset = dataset.send_to_data_service(service, hvd.rank(), hvd.size(), reuse_dataset=shared)
read = [int(number) for number in dataset]
both = hvd.allgather_object(read)
assert sorted(sum(both, []) if shared else both[hvd.rank()]) == list(range(300)), both
print("read it all")
"""


@pytest.mark.parametrize("dispatchers", [1, 2])
def test_data_workers_of_the_job_itself(dispatchers: int, tmp_path: Path, python: str) -> None:
    """Kind tensorflow: no file, no second job; data workers find each other, and ranks them, by the launcher."""
    (tmp_path / "train.py").write_text(OF_A_JOB)
    run = completed(
        [*(HOROVODRUN, "-np", "2", "--data-workers", "2", python, "train.py", str(dispatchers))],
        cwd=tmp_path,
        env={
            **os.environ,
            **ENV,
            "TMPDIR": str(tmp_path),
            "RINGTRAIN_DATA_KIND": "tensorflow",
            "RINGTRAIN_DATA_DISPATCHERS": str(dispatchers),
        },
        timeout=DEADLINE_S,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("read it all") == 2


def commands(mode: str, python: str) -> tuple[list[str | Path], list[str | Path]]:
    """Return the documentation's commands for compute job and training, with another name of the config."""
    if mode == "spark":
        if not SPARK_SUBMIT.exists() or not shutil.which("java"):
            pytest.skip("Spark needs pyspark and Java: apt install default-jre-headless")
        script = SCRIPT.with_name("spark_data_service.py")
        return [SPARK_SUBMIT, "--master", "local[2]", SPARK_WORKER], [
            *(SPARK_SUBMIT, "--master", "local[2]", "--py-files", SCRIPT, script)
        ]
    of_the_service, of_the_script = MODES[mode]
    module = "ringtrain.tensorflow.data.compute_worker"
    run = [HOROVODRUN, "-np"]
    return [*run, "2", python, "-m", module, *of_the_service], [*(*run, "2", python, SCRIPT, *of_the_script)]


def test_a_compute_job_that_is_ended_leaves_no_config(tmp_path: Path, python: str) -> None:
    """SIGTERM, as of a pod that is deleted: training must not take the file for that of a job that lives."""
    module = "ringtrain.tensorflow.data.compute_worker"
    job = started(tmp_path, python, python, "-m", module, "compute.json")
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not (tmp_path / "compute.json").exists():
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        job.terminate()
        said, _ = job.communicate(timeout=DEADLINE_S)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 143, said
    assert not (tmp_path / "compute.json").exists()


@pytest.mark.parametrize("mode", [*MODES, "spark", "two-hosts"])
def test_both_commands_of_the_page(mode: str, tmp_path: Path, python: str) -> None:
    """A script in the shape of Horovod's example trains, and ends the compute job, which leaves no config."""
    with ExitStack() as stack:
        service, training = commands("shared" if mode == "two-hosts" else mode, python)
        if mode == "two-hosts":  # each with its own network; what they share is the folder
            if reason := why_not():
                pytest.skip(reason)
            one, other = stack.enter_context(network(2)).hosts
            service, training = [*one.enter, *service], [*other.enter, *training]
        trains(tmp_path, python, service, training)


def trains(tmp_path: Path, python: str, service: list[str | Path], training: list[str | Path]) -> None:
    jobs = [started(tmp_path, python, *words, "compute.json") for words in (service, training)]
    with ThreadPoolExecutor(len(jobs)) as readers:  # a job whose output nobody reads stops in the middle of it
        outputs = [readers.submit(output_of, job) for job in jobs]
        try:
            wait(outputs, DEADLINE_S, FIRST_EXCEPTION)  # a job waits for the other one, also for one that has failed
        finally:
            for job in jobs:
                job.terminate()
                job.wait(DEADLINE_S)
    failed = [str(error) for output in outputs if (error := output.exception())]
    assert not failed, "\n".join(failed)
    trained = outputs[1].result()
    assert "could not send `shutdown`" not in trained, trained
    assert sorted(re.findall(r"rank \d of 2 trained 8 steps", trained)) == [
        f"rank {rank} of 2 trained 8 steps" for rank in (0, 1)
    ]
    assert not (tmp_path / "compute.json").exists()


def output_of(job: "subprocess.Popen[str]") -> str:
    said, _ = job.communicate()
    assert job.returncode == 0, f"{job.args} ended with {job.returncode}:\n{said}"
    return said
