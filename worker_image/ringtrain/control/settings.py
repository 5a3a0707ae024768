"""Settings that agent and launcher read alike."""

from dataclasses import dataclass
from pathlib import Path

from ringtrain import contract
from ringtrain.control.environment import Environment
from ringtrain.control.model import JobIdentity
from ringtrain.control.secrets import Secrets, load_secrets
from ringtrain.control.termination import DEFAULT_PATH, TerminationPath

# What a client that dials costs its server: a handshake and a first call, with half a core; bench/scale/README.md.
_EACH_CLIENT_S = 0.004
_LONGEST_CROWD_S = 60.0


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


def read_pod(read: Environment) -> PodSettings:
    """The job and attempt that a pod belongs to, and the rest; ConfigurationError names what is wrong."""
    return PodSettings(
        job=JobIdentity(
            name=read.text(contract.ENV_JOB_NAME),
            namespace=read.text(contract.ENV_JOB_NAMESPACE),
            uid=read.text(contract.ENV_JOB_UID),
            attempt=read.integer(contract.ENV_ATTEMPT, low=1, high=2**31 - 1),
        ),
        workers=read.integer(contract.ENV_NUM_WORKERS, low=1, high=100_000),
        slots=read.integer(contract.ENV_SLOTS_PER_WORKER, 1, low=1, high=1024),
        timeout_s=read.seconds(contract.ENV_TIMEOUT, 60),
        start_timeout_s=read.seconds(contract.ENV_START_TIMEOUT, 600),
        secrets=load_secrets(read),
        termination=read_termination(read),
    )


def crowd_s(clients: int) -> float:
    """How long a server takes for so many clients that dial at the same time. It serves them side by side, so that
    each may take as long as all: who gives up before dials again, and costs the server the same once more."""
    return min(clients * _EACH_CLIENT_S, _LONGEST_CROWD_S)


def read_termination(read: Environment) -> TerminationPath:
    """Where the termination message goes."""
    named = read.optional(contract.ENV_TERMINATION_MESSAGE_PATH)
    return TerminationPath(Path(named) if named else DEFAULT_PATH, required=named is not None)
