"""What can be wrong with an MPI job itself, each with its own reason in the job's status."""

from ringtrain.control.model import Reason
from ringtrain.errors import ConfigurationError


class MpiCondition(ConfigurationError):
    """The job cannot run as it is declared. `reason` is the word of docs/contract.md for it."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
