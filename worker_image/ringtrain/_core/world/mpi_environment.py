"""Rank and world size from the variables of MPI launchers: Open MPI, PRRTE (PMIx) and MPICH (PMI)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ringtrain.errors import ConfigurationError, shown
from ringtrain.shared.environment import EnvironmentVariables


@dataclass(frozen=True)
class MpiRank:
    """Rank and world size of a process that an MPI launcher started. `launcher`: name of the launcher."""

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None


# Names of rank, size, local rank and local size. PRRTE also sets Open MPI's names when it runs for Open MPI.
_LAUNCHERS: Final = (
    ("Open MPI", *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PRRTE", *(f"PMIX_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
)


def mpi_rank(env: Mapping[str, str]) -> MpiRank | None:
    """Return this process's rank from an MPI launcher's variables; None if they are unset. Raises ConfigurationError if
    a variable is invalid."""
    for launcher, rank, size, local_rank, local_size in _LAUNCHERS:
        if rank not in env:
            continue
        if size not in env:
            raise ConfigurationError(
                f"{launcher} set {rank}={shown(env[rank])} but not {size}, so the size of the world is unknown; "
                f"start through mpirun, or set RINGTRAIN_RANK, RINGTRAIN_SIZE and RINGTRAIN_RING_ADDRESSES"
            )
        read = EnvironmentVariables(env)
        count = read.integer(size, low=1)
        own = read.integer(rank, low=0, high=count - 1)
        local = (read.integer(name, low=0) if name in env else None for name in (local_rank, local_size))
        return MpiRank(launcher, own, count, *local)
    return None
