"""Settings of a rank that do not depend on its world. `ringtrain run` checks them before it starts the ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ringtrain.shared import contract
from ringtrain.shared.horovod_variables import log_level
from ringtrain.shared.settings import Settings, choice, flag, path, seconds, text

# auto: shared memory between ranks of one pod, gRPC between pods. grpc, shm: only this one, or an error. torch: tensors
# of ringtrain.torch by torch.distributed, all else as with auto, which selects it for CUDA. host: as auto, but never by
# a library of a device.
TRANSPORTS = ("auto", "grpc", "shm", "mpi", "torch", "host")
# Those for which a plugin has the communicator.
TRANSPORTS_OF_PLUGINS = ("mpi",)
# auto: between pods, tensors use separate ports if these can be reached. grpcio: always gRPC's library.
DATA_PATHS = ("auto", "grpcio")


@dataclass(frozen=True, kw_only=True)
class WorldWaits(Settings):
    """Time limits, in seconds, of a rank that waits for other ranks."""

    timeout_s: float = seconds(contract.ENV_TIMEOUT, 60.0)
    stall_timeout_s: float = seconds(contract.ENV_STALL_TIMEOUT, 600.0, lambda seen: max(600.0, seen.timeout_s))
    stall_warning_s: float = seconds(contract.ENV_STALL_WARNING, 30.0)


@dataclass(frozen=True, kw_only=True)
class WorldWays(Settings):
    """Transport of tensors between ranks. `transport`: one of `TRANSPORTS`. `data_path`: one of `DATA_PATHS`."""

    transport: str = choice(contract.ENV_TRANSPORT, TRANSPORTS, TRANSPORTS[0])
    data_path: str = choice(contract.ENV_DATA_PATH, DATA_PATHS, DATA_PATHS[0])


@dataclass(frozen=True, kw_only=True)
class RankProcessSettings(Settings):
    """Settings of this process, such as logging and timeline, that do not depend on its world.

    `log_level`: level of ringtrain's own messages, empty if unset. `mpi_check_in`: file that a rank of mpirun writes
    when it has joined a world, so that the agent knows.
    """

    timeline: Path | None = path(contract.ENV_TIMELINE)
    tracebacks: bool = flag(contract.ENV_TRACEBACKS)
    log_level: str = text(contract.ENV_LOG_LEVEL, "", made=partial(log_level, contract.ENV_LOG_LEVEL))
    mpi_check_in: Path | None = path(contract.ENV_MPI_CHECK_IN)


def check_rank_settings(env: Mapping[str, str]) -> None:
    """Raise ConfigurationError if a rank with the environment variables `env` would refuse one of these settings."""
    for group in (WorldWaits, WorldWays, RankProcessSettings):
        group.from_env(env)
