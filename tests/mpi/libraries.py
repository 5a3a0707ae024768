"""Which MPI libraries this machine has, and what a test needs to use one."""

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Library:
    """One MPI: its word in `spec.mpi.implementation`, and variables with which mpi4py's wheel finds it."""

    implementation: str
    mpirun: str
    compiler: str
    soname: str
    variables: dict[str, str] = field(default_factory=dict)

    def need(self) -> None:
        """Skip the test unless this MPI is installed."""
        if not shutil.which(self.mpirun):
            package = "openmpi-bin" if self.implementation == "OpenMPI" else "mpich"
            pytest.skip(f"{self.mpirun} is not installed (apt install {package})")

    def need_mpi4py(self, directory: Path) -> dict[str, str]:
        """Skip the test unless mpi4py is installed; variables that make it use this MPI."""
        self.need()
        if importlib.util.find_spec("mpi4py") is None:
            pytest.skip("mpi4py is not installed (pip install mpi4py)")
        if self.implementation == "OpenMPI":
            return {"MPI4PY_MPIABI": "openmpi"}
        # Debian's MPICH has its library under another name than MPICH's ABI gives it.
        found = find_library("libmpich.so.12")
        links = directory / "lib"
        links.mkdir(exist_ok=True)
        if found and not (links / "libmpi.so.12").exists():
            (links / "libmpi.so.12").symlink_to(found)
        return {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(links)}

    def compile(self, source: Path, program: Path) -> Path:
        """The program of a C `source`; skips the test without a compiler."""
        if not shutil.which(self.compiler):
            pytest.skip(f"{self.compiler} is not installed")
        subprocess.run([self.compiler, str(source), "-O2", "-o", str(program), "-lm"], check=True)
        return program


OPEN_MPI = Library("OpenMPI", "mpirun.openmpi", "mpicc.openmpi", "libmpi.so.40")
MPICH = Library("MPICH", "mpirun.mpich", "mpicc.mpich", "libmpich.so.12")
ALL = [pytest.param(OPEN_MPI, id="openmpi"), pytest.param(MPICH, id="mpich")]


def find_library(soname: str) -> str:
    """Path of a shared library by the loader's cache; empty when there is none."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    lines = [line for line in listed.splitlines() if line.split()[:1] == [soname]]
    return lines[0].rpartition("=> ")[2] if lines else ""


def python(script: str) -> tuple[str, ...]:
    """The command that runs `script` in this Python."""
    return (sys.executable, "-u", "-c", script)
