"""Settings that agent and launcher both read from environment variables."""

from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.rpc import handshake_time_s
from ringtrain.shared.secrets import Secrets, load_secrets
from ringtrain.shared.settings import Settings, choice, integer, seconds, setting
from ringtrain_job.control.model import JobIdentity
from ringtrain_job.control.termination import DEFAULT_PATH, TerminationPath

MOST_WORKERS = 100_000
MOST_SLOTS = 1024


def read_termination(env: EnvironmentVariables) -> TerminationPath:
    """Return the path of the termination message, and whether the user set that path."""
    named = env.optional(contract.ENV_TERMINATION_MESSAGE_PATH)
    return TerminationPath(Path(named) if named else DEFAULT_PATH, required=named is not None)


def _read_job(env: EnvironmentVariables) -> JobIdentity:
    return JobIdentity(
        name=env.text(contract.ENV_JOB_NAME),
        namespace=env.text(contract.ENV_JOB_NAMESPACE),
        uid=env.text(contract.ENV_JOB_UID),
        attempt=env.integer(contract.ENV_ATTEMPT, low=1),
    )


@dataclass(frozen=True, kw_only=True)
class PodSettings(Settings):
    """Settings of every pod of a job. Internal deadlines are computed from `timeout_s`."""

    backend: str = choice(contract.ENV_BACKEND, contract.BACKENDS, contract.BACKENDS[0])
    job: JobIdentity = setting(lambda env, _: _read_job(env))
    workers: int = integer(contract.ENV_NUM_WORKERS, low=1, high=MOST_WORKERS)
    slots: int = integer(contract.ENV_SLOTS_PER_WORKER, 1, low=1, high=MOST_SLOTS)
    timeout_s: float = seconds(contract.ENV_TIMEOUT, 60.0)
    start_timeout_s: float = seconds(contract.ENV_START_TIMEOUT, 600.0)
    secrets: Secrets = setting(lambda env, _: load_secrets(env))
    termination: TerminationPath = setting(lambda env, _: read_termination(env))
    data_workers: int = integer(contract.ENV_DATA_WORKERS, 0, low=0, high=100_000)

    @property
    def agents_start_ranks(self) -> bool:
        """Whether agents start the ranks. If not, the command of the launcher starts them, by a plugin."""
        return self.backend == contract.BACKENDS[0]

    @property
    def world_size(self) -> int:
        """Number of ranks of all workers."""
        return self.workers * self.slots

    @property
    def handshake_time_s(self) -> float:
        """Seconds that all workers need to connect to the launcher if all connect at the same time."""
        return handshake_time_s(self.workers)


def plugin_missing(backend: str) -> ConfigurationError:
    """Return the error for a pod whose image lacks the plugin of the job's backend."""
    return ConfigurationError(
        f"{contract.ENV_BACKEND}={backend} needs the plugin ringtrain-{backend}, which is not in this image; "
        f"pip install 'ringtrain[{backend}]' in the image"
    )
