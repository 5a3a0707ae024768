"""The sample jobs for MPI, run as `dtj local` runs them: real launcher, agents and mpirun on this machine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from mpi_libraries import OPEN_MPI
from support.commands import completed

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "manifests/samples"


@pytest.fixture
def place(short_path: Path) -> Path:
    """A working directory with the examples as the worker's image has them: pi is compiled."""
    shutil.copytree(ROOT / "examples", short_path / "examples", ignore=shutil.ignore_patterns("pi", "__pycache__"))
    (short_path / "tmp").mkdir()
    return short_path


def run_local(manifest: Path, place: Path) -> "subprocess.CompletedProcess[str]":
    """A job that succeeds under `dtj local`."""
    # Ranks that poll would keep a machine with fewer cores than ranks from making progress.
    polite = {"OMPI_MCA_mpi_yield_when_idle": "1", "TMPDIR": str(place / "tmp")}
    environment = {**os.environ, **OPEN_MPI.need_mpi4py(place), **polite}
    dtj = Path(sys.executable).with_name("dtj")
    command = [str(dtj), "local", str(manifest)]
    done = completed(command, cwd=place, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_sample(manifest: Path, place: Path) -> str:
    """The log of a sample."""
    run_local(manifest, place)
    (log,) = place.glob("runs/*/logs/default/*/1/job.log")
    return log.read_text()


RESTARTED = """
apiVersion: ringtrain.dev/v1alpha1
kind: DistributedTrainingJob
metadata: {name: twice}
spec:
  backend: mpi
  runPolicy: {backoffLimit: 1}
  worker:
    replicas: 2
    template:
      spec:
        containers: [{name: train, image: none, command: [python, train.py]}]
"""
DIES_ONCE = """
import os, signal
from mpi4py import MPI
world, attempt = MPI.COMM_WORLD, os.environ["RINGTRAIN_ATTEMPT"]
print("rank", world.rank, "in attempt", attempt, flush=True)
world.Barrier()
if (world.rank, attempt) == (1, "1"):
    os.kill(os.getpid(), signal.SIGKILL)
world.Barrier()
"""


def test_a_killed_rank_restarts_the_gang(place: Path) -> None:
    """The attempt fails with that rank named, and the next one succeeds."""
    (place / "train.py").write_text(DIES_ONCE)
    (place / "twice.yaml").write_text(RESTARTED)
    done = run_local(place / "twice.yaml", place)
    assert "2 attempts" in done.stdout, done.stdout
    assert "rank 1 was killed by SIGKILL" in done.stdout, done.stdout
    assert "all 2 ranks exited 0" in done.stdout
    (log,) = place.glob("runs/*/logs/default/twice/2/job.log")
    assert all(f"rank {rank} in attempt 2" in log.read_text() for rank in range(2))


def test_pi_in_c(place: Path) -> None:
    """Four workers, a program that the image's build stage compiles."""
    OPEN_MPI.compile(place / "examples/mpi/pi.c", place / "examples/mpi/pi")
    printed = run_sample(SAMPLES / "pi-mpi.yaml", place)
    (pi,) = re.findall(r"pi is about (\d\.\d+)", printed)
    assert abs(float(pi) - 3.14159) < 0.01
    assert all(f"rank {rank} of 4: " in printed for rank in range(4))


def test_pi_with_mpi4py(place: Path) -> None:
    """Two workers of two ranks, and a command of the launcher's own."""
    printed = run_sample(SAMPLES / "pi-mpi4py.yaml", place)
    assert "pi is about 3.14159265" in printed
    assert all(f"rank {rank} of 4 on " in printed for rank in range(4))


def test_digits_over_mpi(place: Path) -> None:
    """The sample script runs unchanged with MPI as its transport, for fewer epochs than in the sample."""
    sample = yaml.safe_load((SAMPLES / "digits-mpi.yaml").read_text())
    sample["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] += ["--epochs", "10"]
    (place / "digits-mpi.yaml").write_text(yaml.safe_dump(sample))
    printed = run_sample(place / "digits-mpi.yaml", place)
    (accuracy,) = re.findall(r"test accuracy: (0\.\d+)$", printed, re.MULTILINE)
    assert float(accuracy) > 0.95
    assert "per rank x 4 ranks" in printed


def test_allreduce_benchmark(place: Path) -> None:
    """Output contains latency and bandwidth for each size up to the sample's limit."""
    printed = run_sample(SAMPLES / "allreduce-mpi.yaml", place)
    sizes = [int(size) for size in re.findall(r"^.*?\s(\d+)(?:\s+\d+\.\d+){4}$", printed, re.MULTILINE)]
    assert sizes == [4**power for power in range(1, 13)], printed
