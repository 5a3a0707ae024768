"""`spec` of a DistributedTrainingJob, and the job as the rest of the operator sees it."""

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
from .updates import frozen_field, same_data_workers, unchanged_field

# Kueue's own way to name a queue; where spec.scheduling.queue is set, that counts.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KUEUE_PROVISIONS = (
    "scheduling.provisioning is not for a job in a queue of Kueue, which asks for nodes itself: give the "
    "ClusterQueue an admission check of kueue.x-k8s.io/provisioning-request, or remove one of the two"
)
# Of spec.templateRef.
TemplateKind = Literal["ClusterTrainingTemplate", "TrainingTemplate"]
TEMPLATE_KINDS: tuple[TemplateKind, ...] = get_args(TemplateKind)
CLUSTER: TemplateKind = "ClusterTrainingTemplate"
TEMPLATE_PLURALS: dict[str, str] = {kind: f"{kind.lower()}s" for kind in TEMPLATE_KINDS}
# Of spec.managedBy.
OURS = f"{GROUP}/operator"
# Of spec.scheduling.gang.
VOLCANO = "Volcano"
# What Kubernetes takes where a pod does not say it.
DEFAULT_GRACE_S = 30


class TemplateRef(SpecModel):
    """The template that a job is laid over."""

    kind: TemplateKind = Field(
        default=CLUSTER, description="ClusterTrainingTemplate, or TrainingTemplate of the job's namespace."
    )
    name: ObjectName = Field(description="Its name.")


class Worker(SpecModel):
    """The pods that train."""

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
        description="Pod template; its first container trains and needs a command, which runs once per rank."
    )

    RULES = (DEVICES_HAVE_DOMAINS,)

    @property
    def grace_s(self) -> int:
        """Seconds that a pod gets from SIGTERM to SIGKILL."""
        told = self.template["spec"].get("terminationGracePeriodSeconds")
        return DEFAULT_GRACE_S if told is None else int(told)


class Launcher(SpecModel):
    """The pod that gathers the gang and its logs. It never gets devices."""

    template: PartialTemplate = Field(
        default={},
        description="Pod template; what it leaves out (image, pull secrets) comes from the worker's template.",
    )


class Mpi(SpecModel):
    """How ranks are started under the mpi backend."""

    implementation: Literal["OpenMPI", "MPICH", "Intel"] = Field(
        default="OpenMPI",
        description="The MPI in the image; mpirun runs in the launcher's pod. Maturity: Intel Beta.",
    )
    options: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        default=(), max_length=64, description="Words for mpirun's command line, for example --bind-to, core."
    )
    require_init: bool | None = Field(
        default=None,
        description="Whether a program that ends well without having called MPI_Init is a failed job. Default: it "
        "has succeeded, with a warning.",
    )
    run_launcher_as_worker: bool = Field(
        default=False,
        description="Whether the launcher's pod runs ranks, too: slotsPerWorker of them, the first of the world.",
    )


class Networking(SpecModel):
    """Deadlines, sites and encryption of the gang's own network."""

    timeout_seconds: int = Field(
        default=60,
        ge=1,
        le=86400,
        description="A peer that is silent for so long is lost; every inner deadline derives from it.",
    )
    start_timeout_seconds: int = Field(
        default=600, ge=1, le=86400, description="How long launcher and workers wait for each other at the start."
    )
    sites: TopologyKey | None = Field(
        default=None,
        description="Label of nodes that names their sites, for example topology.kubernetes.io/zone: within one "
        "the network is fast, between two it is thin. DiLoCo trains synchronously inside. Unset: all nodes are at "
        "one site. Maturity: Experimental.",
    )
    encryption: Literal["none", "tensors"] | None = Field(
        default=None,
        description="What is encrypted beside control, which always is. none: tensors travel in clear between "
        "pods. tensors: mutual TLS between all ranks of the ring, with the job's own certificates; slower. Unset: "
        "as none within a site, as tensors between sites. Traffic of other libraries (torch.distributed, "
        "TensorFlow, MPI) is never encrypted. Maturity: Beta.",
    )

    @property
    def encrypts(self) -> str:
        """What the runtime is told of it."""
        return self.encryption or ("sites" if self.sites else "none")


