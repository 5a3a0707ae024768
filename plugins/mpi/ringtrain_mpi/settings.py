"""Settings that launcher and agents of an MPI job read from their environment."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.settings import Settings, choice, flag, path, text
from ringtrain_mpi.implementation import MpiImplementation

# HOME of mpirun and its daemons if the container has none: the value that container runtimes use for a user without an
# entry in /etc/passwd. Without HOME, PMIx reads that file and crashes if the user is missing.
HOME = {"HOME": "/"}
_IMPLEMENTATIONS = tuple(implementation.value for implementation in MpiImplementation)


def _split_options(said: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(said))
    except ValueError as exc:
        raise ConfigurationError(f"{contract.ENV_MPI_OPTIONS}={said!r}: {exc}") from exc


@dataclass(frozen=True, kw_only=True)
class MpiSettings(Settings):
    """Settings of an MPI job's launcher. `options`: words for mpirun's command line. `own_address`: address of this
    pod; empty if unknown. `hostfile`: path of mpirun's hostfile; None: a temporary file. `needs_init`: whether ranks
    that succeed without MPI_Init are a failure; None: only a warning."""

    implementation: MpiImplementation = choice(
        contract.ENV_MPI_IMPLEMENTATION,
        _IMPLEMENTATIONS,
        MpiImplementation(_IMPLEMENTATIONS[0]),
        made=MpiImplementation,
    )
    options: tuple[str, ...] = text(contract.ENV_MPI_OPTIONS, (), made=_split_options)
    own_address: str = text(contract.ENV_POD_IP, "")
    launcher_as_worker: bool = flag(contract.ENV_MPI_LAUNCHER_AS_WORKER)
    hostfile: Path | None = path(contract.ENV_MPI_HOSTFILE)
    needs_init: bool | None = flag(contract.ENV_MPI_REQUIRE_INIT, None)


@dataclass(frozen=True, kw_only=True)
class MpiAgentSettings(Settings):
    """Settings of an MPI job's agent. `needs_init`: see `MpiSettings`. `directory`: folder of the registry socket;
    empty: a temporary one."""

    needs_init: bool | None = flag(contract.ENV_MPI_REQUIRE_INIT, None)
    directory: str = text(contract.ENV_MPI_REGISTRY_DIRECTORY, "")
