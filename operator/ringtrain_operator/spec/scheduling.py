"""`spec.scheduling`: placement of the job's pods, and the queue in which the job waits."""

from typing import Annotated, Literal

from pydantic import Field

from .base import MOST_WORKERS, ObjectName, Rule, SpecModel

# A label's key, as nodes have it.
LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
TopologyKey = Annotated[str, Field(min_length=1, max_length=316, pattern=LABEL_KEY)]


class Topology(SpecModel):
    """Placement of the workers near each other: on nodes with the same value of a label."""

    required: TopologyKey | None = Field(
        default=None,
        description="Node label, for example topology.kubernetes.io/rack: all workers run on nodes with one value of "
        "it, or none runs.",
    )
    preferred: TopologyKey | None = Field(
        default=None, description="Node label: workers run on nodes with one value of it, if there is room."
    )

    RULES = (
        Rule(
            cel="has(self.required) != has(self.preferred)",
            message="give required or preferred, and not both",
            path="required",
            holds=lambda t: (t.required is None) != (t.preferred is None),
        ),
    )


# The cluster autoscaler has the same limit.
_Parameter = Annotated[str, Field(max_length=255)]


class Provisioning(SpecModel):
    """Request to a cluster autoscaler for nodes, made before the pods of an attempt are created."""

    class_name: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        description="provisioningClassName of the ProvisioningRequest, for example "
        "check-capacity.autoscaling.x-k8s.io.",
    )
    parameters: dict[str, _Parameter] = Field(
        default={}, max_length=100, description="Parameters of that class, passed on unchanged."
    )
    timeout_seconds: int = Field(
        default=3600,
        ge=60,
        le=604800,
        description="Without an answer within this time the request is deleted and created again.",
    )


class Scheduling(SpecModel):
    """Placement of the job's pods, and the queue in which the job waits."""

    gang: Literal["Auto", "None", "Kubernetes", "Coscheduling", "Volcano"] = Field(
        default="Auto",
        description="Scheduler that places all pods of an attempt or none. Auto: the first of Kubernetes, "
        "Coscheduling and Volcano that the installation allows and the cluster has; None for a job in a queue of "
        "Kueue. None: pods are "
        "placed one by one. Maturity: Kubernetes Beta, Coscheduling Experimental, Volcano Experimental.",
    )
    queue: ObjectName | None = Field(
        default=None,
        description="Queue in which the job waits: a LocalQueue of Kueue in the job's namespace, or with gang: "
        "Volcano a queue of Volcano. Maturity: Beta.",
    )
    priority_class_name: ObjectName | None = Field(
        default=None,
        description="PriorityClass of all pods whose template names none.",
    )
    min_available: int | None = Field(
        default=None,
        ge=1,
        le=MOST_WORKERS + 1,
        description="Pods, including the launcher, that must be placed before an elastic job starts. Default: the "
        "launcher and elastic.minReplicas.",
    )
    timeout_seconds: int = Field(
        default=300,
        ge=1,
        le=86400,
        description="Time that a gang with only some pods placed may hold their places without a further pod being "
        "placed while other jobs wait, or the time that it has waited before, if longer. Then the next job gets its "
        "turn. A gang scheduler has its own timeouts. Maturity: Beta.",
    )
    provisioning: Provisioning | None = Field(
        default=None,
        description="Request nodes for launcher and workers from a cluster autoscaler, by one ProvisioningRequest per "
        "attempt; pods are created when the nodes exist. Not for a job in a queue of Kueue. Maturity: Experimental.",
    )
    topology: Topology | None = Field(
        default=None,
        description="Placement of the workers near each other: on nodes with the same value of a label. Unset: on "
        "any nodes. Maturity: Beta.",
    )
