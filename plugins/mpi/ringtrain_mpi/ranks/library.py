"""Access to an MPI library through mpi4py, which is imported when it is first needed."""

import atexit
from functools import cache
from typing import Any

from ringtrain.errors import ConfigurationError

_FAILED = False


@cache
def load_mpi_of_world() -> Any:
    """Return the initialized module mpi4py.MPI. Raises ConfigurationError if mpi4py or MPI is not installed."""
    try:
        import mpi4py
    except ImportError as exc:
        raise ConfigurationError(
            "mpi4py is not installed; RINGTRAIN_TRANSPORT=mpi, and mpirun over several hosts "
            "without ringtrain's launcher, need mpi4py: pip install mpi4py"
        ) from exc
    # Finalized by `_finalize_mpi_world`: a rank that has lost a peer must not wait for it in MPI_Finalize.
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as exc:
        raise ConfigurationError(
            f"mpi4py finds no MPI library: {exc}; install openmpi-bin or mpich, or point MPI4PY_LIBMPI at one"
        ) from exc
    atexit.register(_finalize_mpi_world, MPI)
    return MPI


def load_world(rank: int, size: int) -> Any:
    """Return MPI's COMM_WORLD, after checking that this process is `rank` of `size` in it.

    Raises ConfigurationError if this process is not `rank` of `size` in it.
    """
    mpi = load_mpi_of_world()
    world = mpi.COMM_WORLD
    if (world.rank, world.size) != (rank, size):
        version = mpi.Get_library_version().splitlines()[0].strip()
        raise ConfigurationError(
            f"rank {rank} of {size} is rank {world.rank} of {world.size} to the MPI library that mpi4py has loaded "
            f"({version}); start the ranks with that library's own mpirun, or set MPI4PY_MPIABI to openmpi or mpich"
        )
    return world


def give_up() -> None:
    """Skip MPI_Finalize, which would wait for a lost peer, when this process exits."""
    global _FAILED
    _FAILED = True


def _finalize_mpi_world(mpi: Any) -> None:
    if not _FAILED and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
