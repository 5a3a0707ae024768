"""Parts of `spec`: the reference to a template, worker, launcher and evaluator pods, MPI, the network."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from .base import DEVICES_HAVE_DOMAINS, MOST_WORKERS, Devices, ObjectName, SpecModel
from .scheduling import TopologyKey
from .template import PartialTemplate, WorkerTemplate

# Kinds of spec.templateRef.
TemplateKind = Literal["ClusterTrainingTemplate", "TrainingTemplate"]
TEMPLATE_KINDS: tuple[TemplateKind, ...] = get_args(TemplateKind)
CLUSTER: TemplateKind = "ClusterTrainingTemplate"
TEMPLATE_PLURALS: dict[str, str] = {kind: f"{kind.lower()}s" for kind in TEMPLATE_KINDS}
# Kubernetes' default of terminationGracePeriodSeconds.
DEFAULT_GRACE_S = 30


class TemplateRef(SpecModel):
    """Reference to the template whose spec the job's spec overrides."""

    kind: TemplateKind = Field(
        default=CLUSTER,
        description="Kind of the template: ClusterTrainingTemplate, or TrainingTemplate in the job's namespace.",
    )
    name: ObjectName = Field(description="Name of the template.")


class Worker(SpecModel):
    """The worker pods, which run the training program."""

    replicas: int = Field(
        default=1,
        ge=1,
        le=MOST_WORKERS,
        description="Number of worker pods. A change restarts the gang with the new world; in an elastic job workers "
        "join and leave instead.",
    )
    devices: Devices = Field(
        default={},
        max_length=8,
        description="Extended resources of each worker's training container, for example nvidia.com/gpu: 2.",
    )
    template: WorkerTemplate = Field(
        description="Pod template. Its training container needs a command, which runs once per rank. This is the "
        "container that the annotation kubectl.kubernetes.io/default-container names, else the first one with a usual "
        "name (pytorch, tensorflow, jax, xgboost, node, trainer, worker, mpi, train), else the first container."
    )
    rank0_template: PartialTemplate | None = Field(
        default=None,
        description="Whole pod template of worker 0, used instead of `template`. Command, image, volumes, affinity, "
        "CPU and memory may differ from `template`; devices may not. Worker 0 has rank 0, except in an elastic job "
        "that lost worker 0. Unset: worker 0 uses `template`. Maturity: Beta.",
    )

    RULES = (DEVICES_HAVE_DOMAINS,)

    def template_of(self, index: int) -> dict[str, Any]:
        """Return the template of worker `index`'s pod."""
        return self.template if index or self.rank0_template is None else self.rank0_template

    @property
    def grace_s(self) -> int:
        """Seconds between SIGTERM and SIGKILL when a worker's pod is deleted."""
        seconds = self.template["spec"].get("terminationGracePeriodSeconds")
        return DEFAULT_GRACE_S if seconds is None else int(seconds)


class Launcher(SpecModel):
    """The pod that assembles the gang and collects its logs. It never gets devices."""

    template: PartialTemplate = Field(
        default={},
        description="Pod template of the launcher; fields that it omits (image, pull secrets) come from the worker's "
        "template.",
    )


class Mpi(SpecModel):
    """Options of mpirun, and of the ranks that mpirun starts, for backend mpi."""

    implementation: Literal["OpenMPI", "MPICH", "Intel"] = Field(
        default="OpenMPI",
        description="MPI implementation that the image contains; its mpirun runs in the launcher's pod. Maturity: "
        "Intel Beta.",
    )
    options: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        default=(), max_length=64, description="Additional arguments of mpirun, for example --bind-to, core."
    )
    require_init: bool | None = Field(
        default=None,
        description="Whether a job fails if its program ends with exit code 0 but has not called MPI_Init. Unset: "
        "such a job succeeds, with a warning.",
    )
    run_launcher_as_worker: bool = Field(
        default=False,
        description="Whether the launcher's pod also runs ranks: slotsPerWorker of them, the first of the world.",
    )


class Networking(SpecModel):
    """Timeouts, sites and encryption of the network between the job's pods."""

    timeout_seconds: int = Field(
        default=60,
        ge=1,
        le=86400,
        description="Seconds without an answer after which a process counts as lost. Shorter timeouts are derived from "
        "this.",
    )
    start_timeout_seconds: int = Field(
        default=600,
        ge=1,
        le=86400,
        description="Seconds that launcher and workers wait for each other at the start of an attempt. After the same "
        "time the job fails if a pod names a ConfigMap, Secret, key or claim that does not exist.",
    )
    sites: TopologyKey | None = Field(
        default=None,
        description="Node label whose value is a node's site, for example topology.kubernetes.io/zone. Links within a "
        "site are fast, links between sites are slow. DiLoCo trains synchronously within a site. Unset: "
        "all nodes are at one site. Maturity: Experimental.",
    )
    encryption: Literal["none", "tensors"] | None = Field(
        default=None,
        description="Traffic that is encrypted in addition to control messages, which are always encrypted. none: "
        "tensors between pods are not encrypted. tensors: mutual TLS between all ranks of the ring, with the job's "
        "own certificates; slower. Unset: only tensors between sites are encrypted. Traffic of other libraries "
        "(torch.distributed, TensorFlow, MPI) is never encrypted. Maturity: Beta.",
    )

    @property
    def encryption_mode(self) -> str:
        """Return the mode of encryption: none, tensors or sites (the value of RINGTRAIN_ENCRYPT)."""
        return self.encryption or ("sites" if self.sites else "none")


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
