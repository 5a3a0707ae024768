"""What MPI's launchers tell a rank about its place: Open MPI, PRRTE (PMIx) and MPICH (PMI)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ringtrain.errors import ConfigurationError, shown


@dataclass(frozen=True)
class MpiRank:
    """Place of a process that an MPI launcher started. `launcher`: whose variables said so."""

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None


_LONGEST_NUMBER: Final = 20
# Names of rank, size, local rank and local size. PRRTE sets Open MPI's names beside PMIx's when it runs for Open
# MPI.
_LAUNCHERS: Final = (
    (
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PRRTE", "PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"),
)


def mpi_rank(env: Mapping[str, str]) -> MpiRank | None:
    """Return what an MPI launcher says, or None if none has started this process. Raises ConfigurationError."""
    for launcher, rank, size, local_rank, local_size in _LAUNCHERS:
        if rank not in env:
            continue
        if size not in env:
            raise ConfigurationError(
                f"{launcher} set {rank}={shown(env[rank])} but not {size}, so the size of the world is not known; "
                f"start through mpirun, or set RINGTRAIN_RANK, RINGTRAIN_SIZE and RINGTRAIN_RING_ADDRESSES"
            )
        found = MpiRank(
            launcher,
            _number(env, rank),
            _number(env, size),
            _optional(env, local_rank),
            _optional(env, local_size),
        )
        if not 0 <= found.rank < found.size:
            raise ConfigurationError(
                f"{rank} is {found.rank}; expected 0 to {found.size - 1}, as {size}={found.size}"
            )
        return found
    return None


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        if len(env[name]) > _LONGEST_NUMBER:
            raise ValueError
        return int(env[name])
    except ValueError as error:
        raise ConfigurationError(f'{name} is "{shown(env[name])}"; expected an integer') from error


def _optional(env: Mapping[str, str], name: str) -> int | None:
    return _number(env, name) if name in env else None
