"""`spec` of a DistributedTrainingJob, and `Job`: the parsed job that the rest of the operator uses."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from ..contract import GROUP
from .base import DEVICES_HAVE_DOMAINS, MOST_SLOTS, MOST_WORKERS, Devices, ObjectName, Rule, SpecModel
from .data_workers import DataWorkers
from .evaluator import Evaluator
from .policy import Elastic, RunPolicy
from .scheduling import Scheduling, TopologyKey
from .storage import Checkpoint, Logs
from .template import PartialTemplate, WorkerTemplate, device_count, template_devices, worker_devices
from .updates import frozen_data_workers, frozen_field, unchanged_cel

# Kueue's label that names a queue; spec.scheduling.queue takes precedence.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KUEUE_PROVISIONS = (
    "scheduling.provisioning is not for a job in a queue of Kueue, which requests nodes itself: give the "
    "ClusterQueue an admission check of kueue.x-k8s.io/provisioning-request, or remove one of the two"
)
# Kinds of spec.templateRef.
TemplateKind = Literal["ClusterTrainingTemplate", "TrainingTemplate"]
TEMPLATE_KINDS: tuple[TemplateKind, ...] = get_args(TemplateKind)
CLUSTER: TemplateKind = "ClusterTrainingTemplate"
TEMPLATE_PLURALS: dict[str, str] = {kind: f"{kind.lower()}s" for kind in TEMPLATE_KINDS}
# Value of spec.managedBy for this operator.
OURS = f"{GROUP}/operator"
# A value of spec.scheduling.gang.
VOLCANO = "Volcano"
# Kubernetes' default of terminationGracePeriodSeconds.
DEFAULT_GRACE_S = 30


class TemplateRef(SpecModel):
    """Reference to the template whose spec the job's spec overrides."""

    kind: TemplateKind = Field(
        default=CLUSTER, description="ClusterTrainingTemplate, or TrainingTemplate in the job's namespace."
    )
    name: ObjectName = Field(description="Its name.")


class Worker(SpecModel):
    """The worker pods, which run the training program."""

    replicas: int = Field(
        default=1,
        ge=1,
        le=MOST_WORKERS,
        description="Worker pods. A change restarts the gang with the new world; in an elastic job workers join "
        "and leave instead.",
    )
    devices: Devices = Field(
        default={},
        max_length=8,
        description="Extended resources of each worker's training container, for example nvidia.com/gpu: 2.",
    )
    template: WorkerTemplate = Field(
        description="Pod template. One container trains and needs a command, which runs once per rank: the one that "
        "the annotation kubectl.kubernetes.io/default-container names, else one of a usual name (pytorch, tensorflow, "
        "jax, xgboost, node, trainer, worker, mpi, train), else the first."
    )

    RULES = (DEVICES_HAVE_DOMAINS,)

    @property
    def grace_s(self) -> int:
        """Seconds between SIGTERM and SIGKILL when a worker pod is deleted."""
        seconds = self.template["spec"].get("terminationGracePeriodSeconds")
        return DEFAULT_GRACE_S if seconds is None else int(seconds)


class Launcher(SpecModel):
    """The pod that assembles the gang and collects its logs. It never gets devices."""

    template: PartialTemplate = Field(
        default={},
        description="Pod template; fields that it omits (image, pull secrets) come from the worker's template.",
    )


class Mpi(SpecModel):
    """Options of mpirun and of the ranks that it starts. For backend mpi."""

    implementation: Literal["OpenMPI", "MPICH", "Intel"] = Field(
        default="OpenMPI",
        description="The MPI in the image; mpirun runs in the launcher's pod. Maturity: Intel Beta.",
    )
    options: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        default=(), max_length=64, description="Words for mpirun's command line, for example --bind-to, core."
    )
    require_init: bool | None = Field(
        default=None,
        description="Whether a job fails if its program ends with exit code 0 but has not called MPI_Init. Default: "
        "the job succeeds, with a warning.",
    )
    run_launcher_as_worker: bool = Field(
        default=False,
        description="Whether the launcher's pod runs ranks, too: slotsPerWorker of them, the first of the world.",
    )


