"""Errors of operations on jobs, as a class tree. Errors of the API server are in cluster/api/errors.py.

OperatorError
├── JobFailed         the job failed or was rejected; the message is the chain of causes
├── JobEnded          the job has ended, and the call needs a job that has not
├── Timeout           the job did not reach the state within the timeout
├── DriverLost        the process that drove a job on this machine has ended, and the job with it
└── ScriptUnusable    the function or file with the training code cannot be sent
"""

from __future__ import annotations

from collections.abc import Sequence

from ringtrain_operator.errors import OperatorError
from ringtrain_operator.status.model import Failure, JobStatus


class JobFailed(OperatorError):
    """Error: the job failed. `causes`: the lines of `dtj why`. `failure`: the rank that failed first, if one did."""

    def __init__(self, name: str, status: JobStatus, causes: Sequence[str]) -> None:
        self.name = name
        self.status = status
        self.causes = tuple(causes)
        self.failure: Failure | None = status.failure
        super().__init__("\n".join(causes) or f"{name} failed")


class JobEnded(OperatorError):
    """Error: the operation is impossible because the job has ended. The message has its state."""


class Timeout(OperatorError, TimeoutError):
    """Error: the job did not reach the awaited state within the timeout. The message has its state and the reason."""


class DriverLost(OperatorError):
    """Error: the process that drives the job on this machine has ended or was killed, so the job cannot continue."""


class ScriptUnusable(OperatorError):
    """Error: the function or file with the training code cannot be sent. The message has the reason and a solution."""
