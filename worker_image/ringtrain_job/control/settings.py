"""Settings that agent and launcher read alike."""

from dataclasses import dataclass
from pathlib import Path

from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.rpc import crowd_s
from ringtrain.shared.secrets import Secrets, load_secrets
from ringtrain_job.control.model import JobIdentity
from ringtrain_job.control.termination import DEFAULT_PATH, TerminationPath


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """What every pod of a job is told. `timeout_s` is the knob from which all inner deadlines derive."""

    job: JobIdentity
    workers: int
    slots: int
    timeout_s: float
    start_timeout_s: float
    secrets: Secrets
    termination: TerminationPath

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang."""
        return self.workers * self.slots

    @property
    def crowd_s(self) -> float:
        """How long all workers take to reach the launcher when they dial at the same time."""
        return crowd_s(self.workers)


def read_pod(read: EnvironmentVariables) -> PodSettings:
    """The job and attempt that a pod belongs to, and the rest; ConfigurationError names what is wrong."""
    return PodSettings(
        job=JobIdentity(
            name=read.text(contract.ENV_JOB_NAME),
            namespace=read.text(contract.ENV_JOB_NAMESPACE),
            uid=read.text(contract.ENV_JOB_UID),
            attempt=read.integer(contract.ENV_ATTEMPT, low=1),
        ),
        workers=read.integer(contract.ENV_NUM_WORKERS, low=1, high=100_000),
        slots=read.integer(contract.ENV_SLOTS_PER_WORKER, 1, low=1, high=1024),
        timeout_s=read.seconds(contract.ENV_TIMEOUT, 60),
        start_timeout_s=read.seconds(contract.ENV_START_TIMEOUT, 600),
        secrets=load_secrets(read),
        termination=read_termination(read),
    )


def read_termination(read: EnvironmentVariables) -> TerminationPath:
    """Where the termination message goes."""
    named = read.optional(contract.ENV_TERMINATION_MESSAGE_PATH)
    return TerminationPath(Path(named) if named else DEFAULT_PATH, required=named is not None)
