"""What the launcher of an MPI job is told beyond what every launcher is told."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain_job.mpi.implementation import MpiImplementation

# Of mpirun and its daemons where the container has no HOME, and as container runtimes have it for a user that
# /etc/passwd does not name: PMIx asks that file otherwise, and dies of a user that is not there.
HOME = {"HOME": "/"}


@dataclass(frozen=True)
class MpiSettings:
    """`spec.mpi`. `options`: words for mpirun's command line. `own_address`: of this pod; empty: unknown.

    `hostfile`: where mpirun's hosts are to be written; None: wherever. `needs_init`: whether a success without MPI_Init
    is a failure; None: it has a warning.
    """

    implementation: MpiImplementation
    options: tuple[str, ...] = ()
    own_address: str = ""
    launcher_as_worker: bool = False
    hostfile: Path | None = None
    needs_init: bool | None = None


def read_mpi(read: EnvironmentVariables) -> MpiSettings:
    """The settings in RINGTRAIN_MPI_…; ConfigurationError names what is wrong."""
    words = tuple(implementation.value for implementation in MpiImplementation)
    options = read.optional(contract.ENV_MPI_OPTIONS) or ""
    try:
        split = tuple(shlex.split(options))
    except ValueError as exc:
        raise ConfigurationError(f"{contract.ENV_MPI_OPTIONS}={options!r}: {exc}") from exc
    hostfile = read.optional(contract.ENV_MPI_HOSTFILE)
    return MpiSettings(
        implementation=MpiImplementation(read.choice(contract.ENV_MPI_IMPLEMENTATION, words, words[0])),
        options=split,
        own_address=read.optional(contract.ENV_POD_IP) or "",
        launcher_as_worker=read.flag(contract.ENV_MPI_LAUNCHER_AS_WORKER, "0"),
        hostfile=Path(hostfile) if hostfile else None,
        needs_init=read.optional_flag(contract.ENV_MPI_REQUIRE_INIT),
    )