def _spec_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _spec_models() -> str:
    """A digest of the models themselves: another version may write the same spec otherwise."""
    return _spec_digest(JobSpec.model_json_schema())[:8]


_CONTAINERS = "self.worker.template.spec.containers"
_HAS_CONTAINERS = f"has(self.worker.template) && has(self.worker.template.spec) && has({_CONTAINERS})"


class JobSpec(SpecModel):
    """What the user asks for. Maturity: Beta."""

    template_ref: TemplateRef | None = Field(
        default=None,
        description="Template that the spec is laid over; what it says need not be said here. It is read once, "
        "when the job is accepted, and kept in the status. Maturity: Experimental.",
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
    worker: Worker = Field(description="The pods that train.")
    launcher: Launcher = Field(
        default=Launcher(), description="The pod that gathers the gang and its logs. It never gets devices."
    )
    elastic: Elastic | None = Field(
        default=None,
        description="Between which sizes the world may change within an attempt. "
        "Unset: any loss restarts the gang. Maturity: Beta.",
    )
    agent: Literal["Inject", "Image"] | None = Field(
        default=None,
        description="Where agent and launcher come from. Inject: from the operator, so that pods of any image run "
        "them, without Python even; training code that imports ringtrain has the image's own. Image: from the "
        "image's own ringtrain, which must be in PATH. Unset: as the operator's installation says; by default "
        "Inject, except in an image that says that it has ringtrain (RINGTRAIN_IMAGE_VERSION). Maturity: Beta.",
    )
    mpi: Mpi | None = Field(default=None, description="How ranks are started under the mpi backend. Maturity: Beta.")
    data_workers: DataWorkers | None = Field(
        default=None,
        description="Pods that prepare input for the ranks. They are replaced one by one and outlive attempts. "
        "Unset: ranks prepare their own. Maturity: Beta.",
    )
    evaluator: Evaluator | None = Field(
        default=None,
        description="One pod beside the ranks that evaluates checkpoints. Its failure fails nothing, and it ends "
        "with the job. Unset: none. Maturity: Beta.",
    )
    scheduling: Scheduling = Field(
        default=Scheduling(),
        description="How the job's pods are placed together, and which queue the job waits in.",
    )
    run_policy: RunPolicy = Field(
        default=RunPolicy(), description="When the job starts, restarts, ends and is cleaned up. Maturity: Beta."
    )
    logs: Logs = Field(
        default=Logs(),
        description="Where the launcher keeps every rank's log. Default: an emptyDir, gone with the launcher's "
        "pod. Maturity: Beta.",
    )
    checkpoint: Checkpoint | None = Field(
        default=None,
        description="Where checkpoints outlive an attempt: a claim, an object store, or both. Unset: an attempt "
        "has none, and training starts over.",
    )
    networking: Networking = Field(
        default=Networking(), description="Deadlines, sites and encryption of the gang's own network."
    )
    managed_by: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Name of the controller that runs the job. Unset or ringtrain.dev/operator: this one; "
        "any other name, such as kueue.x-k8s.io/multikueue: this operator leaves the job alone. "
        "Maturity: Experimental.",
    )

    RULES = (
        # For the models spec/template.py says the next three, with the container's path.
        Rule(
            cel=_HAS_CONTAINERS,
            message="worker.template.spec.containers is missing; give a pod template, or name in templateRef a "
            "template that has one",
            path="worker.template",
        ),
        Rule(
            cel=f"self.backend == 'mpi' || !({_HAS_CONTAINERS}) || (has({_CONTAINERS}[0].command) && "
            f"size({_CONTAINERS}[0].command) > 0)",
            message="containers[0] needs a command, which is missing: the agent starts it once per rank and "
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
            message="under backend mpi a world cannot change while its processes live; set elastic.onLoss: Restart",
            path="elastic.onLoss",
            holds=lambda s: s.elastic is None or s.backend != "mpi" or s.elastic.on_loss == "Restart",
        ),
        Rule(
            cel="!has(self.elastic) || !has(self.mpi) || !self.mpi.runLauncherAsWorker",
            message="the launcher of an elastic job outlives its ranks and has none of its own; remove "
            "mpi.runLauncherAsWorker or elastic",
            path="mpi.runLauncherAsWorker",
            holds=lambda s: s.elastic is None or s.mpi is None or not s.mpi.run_launcher_as_worker,
        ),
        Rule(
            cel="!has(self.elastic) || !has(self.dataWorkers) || !has(self.dataWorkers.dispatchers) || "
            "self.dataWorkers.dispatchers == 1",
            message="the ranks of an elastic job come and go, and share one dispatcher; remove "
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
        same_data_workers(),
        # For the models spec/reserved.py says it, with the number of ranks.
        Rule(
            cel="oldSelf.runPolicy.suspend || self.worker.replicas == oldSelf.worker.replicas || "
            "!has(self.dataWorkers) || !has(self.dataWorkers.dispatchers) || self.dataWorkers.dispatchers == 1",
            message="each rank has a dispatcher of its own (dataWorkers.dispatchers): worker.replicas can change "
            "only together with that, while the job is suspended; set runPolicy.suspend: true first",
            path="worker.replicas",
        ),
        Rule(
            cel=unchanged_field("managedBy", optional=True),
            message="managedBy cannot change; delete the job and create it anew",
            path="managedBy",
            holds_update=lambda new, old: new.managed_by == old.managed_by,
        ),
    )

    @functools.cached_property
    def fixed(self) -> str:
        """A digest of all that can change only while the job is suspended. A default counts as left out.

        In front of a colon stands what the digest depends on besides, see `comparable_spec`.
        """
        follows: dict[str, Any] = {
            "worker": {"replicas"},
            "data_workers": {"replicas", "autoscale"},
            "run_policy": True,
            "managed_by": True,
        }
        fixed = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=follows)
        return f"{_spec_models()}:{_spec_digest(fixed)}"

    @property
    def slots(self) -> int:
        """Ranks of each worker pod: one for each of its devices, wherever they are written."""
        if self.slots_per_worker is not None:
            return self.slots_per_worker
        amounts = self.worker.devices or template_devices(self.worker.template)
        return device_count(next(iter(amounts.values()), 1)) or 1