class Networking(SpecModel):
    """Timeouts, sites and encryption of the network between the job's pods."""

    timeout_seconds: int = Field(
        default=60,
        ge=1,
        le=86400,
        description="A peer that is silent for this time is lost; all shorter timeouts are derived from it.",
    )
    start_timeout_seconds: int = Field(
        default=600, ge=1, le=86400, description="Time that launcher and workers wait for each other at the start."
    )
    sites: TopologyKey | None = Field(
        default=None,
        description="Node label that names a node's site, for example topology.kubernetes.io/zone: links within a "
        "site are fast, links between sites are slow. DiLoCo trains synchronously within a site. Unset: all nodes "
        "are at one site. Maturity: Experimental.",
    )
    encryption: Literal["none", "tensors"] | None = Field(
        default=None,
        description="Traffic that is encrypted in addition to control messages, which always are. none: tensors "
        "travel in clear between pods. tensors: mutual TLS between all ranks of the ring, with the job's own "
        "certificates; slower. Unset: none within a site, tensors between sites. Traffic of other libraries "
        "(torch.distributed, TensorFlow, MPI) is never encrypted. Maturity: Beta.",
    )

    @property
    def encryption_mode(self) -> str:
        """Return the value of RINGTRAIN_ENCRYPT: none, tensors or sites."""
        return self.encryption or ("sites" if self.sites else "none")


def _spec_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _models_digest() -> str:
    """Return a digest of the models' schema: another version of the models may serialise the same spec differently."""
    return _spec_digest(JobSpec.model_json_schema())[:8]


_CONTAINERS = "self.worker.template.spec.containers"
_HAS_CONTAINERS = f"has(self.worker.template) && has(self.worker.template.spec) && has({_CONTAINERS})"


