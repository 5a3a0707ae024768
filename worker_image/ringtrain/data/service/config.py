"""The settings of data workers and of ranks that ask them, read from the environment in one place each."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.secrets import Secrets, load_secrets


@dataclass(frozen=True)
class DataWorkerConfig:
    """What a data worker is told. `launcher_address` empty: it registers nowhere."""

    index: int
    kind: str
    slots: int
    port: int
    dispatchers: int
    job: str
    uid: str
    launcher_address: str
    pod: str
    pod_ip: str
    timeout_s: float
    secrets: Secrets

    @property
    def heartbeat_s(self) -> float:
        """How often launcher and ranks hear of it: well inside the silence after which it counts as lost."""
        return min(2.0, self.timeout_s / 16)

    @property
    def call_s(self) -> float:
        """Deadline of one call to the launcher."""
        return max(1.0, self.timeout_s / 6)

    @staticmethod
    def from_env(env: Mapping[str, str]) -> "DataWorkerConfig":
        """Read `env`; ConfigurationError names the first variable that is missing or out of range."""
        read = EnvironmentVariables(env)
        index = read.integer(contract.ENV_DATA_INDEX, 0, low=0, high=100_000)
        launched = read.optional(contract.ENV_LAUNCHER_ADDRESS) is not None
        job = read.text(contract.ENV_JOB_NAME, "data")
        return DataWorkerConfig(
            index=index,
            kind=read.choice(contract.ENV_DATA_KIND, contract.DATA_KINDS, contract.DATA_KINDS[0]),
            slots=read.integer(contract.ENV_DATA_SLOTS, 1, low=1, high=1024),
            port=read.port(contract.ENV_DATA_PORT, contract.PORT_DATA),
            dispatchers=read.integer(contract.ENV_DATA_DISPATCHERS, 1, low=1, high=100_000),
            job=job,
            uid=read.text(contract.ENV_JOB_UID) if launched else read.text(contract.ENV_JOB_UID, "none"),
            launcher_address=read.address(contract.ENV_LAUNCHER_ADDRESS) if launched else "",
            pod=read.text(contract.ENV_POD_NAME, f"{job}-data-{index}"),
            pod_ip=read.optional(contract.ENV_POD_IP) or "",
            timeout_s=read.seconds(contract.ENV_TIMEOUT, 60),
            secrets=load_secrets(read),
        )


@dataclass(frozen=True)
class DataStreamSettings:
    """What a rank must know to ask data workers. `stall_timeout_s`: how long it waits where nothing comes."""

    members_file: Path
    secrets: Secrets
    uid: str
    timeout_s: float
    stall_timeout_s: float

    @property
    def lost_after_s(self) -> float:
        """Silence after which a data worker counts as lost."""
        return self.timeout_s / 4

    @property
    def say_every_s(self) -> float:
        """How often a rank that waits says so."""
        return min(30.0, self.stall_timeout_s / 2)

    @staticmethod
    def from_env(env: Mapping[str, str]) -> "DataStreamSettings":
        """Read `env`. Raises ConfigurationError, also where the job has no data workers."""
        read = EnvironmentVariables(env)
        file = read.optional(contract.ENV_DATA_WORKERS_FILE)
        if file is None:
            raise ConfigurationError(
                f"this process has no data workers: {contract.ENV_DATA_WORKERS_FILE} is not set. Start it with "
                "`ringtrain run --data-workers N`, set spec.dataWorkers in the job, or name a file as in "
                "docs/contract.md"
            )
        timeout_s = read.seconds(contract.ENV_TIMEOUT, 60)
        return DataStreamSettings(
            members_file=Path(file),
            secrets=load_secrets(read),
            uid=read.text(contract.ENV_JOB_UID, "none"),
            timeout_s=timeout_s,
            stall_timeout_s=read.seconds(contract.ENV_STALL_TIMEOUT, max(600.0, timeout_s)),
        )
