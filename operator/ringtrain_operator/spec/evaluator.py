"""`spec.evaluator`: one pod beside the ranks that evaluates checkpoints."""

from pydantic import Field

from .base import DEVICES_HAVE_DOMAINS, Devices, SpecModel
from .template import PartialTemplate


class Evaluator(SpecModel):
    """One pod beside the ranks that evaluates checkpoints. Its failure fails nothing, and it ends with the job."""

    devices: Devices = Field(
        default={}, max_length=8, description="Extended resources of its first container. Default: none."
    )
    timeout_seconds: int = Field(
        default=300,
        ge=0,
        le=86400,
        description="How long it may go on after the job has succeeded, to evaluate the last checkpoint; then it "
        "is asked to end. After a failure, at a suspension and at a deletion it is asked at once.",
    )
    template: PartialTemplate | None = Field(
        default=None,
        description="Pod template; what it leaves out (image, command, pull secrets) comes from the worker's "
        "template. Unset: the worker's without its devices.",
    )

    RULES = (DEVICES_HAVE_DOMAINS,)
