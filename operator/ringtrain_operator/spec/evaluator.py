"""Model of `spec.evaluator`: an additional pod that evaluates checkpoints."""

from pydantic import Field

from .base import DEVICES_HAVE_DOMAINS, Devices, SpecModel
from .template import PartialTemplate


class Evaluator(SpecModel):
    """One additional pod that evaluates checkpoints. A failure of this pod does not fail the job, and the pod ends with
    the job."""

    devices: Devices = Field(
        default={}, max_length=8, description="Extended resources of the evaluator's first container. Default: none."
    )
    timeout_seconds: int = Field(
        default=300,
        ge=0,
        le=86400,
        description="Seconds that the evaluator may continue after the job has succeeded, to evaluate the last "
        "checkpoint; then it gets SIGTERM. After a failure, a suspension or a deletion it gets SIGTERM at once.",
    )
    template: PartialTemplate | None = Field(
        default=None,
        description="Pod template of the evaluator; fields that it omits (image, command, pull secrets) come from the "
        "worker's template. Unset: the worker's template without devices.",
    )

    RULES = (DEVICES_HAVE_DOMAINS,)
