"""What the operator would create for a job, for people to read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .. import build, contract
from ..spec import Job

# A manifest has no uid before an API server gives it one.
PLACEHOLDER_UID = "00000000-0000-0000-0000-000000000000"


def rendered(job: Job) -> list[dict[str, Any]]:
    """The objects of the job's first attempt. The Secret has no values: they are made anew for every job."""
    job = replace(job, uid=job.uid or PLACEHOLDER_UID)
    secret = build.build_secret(job, dict.fromkeys(contract.SECRET_KEYS, b""))
    return [
        secret,
        build.build_service(job),
        build.build_service_account(job),
        build.build_network_policy(job),
        build.build_launcher_pod(job, 1),
        *(build.build_worker_pod(job, 1, index) for index in range(job.num_workers)),
    ]
