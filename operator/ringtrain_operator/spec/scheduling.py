"""`spec.scheduling`: how the job's pods are placed together, and which queue the job waits in."""

from typing import Annotated, Literal

from pydantic import Field

from .base import MOST_WORKERS, ObjectName, Rule, SpecModel

# A label's key, as nodes have it.
TopologyKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=316,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    ),
]


class Topology(SpecModel):
    """Workers near each other: on nodes that have the same value of a label."""

    required: TopologyKey | None = Field(
        default=None,
        description="Label of nodes, for example topology.kubernetes.io/rack: all workers run where it has one "
        "value, or none does.",
    )
    preferred: TopologyKey | None = Field(
        default=None, description="Label of nodes: workers run where it has one value, if they find room there."
    )

    RULES = (
        Rule(
            cel="has(self.required) != has(self.preferred)",
            message="give required or preferred, and not both",
            path="required",
            holds=lambda t: (t.required is None) != (t.preferred is None),
        ),
    )


# As the cluster autoscaler bounds it.
_Parameter = Annotated[str, Field(max_length=255)]


class Provisioning(SpecModel):
    """Nodes that a cluster autoscaler is asked for before the pods of an attempt are made."""

    class_name: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        description="provisioningClassName of the ProvisioningRequest, for example "
        "check-capacity.autoscaling.x-k8s.io.",
    )
    parameters: dict[str, _Parameter] = Field(
        default={}, max_length=100, description="Parameters of that class, passed on as they are."
    )
    timeout_seconds: int = Field(
        default=3600,
        ge=60,
        le=604800,
        description="After so long without an answer the request is withdrawn and made anew.",
    )


class Scheduling(SpecModel):
    """How the job's pods are placed together, and which queue the job waits in."""

    gang: Literal["Auto", "None", "Kubernetes", "Coscheduling", "Volcano"] = Field(
        default="Auto",
        description="Scheduler that places all pods of an attempt or none. Auto: the first of those named here "
        "that the installation allows and the cluster has, and none for a job in a queue of Kueue. None: pods are "
        "placed one by one. Maturity: Kubernetes Beta, Coscheduling Experimental, Volcano Experimental.",
    )
    queue: ObjectName | None = Field(
        default=None,
        description="Queue that the job waits in: a LocalQueue of Kueue in the job's namespace, or with gang: "
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
        description="Pods, the launcher among them, with which an elastic job is placed whole. Default: the "
        "launcher and elastic.minReplicas.",
    )
    timeout_seconds: int = Field(
        default=300,
        ge=1,
        le=86400,
        description="How long a gang that is not placed whole may hold places without another being added while "
        "other jobs wait for them, or as long as it has waited by then. Then the next has its turn. A gang "
        "scheduler has times of its own. Maturity: Beta.",
    )
    provisioning: Provisioning | None = Field(
        default=None,
        description="Asks a cluster autoscaler for the nodes of launcher and workers, as a ProvisioningRequest an "
        "attempt; pods are made when they are there. Not for a job in a queue of Kueue. Maturity: Experimental.",
    )
    topology: Topology | None = Field(
        default=None,
        description="Workers near each other: on nodes that have the same value of a label. Unset: wherever there "
        "is room. Maturity: Beta.",
    )