class JobSpec(SpecModel):
    """The job as the user wants it. Maturity: Beta."""

    template_ref: TemplateRef | None = Field(
        default=None,
        description="Template that provides defaults for this spec. It is read once, when the job is accepted, and "
        "stored in the status. Maturity: Experimental.",
    )
    backend: Literal["ring", "mpi"] = Field(
        default="ring", description="ring: gradients are averaged by ringtrain. mpi: the launcher runs mpirun."
    )
    slots_per_worker: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SLOTS,
        description="Ranks in each worker pod. Default: its devices, else 1.",
    )
    worker: Worker = Field(description="The worker pods, which run the training program.")
    launcher: Launcher = Field(
        default=Launcher(), description="The pod that assembles the gang and collects its logs. It never gets devices."
    )
    elastic: Elastic | None = Field(
        default=None,
        description="Limits between which the world size may change within an attempt. "
        "Unset: any loss restarts the gang. Maturity: Beta.",
    )
    agent: Literal["Inject", "Image"] | None = Field(
        default=None,
        description="Source of the agent and the launcher program. Inject: the operator adds them to the pods, so "
        "that any image works, even one without Python; training code that imports ringtrain uses the image's own. "
        "Image: the image's own ringtrain, which must be in PATH. Unset: the default of the operator's installation; "
        "this is Inject, except for an image that declares RINGTRAIN_IMAGE_VERSION. Maturity: Beta.",
    )
    mpi: Mpi | None = Field(
        default=None,
        description="Options of mpirun and of the ranks that it starts. For backend mpi. Maturity: Beta.",
    )
    data_workers: DataWorkers | None = Field(
        default=None,
        description="Pods that prepare input for the ranks. They are replaced one by one and outlive attempts. "
        "Unset: ranks prepare their own input. Maturity: Beta.",
    )
    evaluator: Evaluator | None = Field(
        default=None,
        description="One additional pod that evaluates checkpoints. Its failure does not fail the job, and it ends "
        "with the job. Unset: none. Maturity: Beta.",
    )
    scheduling: Scheduling = Field(
        default=Scheduling(),
        description="Placement of the job's pods, and the queue in which the job waits.",
    )
    run_policy: RunPolicy = Field(
        default=RunPolicy(), description="Rules for the job's start, restarts, end and cleanup. Maturity: Beta."
    )
    logs: Logs = Field(
        default=Logs(),
        description="Storage for the logs of all ranks. Default: an emptyDir, which is deleted with the launcher's "
        "pod. Maturity: Beta.",
    )
    checkpoint: Checkpoint | None = Field(
        default=None,
        description="Storage for checkpoints that outlives an attempt: a claim, an object store, or both. Unset: no "
        "checkpoints; each attempt starts training from the beginning.",
    )
    networking: Networking = Field(
        default=Networking(), description="Timeouts, sites and encryption of the network between the job's pods."
    )
    managed_by: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Name of the controller that runs the job. Unset or ringtrain.dev/operator: this one; "
        "any other name, such as kueue.x-k8s.io/multikueue: this operator ignores the job. "
        "Maturity: Experimental.",
    )

    RULES = (
        # In Python, spec/template.py reports the next three, with the container's path.
        Rule(
            cel=_HAS_CONTAINERS,
            message="worker.template.spec.containers is missing; give a pod template, or name in templateRef a "
            "template that has one",
            path="worker.template",
        ),
        Rule(
            cel=f"self.backend == 'mpi' || !({_HAS_CONTAINERS}) || {_CONTAINERS}.exists(c, has(c.command) && "
            "size(c.command) > 0)",
            message="the training container needs a command, which is missing: the agent starts it once per rank and "
            "cannot see the image's entrypoint",
            path="worker.template.spec.containers",
        ),
        Rule(
            cel=f"!({_HAS_CONTAINERS}) || {_CONTAINERS}.all(c, has(c.name) && has(c.image))",
            message="every container needs a name and an image",
            path="worker.template.spec.containers",
        ),
        Rule(
            cel="!has(self.mpi) || self.backend == 'mpi'",
            message="mpi is only for backend mpi; remove it or set backend: mpi",
            path="mpi",
            holds=lambda s: s.mpi is None or s.backend == "mpi",
        ),
        Rule(
            cel="self.backend != 'mpi' || !has(self.networking.encryption) || self.networking.encryption == 'none'",
            message="networking.encryption: tensors is only for backend ring; MPI's own traffic is not encrypted",
            path="networking.encryption",
            holds=lambda s: s.backend != "mpi" or s.networking.encryption in (None, "none"),
        ),
        Rule(
            cel="!has(self.networking.sites) || self.backend == 'ring'",
            message="networking.sites is for jobs of backend ring; remove it, or set backend: ring",
            path="networking.sites",
            holds=lambda s: s.networking.sites is None or s.backend == "ring",
        ),
        Rule(
            cel="has(self.slotsPerWorker) || !has(self.worker.devices) || size(self.worker.devices) < 2",
            message="with several kinds of devices the number of ranks is not clear; set slotsPerWorker",
            path="slotsPerWorker",
            holds=lambda s: s.slots_per_worker is not None or len(s.worker.devices) < 2,
        ),
        Rule(
            cel="!has(self.elastic) || self.worker.replicas >= self.elastic.minReplicas",
            message="worker.replicas must not be less than elastic.minReplicas",
            path="worker.replicas",
            holds=lambda s: s.elastic is None or s.worker.replicas >= s.elastic.min_replicas,
        ),
        Rule(
            cel="!has(self.elastic) || self.worker.replicas <= self.elastic.maxReplicas",
            message="worker.replicas must not be greater than elastic.maxReplicas",
            path="worker.replicas",
            holds=lambda s: s.elastic is None or s.worker.replicas <= s.elastic.max_replicas,
        ),
        Rule(
            cel="!has(self.elastic) || self.backend != 'mpi' || self.elastic.onLoss == 'Restart'",
            message="under backend mpi a running world cannot change its size; set elastic.onLoss: Restart",
            path="elastic.onLoss",
            holds=lambda s: s.elastic is None or s.backend != "mpi" or s.elastic.on_loss == "Restart",
        ),
        Rule(
            cel="!has(self.elastic) || !has(self.mpi) || !self.mpi.runLauncherAsWorker",
            message="the launcher of an elastic job outlives its ranks and runs none itself; remove "
            "mpi.runLauncherAsWorker or elastic",
            path="mpi.runLauncherAsWorker",
            holds=lambda s: s.elastic is None or s.mpi is None or not s.mpi.run_launcher_as_worker,
        ),
        Rule(
            cel="!has(self.elastic) || !has(self.dataWorkers) || !has(self.dataWorkers.dispatchers) || "
            "self.dataWorkers.dispatchers == 1",
            message="in an elastic job the number of ranks changes, and all ranks share one dispatcher; remove "
            "dataWorkers.dispatchers or elastic",
            path="dataWorkers.dispatchers",
            holds=lambda s: s.elastic is None or s.data_workers is None or s.data_workers.dispatchers in (None, 1),
        ),
        Rule(
            cel="!has(self.scheduling.minAvailable) || self.scheduling.minAvailable <= self.worker.replicas + 1",
            message="scheduling.minAvailable must not be greater than worker.replicas + 1: the job's pods are its "
            "workers and the launcher",
            path="scheduling.minAvailable",
            holds=lambda s: (s.scheduling.min_available or 0) <= s.worker.replicas + 1,
        ),
        Rule(
            cel="!has(self.scheduling.minAvailable) || has(self.elastic)",
            message="scheduling.minAvailable is for elastic jobs; any other needs the launcher and all workers",
            path="scheduling.minAvailable",
            holds=lambda s: s.scheduling.min_available is None or s.elastic is not None,
        ),
        Rule(
            cel="!has(self.scheduling.provisioning) || !has(self.scheduling.queue) || self.scheduling.gang == "
            "'Volcano'",
            message=KUEUE_PROVISIONS,
            path="scheduling.provisioning",
            holds=lambda s: (
                s.scheduling.provisioning is None or s.scheduling.queue is None or s.scheduling.gang == VOLCANO
            ),
        ),
        frozen_field("backend"),
        frozen_field("slotsPerWorker", optional=True),
        frozen_field("worker.devices", optional=True, name="devices"),
        frozen_field("templateRef", optional=True),
        frozen_field("worker.template", optional=True, name="a pod template"),
        frozen_field("launcher.template", name="a pod template"),
        *(
            frozen_field(section, optional=True)
            for section in (
                "agent",
                "checkpoint",
                "elastic",
                "evaluator",
                "logs",
                "mpi",
                "networking",
                "scheduling",
            )
        ),
        frozen_data_workers(),
        # In Python, spec/reserved.py reports this, with the number of ranks.
        Rule(
            cel="oldSelf.runPolicy.suspend || self.worker.replicas == oldSelf.worker.replicas || "
            "!has(self.dataWorkers) || !has(self.dataWorkers.dispatchers) || self.dataWorkers.dispatchers == 1",
            message="each rank has its own dispatcher (dataWorkers.dispatchers): worker.replicas can change "
            "only together with it, while the job is suspended; set runPolicy.suspend: true first",
            path="worker.replicas",
        ),
        Rule(
            cel=unchanged_cel("managedBy", optional=True),
            message="managedBy cannot change; delete the job and create it again",
            path="managedBy",
            holds_update=lambda new, old: new.managed_by == old.managed_by,
        ),
    )

    @functools.cached_property
    def frozen_digest(self) -> str:
        """Return a digest of all fields that can change only while the job is suspended. Fields at their default are
        omitted.

        The digest follows a colon. A digest of the models precedes it, see `are_comparable_digests`.
        """
        follows: dict[str, Any] = {
            "worker": {"replicas"},
            "data_workers": {"replicas", "autoscale"},
            "run_policy": True,
            "managed_by": True,
        }
        fixed = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=follows)
        return f"{_models_digest()}:{_spec_digest(fixed)}"

    @property
    def slots(self) -> int:
        """Ranks of each worker pod. Default: one for each device in spec.worker.devices or in the template."""
        if self.slots_per_worker is not None:
            return self.slots_per_worker
        amounts = self.worker.devices or template_devices(self.worker.template)
        return device_count(next(iter(amounts.values()), 1)) or 1