def comparable_spec(fixed: str, noted: str) -> bool:
    """Whether both digests are of the same version's models: what another version noted can't be compared."""
    return fixed.partition(":")[0] == noted.partition(":")[0]


def is_ours(managed_by: object) -> bool:
    """Whether this operator runs the job with this spec.managedBy; else it leaves the job alone."""
    return managed_by in (None, OURS)


def kueue_queue(queue: object, labels: Mapping[str, Any], gang: object = None) -> str:
    """The LocalQueue that scheduling.queue or Kueue's own label names; empty: the job waits in none.

    With scheduling.gang: Volcano the field names a queue of Volcano, and only the label one of Kueue.
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
        """Kueue's LocalQueue that the job waits in; empty: it waits in none."""
        return kueue_queue(self.spec.scheduling.queue, self.labels, self.spec.scheduling.gang)

    @property
    def volcano_queue(self) -> str:
        """Volcano's queue that the job waits in; empty: Volcano's default, or it waits in none."""
        wanted = self.spec.scheduling
        return (wanted.queue or "") if wanted.gang == VOLCANO else ""

    @property
    def num_workers(self) -> int:
        """Worker pods that the spec asks for."""
        return self.spec.worker.replicas

    @property
    def num_agents(self) -> int:
        """Pods that run ranks: the workers, and the launcher if it is to be one of them."""
        mpi = self.spec.mpi
        return self.num_workers + (1 if mpi is not None and mpi.run_launcher_as_worker else 0)

    @property
    def most_agents(self) -> int:
        """Pods that may run ranks at a time: those of `num_agents`, or an elastic job's most workers."""
        return self.spec.elastic.max_replicas if self.spec.elastic is not None else self.num_agents

    @property
    def worker_devices(self) -> dict[str, int]:
        """Extended resources of each worker, wherever they are written."""
        return worker_devices(self.spec.worker.template, self.spec.worker.devices)

    @property
    def min_available(self) -> int:
        """Pods, the launcher among them, without which the gang does not begin."""
        least = self.spec.elastic.min_replicas if self.spec.elastic is not None else self.num_workers
        return self.spec.scheduling.min_available or least + 1

    @property
    def world_size(self) -> int:
        """Ranks that the spec asks for."""
        return self.num_agents * self.spec.slots
