"""Python API to start, watch and end distributed training jobs, on a cluster or on this machine.

    from ringtrain_sdk import Client, LocalBackend
    with Client(LocalBackend()) as client:
        run = client.train("train.py", workers=2)
        run.wait()

`AsyncClient` has the same methods as coroutines.

Maturity: Beta.
"""

from ringtrain_client.jobs.backends import Backend, ClusterBackend
from ringtrain_client.jobs.blocking import Client, Run, Runs
from ringtrain_client.jobs.errors import DriverLost, JobEnded, JobFailed, ScriptUnusable, Timeout
from ringtrain_client.jobs.local_backend import LocalBackend
from ringtrain_client.jobs.runs import AsyncClient, AsyncRun, Options
from ringtrain_client.jobs.views import Snapshot, Why
from ringtrain_operator.cluster.api.errors import AlreadyExists, ApiError, Forbidden, NotFound, Unreachable
from ringtrain_operator.errors import Invalid as Invalid
from ringtrain_operator.errors import OperatorError as RingtrainError
from ringtrain_operator.status.model import Failure, JobStatus, Progress

__all__ = [
    "AlreadyExists",
    "ApiError",
    "AsyncClient",
    "AsyncRun",
    "Backend",
    "Client",
    "ClusterBackend",
    "DriverLost",
    "Failure",
    "Forbidden",
    "Invalid",
    "JobEnded",
    "JobFailed",
    "JobStatus",
    "LocalBackend",
    "NotFound",
    "Options",
    "Progress",
    "RingtrainError",
    "Run",
    "Runs",
    "ScriptUnusable",
    "Snapshot",
    "Timeout",
    "Unreachable",
    "Why",
]
