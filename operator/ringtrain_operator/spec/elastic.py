"""`spec.elastic`: between which sizes the world may change while the job runs, and what follows a loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import MOST_WORKERS, SpecModel


class Elastic(SpecModel):
    """Between which sizes the world may change within an attempt. Unset: any loss restarts the gang."""

    min_replicas: int = Field(
        default=1,
        ge=1,
        le=MOST_WORKERS,
        description="Fewest workers that training goes on with; at most worker.replicas.",
    )
    max_replicas: int = Field(
        ge=1, le=MOST_WORKERS, description="Most workers that worker.replicas may be set to while the job runs."
    )
    on_loss: Literal["Replace", "Shrink", "Restart"] = Field(
        default="Replace",
        description="What ranks do when a worker is lost. Replace: they keep their processes and wait for the new "
        "worker, for replaceTimeoutSeconds. Shrink: they keep their processes and go on at once with the workers "
        "that are left; the new worker joins later. Restart: in living pods all ranks are started again, which "
        "any program can bear.",
    )
    replace_timeout_seconds: int = Field(
        default=120,
        ge=1,
        le=86400,
        description="After so long without a new worker training goes on with fewer, if minReplicas are left.",
    )
    join_delay_seconds: int = Field(
        default=30, ge=0, le=86400, description="Workers that come within so long join in one change of the world."
    )
    formation_limit: int = Field(
        default=100,
        ge=1,
        le=100_000,
        description="Changes of the world in one attempt; one more, and the attempt has failed.",
    )
