"""Models of `spec`, and the class `Job`: a valid job, which the rest of the operator uses."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from ..contract import GROUP
from .base import MOST_SLOTS, Rule, SpecModel
from .data_workers import DataWorkers
from .parts import Evaluator, Launcher, Mpi, Networking, TemplateRef, Worker
from .policy import Elastic, RunPolicy
from .scheduling import Scheduling
from .storage import Checkpoint, Logs
from .template import device_count, template_devices, worker_devices
from .updates import frozen_data_workers, frozen_field, unchanged_cel

# Kueue's label that names a queue; spec.scheduling.queue takes precedence.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KUEUE_PROVISIONS = (
    "scheduling.provisioning is not for a job in a queue of Kueue, which requests nodes itself: give the "
    "ClusterQueue an admission check of kueue.x-k8s.io/provisioning-request, or remove one of the two"
)
# As Kubernetes wants the managedBy of its own Jobs: a domain, '/' and a path.
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
MANAGER_NAME = rf"^{_LABEL}(\.{_LABEL})*/[A-Za-z0-9/._~%!$&'()*+,;=:-]+$"
# Value of spec.managedBy for this operator.
OURS = f"{GROUP}/operator"
# A value of spec.scheduling.gang.
VOLCANO = "Volcano"


def _spec_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _models_digest() -> str:
    """Return a digest of the models, because another version of them may serialise the same spec differently."""
    return _spec_digest(JobSpec.model_json_schema())[:8]


_CONTAINERS = "self.worker.template.spec.containers"
_HAS_CONTAINERS = f"has(self.worker.template) && has(self.worker.template.spec) && has({_CONTAINERS})"
_RANK0 = "self.worker.rank0Template"


class JobSpec(SpecModel):
    """Specification of a training job. Maturity: Beta."""

    template_ref: TemplateRef | None = Field(
        default=None,
        description="Template that provides defaults for this spec. The operator reads the template once, when it "
        "accepts the job, and stores a copy in the status. Maturity: Experimental.",
    )
    backend: Literal["ring", "mpi"] = Field(
        default="ring", description="ring: gradients are averaged by ringtrain. mpi: the launcher runs mpirun."
    )
    slots_per_worker: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SLOTS,
        description="Number of ranks in each worker pod. Default: the number of its devices, or 1 without devices.",
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
        description="Source of the agent and the launcher program. Inject: the operator adds these programs to the "
        "pods, so that any image works, even one without Python; training code that imports ringtrain uses the "
        "ringtrain in its image. Image: the image contains ringtrain, with its program in PATH. Unset: the default "
        "of the operator's installation; this is Inject, except for an image that declares RINGTRAIN_IMAGE_VERSION. "
        "Maturity: Beta.",
    )
    mpi: Mpi | None = Field(
        default=None,
        description="Options of mpirun, and of the ranks that mpirun starts, for backend mpi. Maturity: Beta.",
    )
    data_workers: DataWorkers | None = Field(
        default=None,
        description="Pods that prepare input for the ranks. The operator replaces each of these pods alone; they do "
        "not end with an attempt. Unset: ranks prepare their input themselves. Maturity: Beta.",
    )
    evaluator: Evaluator | None = Field(
        default=None,
        description="One additional pod that evaluates checkpoints. A failure of this pod does not fail the job, and "
        "the pod ends with the job. Unset: the job has no evaluator. Maturity: Beta.",
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
        max_length=63,
        pattern=MANAGER_NAME,
        description="Name of the controller that runs the job. Unset or ringtrain.dev/operator: this operator. Any "
        "other name, such as kueue.x-k8s.io/multikueue: this operator ignores the job. Maturity: Experimental.",
    )

    RULES = (
        # In Python, spec/template.py and spec/reserved.py report the next five, with the field's path.
        Rule(
            cel=_HAS_CONTAINERS,
            message="worker.template.spec.containers is missing; give a pod template, or name in templateRef a "
            "template that has one",
            path="worker.template",
        ),
        Rule(
            cel=f"self.backend == 'mpi' || !({_HAS_CONTAINERS}) || {_CONTAINERS}.exists(c, has(c.command) && "
            "size(c.command) > 0)",
            message="the training container has no command; add one: the agent starts it once per rank and "
            "cannot see the image's entrypoint",
            path="worker.template.spec.containers",
        ),
        Rule(
            cel=f"!({_HAS_CONTAINERS}) || {_CONTAINERS}.all(c, has(c.name) && has(c.image))",
            message="every container needs a name and an image",
            path="worker.template.spec.containers",
        ),
        Rule(
            cel=f"!has({_RANK0}) || has({_RANK0}.spec) && has({_RANK0}.spec.containers) && "
            f"{_RANK0}.spec.containers.all(c, has(c.name) && has(c.image))",
            message="worker.rank0Template is the whole template of a pod: it needs containers, each with a name and an "
            "image",
            path="worker.rank0Template",
        ),
        Rule(
            cel=f"!has({_RANK0}) || self.backend != 'mpi'",
            message="worker.rank0Template is only for backend ring: mpirun starts one command everywhere; remove it",
            path="worker.rank0Template",
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
            cel="!has(self.elastic) || self.elastic.minReplicas > self.elastic.maxReplicas || "
            "(self.worker.replicas >= self.elastic.minReplicas && self.worker.replicas <= self.elastic.maxReplicas)",
            message="worker.replicas, the initial number, must be from elastic.minReplicas to elastic.maxReplicas",
            path="worker.replicas",
            holds=lambda s: (
                s.elastic is None
                or s.elastic.min_replicas > s.elastic.max_replicas
                or s.elastic.min_replicas <= s.worker.replicas <= s.elastic.max_replicas
            ),
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
            cel="!has(self.scheduling.minAvailable) || !has(self.elastic) || "
            "self.scheduling.minAvailable <= self.worker.replicas + 1",
            message="scheduling.minAvailable must not be greater than worker.replicas + 1: the job's pods are its "
            "workers and the launcher",
            path="scheduling.minAvailable",
            holds=lambda s: s.elastic is None or (s.scheduling.min_available or 0) <= s.worker.replicas + 1,
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
        frozen_field("worker.rank0Template", optional=True, name="a pod template"),
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
        """Return a digest of all fields that can change only while the job is suspended.

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
        """Number of ranks in each worker pod. Default: one for each device of the pod."""
        if self.slots_per_worker is not None:
            return self.slots_per_worker
        amounts = self.worker.devices or template_devices(self.worker.template)
        return device_count(next(iter(amounts.values()), 1)) or 1


def are_comparable_digests(one: str, other: str) -> bool:
    """Return whether two digests of specs can be compared, because the same version of the models made them."""
    return one.partition(":")[0] == other.partition(":")[0]


def is_ours(managed_by: object) -> bool:
    """Return whether this operator runs jobs with this value of spec.managedBy."""
    return managed_by in (None, OURS)


def kueue_queue(queue: object, labels: Mapping[str, Any], gang: object = None) -> str:
    """Return the LocalQueue of Kueue in which a job waits, by scheduling.queue or Kueue's label; empty if none.

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
        """LocalQueue of Kueue in which the job waits; empty if none."""
        return kueue_queue(self.spec.scheduling.queue, self.labels, self.spec.scheduling.gang)

    @property
    def volcano_queue(self) -> str:
        """Queue of Volcano in which the job waits; empty for Volcano's default queue, or without Volcano."""
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
        """Number of pods, the launcher included, that must be placed before the gang can start."""
        least = self.spec.elastic.min_replicas if self.spec.elastic is not None else self.num_workers
        return self.spec.scheduling.min_available or least + 1

    @property
    def world_size(self) -> int:
        """Number of ranks in the spec."""
        return self.num_agents * self.spec.slots
