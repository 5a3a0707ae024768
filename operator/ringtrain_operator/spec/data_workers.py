"""Models of `spec.dataWorkers`: pods that prepare input for the ranks."""

from typing import Annotated, Literal

from pydantic import Field

from .base import Rule, SpecModel
from .template import PartialTemplate

# The status may have one entry for each data worker, so the number is bounded.
MOST_DATA_WORKERS = 256

Replicas = Annotated[int, Field(ge=1, le=MOST_DATA_WORKERS)]


class Autoscale(SpecModel):
    """Limits and target for the automatic number of data workers, which follows the time that ranks wait for input."""

    min_replicas: Replicas = Field(default=1, description="Minimum number of data workers.")
    max_replicas: Replicas = Field(description="Maximum number of data workers.")
    target_wait_fraction: float = Field(
        default=0.05,
        ge=0.01,
        le=0.9,
        description="Fraction of its time that a rank may wait for input. If ranks wait longer for a minute, data "
        "workers are added; if they wait less than half of this fraction for five minutes, some are removed.",
    )

    RULES = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            message="minReplicas must not be greater than maxReplicas",
            path="minReplicas",
            holds=lambda a: a.min_replicas <= a.max_replicas,
        ),
        # The API server truncates an integral `minimum` to a whole number, so 0 would pass its check of `ge`.
        Rule(
            cel="self.targetWaitFraction >= 0.01",
            message="targetWaitFraction must be at least 0.01",
            path="targetWaitFraction",
        ),
    )


class DataWorkers(SpecModel):
    """Pods that prepare input for the ranks. They are replaced one by one and do not end with an attempt."""

    replicas: Replicas = Field(
        default=1,
        description="Number of data workers; with autoscale the initial number. It may change while the job runs.",
    )
    slots_per_worker: int = Field(
        default=1, ge=1, le=64, description="Number of loader processes in each data worker's pod."
    )
    kind: Literal["ringtrain", "tensorflow"] = Field(
        default="ringtrain",
        description="Protocol of the data workers. ringtrain: arrays for any framework. tensorflow: tf.data's service.",
    )
    dispatchers: int | None = Field(
        default=None,
        ge=1,
        le=MOST_DATA_WORKERS,
        description="Number of dispatchers for kind tensorflow: 1 (the default), or the number of ranks, so that each "
        "rank has its own dispatcher.",
    )
    dispatcher_side: Literal["Compute", "Training"] | None = Field(
        default=None,
        description="Place of the dispatchers for kind tensorflow. Compute, the default: they run in the data "
        "workers' pods. Training: they run in the ranks' processes; this is only for a separate compute job, and a "
        "DistributedTrainingJob refuses it.",
    )
    autoscale: Autoscale | None = Field(
        default=None,
        description="Adapt the number of data workers to the time that ranks wait for input. Unset: the number of "
        "data workers is always replicas.",
    )
    template: PartialTemplate | None = Field(
        default=None,
        description="Pod template of data workers; fields that it omits (image, pull secrets) come from the worker's "
        "template. Unset: the worker's template without devices. The operator sets the command of the first container.",
    )

    RULES = (
        Rule(
            cel="self.kind == 'tensorflow' || !has(self.dispatchers)",
            message="dispatchers are only for kind tensorflow; remove it or set kind: tensorflow",
            path="dispatchers",
            holds=lambda d: d.kind == "tensorflow" or d.dispatchers is None,
        ),
        Rule(
            cel="self.kind == 'tensorflow' || !has(self.dispatcherSide)",
            message="dispatcherSide is only for kind tensorflow; remove it or set kind: tensorflow",
            path="dispatcherSide",
            holds=lambda d: d.kind == "tensorflow" or d.dispatcher_side is None,
        ),
        Rule(
            cel="!has(self.dispatcherSide) || self.dispatcherSide != 'Training'",
            message="the job's data workers run their own dispatchers; remove dispatcherSide, or run "
            "TensorFlow's data service as a separate job: python -m ringtrain.tensorflow.data.compute_worker CONFIG",
            path="dispatcherSide",
            holds=lambda d: d.dispatcher_side != "Training",
        ),
        Rule(
            cel="!has(self.dispatchers) || self.replicas % self.dispatchers == 0",
            message="replicas must be a multiple of dispatchers: all dispatchers have the same number of data workers",
            path="replicas",
            holds=lambda d: d.replicas % (d.dispatchers or 1) == 0,
        ),
        Rule(
            cel="!has(self.autoscale) || !has(self.dispatchers) || self.dispatchers == 1",
            message="with several dispatchers the number of data workers cannot change; remove "
            "autoscale or dispatchers",
            path="autoscale",
            holds=lambda d: d.autoscale is None or d.dispatchers in (None, 1),
        ),
        Rule(
            cel="!has(self.autoscale) || self.autoscale.minReplicas > self.autoscale.maxReplicas || "
            "(self.replicas >= self.autoscale.minReplicas && self.replicas <= self.autoscale.maxReplicas)",
            message="replicas, the initial number, must be from autoscale.minReplicas to autoscale.maxReplicas",
            path="replicas",
            holds=lambda d: (
                d.autoscale is None
                or d.autoscale.min_replicas > d.autoscale.max_replicas
                or d.autoscale.min_replicas <= d.replicas <= d.autoscale.max_replicas
            ),
        ),
    )

    @property
    def most(self) -> int:
        """Return the maximum number of data workers at any time."""
        return self.autoscale.max_replicas if self.autoscale is not None else self.replicas
