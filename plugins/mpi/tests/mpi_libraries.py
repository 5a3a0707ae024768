"""MPI libraries of this machine, and requirements of a test to use one."""

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

# Open MPI 5 beside the distribution's Open MPI 4, where `make test` puts PyPI's wheel of it.
_OPEN_MPI_5 = Path(sys.prefix) / "openmpi5"
# PyPI's wheel of Intel MPI, likewise. The wheel is without libfabric: Debian's takes its place.
_INTEL_MPI = Path(sys.prefix) / "impi"


@dataclass(frozen=True)
class Library:
    """One MPI: its word in `spec.mpi.implementation`. `prefix`: of an installation outside of PATH.

    `package`: what to install where it is missing.
    """

    implementation: str
    mpirun: str
    compiler: str
    package: str
    prefix: Path | None = None

    def is_there(self) -> bool:
        """Return whether a job can run with this MPI."""
        return bool(shutil.which(self.mpirun, path=self._path()))

    def need(self) -> dict[str, str]:
        """Skip the test unless this MPI is installed; variables that make mpirun this one."""
        if not self.is_there():
            pytest.skip(f"{self.mpirun} is not installed ({self.package})")
        return {} if self.prefix is None else {"PATH": self._path()}

    def _path(self) -> str:
        return os.environ["PATH"] if self.prefix is None else f"{self.prefix}/bin{os.pathsep}{os.environ['PATH']}"

    def need_mpi4py(self, directory: Path) -> dict[str, str]:
        """Skip the test unless mpi4py is installed; variables that make it use this MPI."""
        variables = self.need()
        if importlib.util.find_spec("mpi4py") is None:
            pytest.skip("mpi4py is not installed (pip install mpi4py)")
        if self.implementation == "Intel":
            return {**variables, "MPI4PY_MPIABI": "mpich"}
        if self.prefix is not None:
            return {**variables, "MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": f"{self.prefix}/lib/libmpi.so.40"}
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
        compiler = shutil.which(self.compiler, path=self.need().get("PATH"))
        if not compiler:
            pytest.skip(f"{self.compiler} is not installed")
        subprocess.run([compiler, str(source), "-O2", "-o", str(program), "-lm"], check=True)
        return program


OPEN_MPI = Library("OpenMPI", "mpirun.openmpi", "mpicc.openmpi", "apt install openmpi-bin")
OPEN_MPI_5 = Library(
    "OpenMPI",
    f"{_OPEN_MPI_5}/bin/mpirun",
    f"{_OPEN_MPI_5}/bin/mpicc",
    f"pip install --prefix {_OPEN_MPI_5} openmpi",
    _OPEN_MPI_5,
)
MPICH = Library("MPICH", "mpirun.mpich", "mpicc.mpich", "apt install mpich")
INTEL_MPI = Library(
    "Intel",
    f"{_INTEL_MPI}/bin/mpiexec.hydra",
    "mpicc.mpich",
    f"pip install --no-deps --prefix {_INTEL_MPI} impi-rt",
    _INTEL_MPI,
)
ALL = [
    pytest.param(OPEN_MPI, id="openmpi"),
    pytest.param(OPEN_MPI_5, id="openmpi5"),
    pytest.param(MPICH, id="mpich"),
    pytest.param(INTEL_MPI, id="intel"),
]


def find_library(soname: str) -> str:
    """Path of a shared library by the loader's cache; empty when there is none."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    lines = [line for line in listed.splitlines() if line.split()[:1] == [soname]]
    return lines[0].rpartition("=> ")[2] if lines else ""


def python(script: str) -> tuple[str, ...]:
    """The command that runs `script` in this Python."""
    return (sys.executable, "-u", "-c", script)
