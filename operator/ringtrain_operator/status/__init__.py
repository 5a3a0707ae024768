"""What the operator says about a job: the model of `status` and how it is made from what was observed."""

from .model import Condition, Failure, JobStatus, Ledger, Progress, dump_status, parse_status

__all__ = ["Condition", "Failure", "JobStatus", "Ledger", "Progress", "dump_status", "parse_status"]
