"""The resource: frozen models of a DistributedTrainingJob, the source of the CRD and of the reference page."""

from .job import Checkpoint, Job, JobSpec, Launcher, Logs, Mpi, Networking, Worker
from .parse import parse_job, parse_time, update_problems
from .policy import FailureRule, RunPolicy

__all__ = [
    "Checkpoint",
    "FailureRule",
    "Job",
    "JobSpec",
    "Launcher",
    "Logs",
    "Mpi",
    "Networking",
    "RunPolicy",
    "Worker",
    "parse_job",
    "parse_time",
    "update_problems",
]
