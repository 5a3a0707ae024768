"""The sample jobs for MPI, run as `dtj local` runs them: real launcher, agents and mpirun on this machine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .libraries import OPEN_MPI

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0


@pytest.fixture
def place(short_path: Path) -> Path:
    """A working directory with the examples as the worker's image has them: pi is compiled."""
    shutil.copytree(ROOT / "examples", short_path / "examples", ignore=shutil.ignore_patterns("pi", "__pycache__"))
    (short_path / "tmp").mkdir()
    return short_path


def run_sample(name: str, place: Path) -> str:
    """The log of a sample that succeeds under `dtj local`."""
    # Ranks that poll would keep a machine with fewer cores than ranks from making progress.
    polite = {"OMPI_MCA_mpi_yield_when_idle": "1", "TMPDIR": str(place / "tmp")}
    environment = {**os.environ, **OPEN_MPI.need_mpi4py(place), **polite}
    dtj = Path(sys.executable).with_name("dtj")
    command = [str(dtj), "local", str(ROOT / "manifests/samples" / name)]
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = place.glob("runs/*/logs/default/*/1/job.log")
    return log.read_text()


def test_pi_in_c(place: Path) -> None:
    """Four workers, a program that the image's build stage compiles."""
    OPEN_MPI.compile(place / "examples/mpi/pi.c", place / "examples/mpi/pi")
    printed = run_sample("pi-mpi.yaml", place)
    (pi,) = re.findall(r"pi is about (\d\.\d+)", printed)
    assert abs(float(pi) - 3.14159) < 0.01
    assert all(f"rank {rank} of 4: " in printed for rank in range(4))


def test_pi_with_mpi4py(place: Path) -> None:
    """Two workers of two ranks, and a command of the launcher's own."""
    printed = run_sample("pi-mpi4py.yaml", place)
    assert "pi is about 3.14159265" in printed
    assert all(f"rank {rank} of 4 on " in printed for rank in range(4))


def test_digits_over_mpi(place: Path) -> None:
    """The same script as everywhere, its gradients carried by MPI."""
    printed = run_sample("digits-mpi.yaml", place)
    (accuracy,) = re.findall(r"test accuracy: (0\.\d+)$", printed, re.MULTILINE)
    assert float(accuracy) > 0.95
    assert "per rank x 4 ranks" in printed


def test_allreduce_benchmark(place: Path) -> None:
    """Latency and bandwidth for each size, up to what the sample asks for."""
    printed = run_sample("allreduce-mpi.yaml", place)
    sizes = [int(size) for size in re.findall(r"^.*?\s(\d+)(?:\s+\d+\.\d+){4}$", printed, re.MULTILINE)]
    assert sizes == [4**power for power in range(1, 13)], printed
