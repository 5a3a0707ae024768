"""Helpers that scripts import from `horovod.runner.common.util.env`, by the same names."""

import os

from ringtrain._core.world.mpi_environment import mpi_rank
from ringtrain._core.world.torchrun import torchrun_rank
from ringtrain.shared import contract
from ringtrain.shared.variables import integer


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks as the environment has them, before `init`; else (0, 1).

    Raises ConfigurationError for variables that make no sense.
    """
    if contract.ENV_RANK in os.environ and contract.ENV_SIZE in os.environ:
        size = integer(os.environ, contract.ENV_SIZE, lowest=1)
        return integer(os.environ, contract.ENV_RANK, lowest=0, highest=size - 1), size
    found = mpi_rank(os.environ) or torchrun_rank(os.environ)
    return (0, 1) if found is None else (found.rank, found.size)