def are_comparable_digests(one: str, other: str) -> bool:
    """Return whether both digests come from the same version of the models. Others cannot be compared."""
    return one.partition(":")[0] == other.partition(":")[0]


def is_ours(managed_by: object) -> bool:
    """Return whether this operator runs the job with this spec.managedBy. It ignores all other jobs."""
    return managed_by in (None, OURS)


def kueue_queue(queue: object, labels: Mapping[str, Any], gang: object = None) -> str:
    """Return the LocalQueue of Kueue that scheduling.queue or Kueue's own label names; empty if there is none.

    With scheduling.gang Volcano, scheduling.queue names a queue of Volcano, and only the label names one of Kueue.
    """
    named = None if gang == VOLCANO else queue
    return str(named or labels.get(QUEUE_LABEL) or "")


@dataclass(frozen=True)
class Job:
    """A DistributedTrainingJob whose spec is valid."""

    name: str
    namespace: str
    uid: str
    generation: int
    created: datetime
    spec: JobSpec
    deleting: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def queue(self) -> str:
        """Kueue's LocalQueue in which the job waits; empty if none."""
        return kueue_queue(self.spec.scheduling.queue, self.labels, self.spec.scheduling.gang)

    @property
    def volcano_queue(self) -> str:
        """Volcano's queue in which the job waits; empty for Volcano's default queue, or without Volcano."""
        wanted = self.spec.scheduling
        return (wanted.queue or "") if wanted.gang == VOLCANO else ""

    @property
    def num_workers(self) -> int:
        """Number of worker pods in the spec."""
        return self.spec.worker.replicas

    @property
    def num_agents(self) -> int:
        """Number of pods that run ranks: the workers, and the launcher with mpi.runLauncherAsWorker."""
        mpi = self.spec.mpi
        return self.num_workers + (1 if mpi is not None and mpi.run_launcher_as_worker else 0)

    @property
    def max_agents(self) -> int:
        """Maximum number of pods that run ranks at the same time: elastic.maxReplicas, or else `num_agents`."""
        return self.spec.elastic.max_replicas if self.spec.elastic is not None else self.num_agents

    @property
    def worker_devices(self) -> dict[str, int]:
        """Extended resources of each worker, from spec.worker.devices and the template."""
        return worker_devices(self.spec.worker.template, self.spec.worker.devices)

    @property
    def min_available(self) -> int:
        """Pods, including the launcher, that must be placed before the gang starts."""
        least = self.spec.elastic.min_replicas if self.spec.elastic is not None else self.num_workers
        return self.spec.scheduling.min_available or least + 1

    @property
    def world_size(self) -> int:
        """Number of ranks in the spec."""
        return self.num_agents * self.spec.slots
