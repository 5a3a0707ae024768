"""What goes wrong with a run, beside what the API server says (cluster/api/errors.py). The tree:

OperatorError
├── JobFailed         the job ended badly, or was rejected; its message is the chain of causes
├── JobEnded          the job has ended, and what was asked is for one that has not
├── Timeout           the job has not come so far in the time given
├── DriverLost        the process that drove a job on this machine is gone, and the job with it
└── ScriptUnusable    the function or file given as training code cannot be sent
"""

from __future__ import annotations

from collections.abc import Sequence

from ringtrain_operator.errors import OperatorError
from ringtrain_operator.status.model import Failure, JobStatus


class JobFailed(OperatorError):
    """The job failed. `causes`: what `dtj why` says; `failure`: the rank that failed first, if one did."""

    def __init__(self, name: str, status: JobStatus, causes: Sequence[str]) -> None:
        self.name = name
        self.status = status
        self.causes = tuple(causes)
        self.failure: Failure | None = status.failure
        super().__init__("\n".join(causes) or f"{name} failed")


class JobEnded(OperatorError):
    """The job has ended; the message says how, and what to do instead."""


class Timeout(OperatorError, TimeoutError):
    """The time given is over; the message has the job's state, and why it is in it."""


class DriverLost(OperatorError):
    """Nobody drives this job on this machine any more: the process that did was ended or killed."""


class ScriptUnusable(OperatorError):
    """The training code cannot be sent; the message says why, and the way out."""
