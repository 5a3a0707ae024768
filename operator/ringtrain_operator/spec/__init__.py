"""The resource: frozen models of a DistributedTrainingJob, the source of the CRD and of the reference page."""

from .documents import read_documents
from .job import Checkpoint, Job, JobSpec, Launcher, Logs, Mpi, Networking, Worker
from .parse import parse_job, parse_time, update_problems
from .pod_schema import PodSchema, packaged_schema
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
    "PodSchema",
    "RunPolicy",
    "Worker",
    "packaged_schema",
    "parse_job",
    "parse_time",
    "read_documents",
    "update_problems",
]
