"""Helpers under the names of `horovod.runner.common.util.env`."""

import os

from ringtrain.adapter import environment_rank
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables, without_empty


def get_env_rank_and_size() -> tuple[int, int]:
    """Return rank and number of ranks from the environment, before `init`; (0, 1) without the variables.

    Raises ConfigurationError for invalid variables.
    """
    env = without_empty(os.environ)
    if contract.ENV_RANK in env and contract.ENV_SIZE in env:
        read = EnvironmentVariables(env)
        size = read.integer(contract.ENV_SIZE, low=1)
        return read.integer(contract.ENV_RANK, low=0, high=size - 1), size
    return environment_rank(env) or (0, 1)
