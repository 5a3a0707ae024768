"""What the status says and notes of pods that outlive attempts: data workers and the evaluator."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from ..spec.base import StatusModel
from ..spec.times import Time, after_pause


class DataWorkersStatus(StatusModel):
    """Data workers, and what ranks wait for them."""

    desired: int = Field(default=0, description="Data workers that are wanted now.")
    ready: int = Field(default=0, description="Those of them that run and have registered with the launcher.")
    wait_fraction: float | None = Field(
        default=None, description="Part of its time that a rank waits for input, as the launcher last told."
    )


class EvaluatorStatus(StatusModel):
    """The evaluator."""

    state: Literal["Pending", "Running", "Succeeded", "Failed", "Stopped"] = Field(
        description="Failed: it ended badly, and is made anew while the job runs. Stopped: it was asked to end."
    )
    failures: int = Field(default=0, description="Pods of it that ended badly.")
    message: str = Field(
        default="", description="What became of the last one that did, or why the API refuses the next one."
    )


class EndedPod(StatusModel):
    """A pod that ended by itself. It is noted before the pod is deleted, so that it counts once."""

    pod: str = Field(description="Name of the pod.")
    uid: str = Field(description="Its uid: the next one of the name is another.")
    node: str | None = Field(default=None, description="Its node.")
    cause: str = Field(description="How it ended, for people.")
    failures: int = Field(
        default=0, description="How many of its name ended badly, each within an hour of another."
    )
    evaluator: bool = Field(default=False, description="Whether it was the evaluator.")
    done: bool = Field(default=False, description="Whether it was an evaluator that ended well.")
    time: Time = Field(description="When the operator learned of it.")

    @property
    def next_at(self) -> datetime | None:
        """When the next pod of the name may be made; None: at once."""
        return after_pause(self.time, self.failures)


class DataScale(StatusModel):
    """How many data workers autoscale wants, and what it has learned."""

    replicas: int = Field(description="Data workers that are wanted.")
    asked: int = Field(description="dataWorkers.replicas with which it began.")
    workers: int = Field(description="Workers of the world for which it was learned.")
    too_few: int = Field(default=0, description="The largest number with which ranks waited too long.")
    above_since: Time | None = Field(default=None, description="Since when ranks wait too long.")
    below_since: Time | None = Field(default=None, description="Since when ranks hardly wait.")
