"""Settings of data workers and of the ranks that read from them, taken from environment variables."""

from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.secrets import Secrets, load_secrets
from ringtrain.shared.settings import REQUIRED, Settings, address, choice, integer, seconds, setting, tcp_port, text


@dataclass(frozen=True, kw_only=True)
class DataWorkerConfig(Settings):
    """Settings of a data worker. If `launcher_address` is empty, the worker does not register with a launcher."""

    index: int = integer(contract.ENV_DATA_INDEX, 0, low=0, high=100_000)
    kind: str = choice(contract.ENV_DATA_KIND, contract.DATA_KINDS, contract.DATA_KINDS[0])
    slots: int = integer(contract.ENV_DATA_SLOTS, 1, low=1, high=1024)
    port: int = tcp_port(contract.ENV_DATA_PORT, contract.PORT_DATA)
    dispatchers: int = integer(contract.ENV_DATA_DISPATCHERS, 1, low=1, high=100_000)
    job: str = text(contract.ENV_JOB_NAME, "data")
    launcher_address: str = address(contract.ENV_LAUNCHER_ADDRESS, "")
    uid: str = text(contract.ENV_JOB_UID, derived=lambda seen: REQUIRED if seen.launcher_address else "none")
    pod: str = text(contract.ENV_POD_NAME, derived=lambda seen: f"{seen.job}-data-{seen.index}")
    pod_ip: str = text(contract.ENV_POD_IP, "")
    timeout_s: float = seconds(contract.ENV_TIMEOUT, 60.0)
    secrets: Secrets = setting(lambda env, _: load_secrets(env))

    @property
    def heartbeat_s(self) -> float:
        """Seconds between a data worker's heartbeats; several fit into the time after which it counts as lost."""
        return min(2.0, self.timeout_s / 16)

    @property
    def call_s(self) -> float:
        """Deadline, in seconds, of one call to the launcher."""
        return max(1.0, self.timeout_s / 6)


def _members_file(env: EnvironmentVariables) -> Path:
    file = env.optional(contract.ENV_DATA_WORKERS_FILE)
    if file is None:
        raise ConfigurationError(
            f"this process has no data workers: {contract.ENV_DATA_WORKERS_FILE} is not set. "
            "Start it with `ringtrain run --data-workers N`, set spec.dataWorkers in the job, or "
            "set the variable to a file in the format that docs/contract.md describes"
        )
    return Path(file)


@dataclass(frozen=True, kw_only=True)
class DataStreamSettings(Settings):
    """Settings of a rank that uses data workers. `stall_timeout_s`: seconds without input until the rank fails."""

    members_file: Path = setting(lambda env, _: _members_file(env))
    secrets: Secrets = setting(lambda env, _: load_secrets(env))
    uid: str = text(contract.ENV_JOB_UID, "none")
    timeout_s: float = seconds(contract.ENV_TIMEOUT, 60.0)
    stall_timeout_s: float = seconds(contract.ENV_STALL_TIMEOUT, 600.0, lambda seen: max(600.0, seen.timeout_s))

    @property
    def lost_after_s(self) -> float:
        """Seconds of silence after which a data worker counts as lost."""
        return self.timeout_s / 4

    @property
    def log_interval_s(self) -> float:
        """Seconds between log lines of a rank that waits for input."""
        return min(30.0, self.stall_timeout_s / 2)
