"""Settings that agent and launcher read alike."""

from pathlib import Path

from ringtrain import contract
from ringtrain.control.environment import Environment
from ringtrain.control.model import JobIdentity
from ringtrain.control.termination import DEFAULT_PATH, TerminationPath


def read_job(read: Environment) -> JobIdentity:
    """The job and attempt that a pod belongs to."""
    return JobIdentity(
        name=read.text(contract.ENV_JOB_NAME),
        namespace=read.text(contract.ENV_JOB_NAMESPACE),
        uid=read.text(contract.ENV_JOB_UID),
        attempt=read.integer(contract.ENV_ATTEMPT, low=1, high=2**31 - 1),
    )


def read_termination(read: Environment) -> TerminationPath:
    """Where the termination message goes."""
    named = read.optional(contract.ENV_TERMINATION_MESSAGE_PATH)
    return TerminationPath(Path(named) if named else DEFAULT_PATH, required=named is not None)


def read_flag(read: Environment, name: str, default: str) -> bool:
    """A variable that is `0` or `1`."""
    return read.choice(name, ("0", "1"), default) == "1"
