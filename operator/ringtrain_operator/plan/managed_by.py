"""spec.managedBy: a job that names another controller is left alone."""

from __future__ import annotations

from ..contract import GROUP
from ..spec import Job

OURS = f"{GROUP}/operator"


def is_ours(job: Job) -> bool:
    """Whether this operator runs the job."""
    return job.spec.managed_by in (None, OURS)
