"""Models of `spec.scheduling`: placement of the job's pods, and the queue in which the job waits."""

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
        description="Node label, for example topology.kubernetes.io/rack. All workers run on nodes with the same "
        "value of this label, or no worker runs.",
    )
    preferred: TopologyKey | None = Field(
        default=None,
        description="Node label. Workers run on nodes with the same value of this label if these nodes have room, "
        "otherwise also on other nodes.",
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
        default={},
        max_length=100,
        description="Parameters of the provisioning class, which the operator does not change.",
    )
    timeout_seconds: int = Field(
        default=3600,
        ge=60,
        le=604800,
        description="Seconds after which a ProvisioningRequest without an answer is deleted and created again.",
    )


class Scheduling(SpecModel):
    """Placement of the job's pods, and the queue in which the job waits."""

    gang: Literal["Auto", "None", "Kubernetes", "Coscheduling", "Volcano"] = Field(
        default="Auto",
        description="Gang scheduler, which places all pods of an attempt or none. Auto: the first of Kubernetes, "
        "Coscheduling and Volcano that the installation allows and the cluster has; a job in a queue of Kueue gets "
        "no gang scheduler. None: pods are placed one by one. Maturity: Kubernetes Beta, Coscheduling Experimental, "
        "Volcano Experimental.",
    )
    queue: ObjectName | None = Field(
        default=None,
        description="Queue in which the job waits: a LocalQueue of Kueue in the job's namespace, or with gang: "
        "Volcano a queue of Volcano. Maturity: Beta.",
    )
    priority_class_name: ObjectName | None = Field(
        default=None,
        description="PriorityClass of those pods of the job whose pod template sets none.",
    )
    min_available: int | None = Field(
        default=None,
        ge=1,
        le=MOST_WORKERS + 1,
        description="Number of pods, including the launcher, that must be placed before an elastic job starts. "
        "Default: the launcher and elastic.minReplicas.",
    )
    timeout_seconds: int = Field(
        default=300,
        ge=1,
        le=86400,
        description="Seconds for which a partly placed gang may occupy nodes while other jobs wait. After this time "
        "the gang leaves the nodes to the next job. A gang that has already waited longer than timeoutSeconds may "
        "occupy nodes for as long as it has waited. A gang scheduler has its own timeouts. Maturity: Beta.",
    )
    provisioning: Provisioning | None = Field(
        default=None,
        description="Request nodes for launcher and workers from a cluster autoscaler, by one ProvisioningRequest "
        "per attempt. Pods are created when the nodes exist. A job in a queue of Kueue must not set this field. "
        "Maturity: Experimental.",
    )
    topology: Topology | None = Field(
        default=None,
        description="Placement of the workers near each other, on nodes with the same value of a label. Unset: "
        "workers run on any nodes. Maturity: Beta.",
    )
