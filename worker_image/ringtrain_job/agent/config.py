"""The agent's settings, read from its environment in one place."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import ConfigurationError, quoted
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain_job.control.settings import PodSettings, read_pod
from ringtrain_job.logs.metrics_rule import metrics_rule_problem

# After the pod was asked to stop and its ranks have ended: how long to try to hand over the last lines.
LEAVE_S = 5.0


@dataclass(frozen=True)
class AgentPorts:
    """Ports that the operator chose; 0: any free one."""

    agent: int
    ring_base: int
    master: int
    tf_base: int


@dataclass(frozen=True)
class AgentConfig(PodSettings):
    """What an agent is told. `data_file`: where it tells its ranks of data workers, if the job has any.
    `metrics_rule`: for lines that ranks print, see `logs/printed.py`."""

    index: int
    launcher_address: str
    ports: AgentPorts
    pod: str
    pod_uid: str
    pod_ip: str
    node: str
    checkpoint_dir: str
    restore_from: str
    checkpoint_uri: str = ""
    encrypt: str = "none"
    on_loss: str = ""
    pod_grace_s: float = 30.0
    incarnation: int = 0
    mpi: bool = False
    mpi_needs_init: bool | None = None
    mpi_directory: str = ""
    mpi_launcher_first: bool = False
    data_workers: int = 0
    data_file: Path | None = None
    metrics_rule: str = ""

    @property
    def elastic(self) -> bool:
        """Whether the job's world may change within the attempt."""
        return bool(self.on_loss)

    @property
    def living(self) -> bool:
        """Whether ranks live on from one formation to the next, and are told their worlds on a socket."""
        return self.on_loss in ("Replace", "Shrink")

    @property
    def stopped_fence_s(self) -> float:
        """The same for a process that a signal has stopped, as SIGSTOP does: it cannot leave."""
        return min(self.grace_s, self.fence_s)

    @property
    def fence_s(self) -> float:
        """How long a rank may take to leave a world that has lost a member, or a slot that is not wanted."""
        return self.timeout_s

    @property
    def notice_s(self) -> float:
        """How long ranks of a pod that is asked to stop may take to hand over, before they are signalled."""
        return max(0.0, self.pod_grace_s - self.grace_s - LEAVE_S)

    @property
    def first_rank(self) -> int:
        """Rank of local rank 0."""
        return self.position * self.slots

    @property
    def position(self) -> int:
        """Of this worker in the world: its index, unless the launcher's own agent (the last) comes first."""
        return (self.index + 1) % self.workers if self.mpi_launcher_first else self.index

    @property
    def heartbeat_s(self) -> float:
        """How often the launcher hears of this agent when nothing changes: well inside its `lost_after_s`."""
        return min(2.0, self.timeout_s / 16)

    @property
    def call_s(self) -> float:
        """Deadline of one call to the launcher, which all agents may call at the same time."""
        return max(1.0, self.timeout_s / 6, min(self.crowd_s, self.timeout_s / 2))

    @property
    def launcher_lost_s(self) -> float:
        """How long ranks go on without a launcher: long enough for it to be started again, in an elastic job also
        in another pod."""
        return max(self.timeout_s, self.start_timeout_s) if self.elastic else self.timeout_s

    @property
    def grace_s(self) -> float:
        """How long ranks may take to end after they were asked to."""
        return min(10.0, self.timeout_s / 6)

    @property
    def follow_s(self) -> float:
        """How long ranks of a failed gang have for PeerLost, and what they do then, before SIGTERM."""
        return 0.0 if self.mpi else self.grace_s / 2

    @property
    def save_s(self) -> float:
        """How long ranks may take to save and end when their pod, or the job, is asked to stop."""
        keeps = bool(self.checkpoint_dir or self.checkpoint_uri)
        return max(self.grace_s, self.pod_grace_s - LEAVE_S) if keeps else self.grace_s

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "AgentConfig":
        """Read `env`; ConfigurationError names the first variable that is missing or out of range."""
        read = EnvironmentVariables(env)
        backend = read.choice(contract.ENV_BACKEND, ("ring", "mpi"), "ring")
        pod = read_pod(read)
        encrypt = read.choice(contract.ENV_ENCRYPT, contract.ENCRYPTION, "none")
        if encrypt != "none" and pod.secrets.tls is None:
            raise ConfigurationError(
                f"{contract.ENV_ENCRYPT}={encrypt} needs ca.crt, tls.crt and tls.key in {contract.ENV_SECRET_DIR}"
            )
        index = read.integer(contract.ENV_WORKER_INDEX, low=0, high=pod.workers - 1)
        return cls(
            **vars(pod),
            index=index,
            launcher_address=read.address(contract.ENV_LAUNCHER_ADDRESS),
            ports=_read_ports(read, pod.slots),
            pod=read.text(contract.ENV_POD_NAME, f"{pod.job.name}-worker-{index}"),
            pod_uid=read.optional(contract.ENV_POD_UID) or "",
            pod_ip=read.optional(contract.ENV_POD_IP) or "",
            node=read.text(contract.ENV_NODE_NAME, socket.gethostname()),
            checkpoint_dir=read.optional(contract.ENV_CHECKPOINT_DIR) or "",
            checkpoint_uri=read.optional(contract.ENV_CHECKPOINT_URI) or "",
            restore_from=read.optional(contract.ENV_RESTORE_FROM) or "",
            encrypt=encrypt,
            on_loss=_read_on_loss(read),
            pod_grace_s=read.delay(contract.ENV_GRACE_PERIOD, 30),
            incarnation=read.integer(contract.ENV_INCARNATION, 0, low=0),
            mpi=backend == "mpi",
            mpi_needs_init=read.optional_flag(contract.ENV_MPI_REQUIRE_INIT),
            mpi_launcher_first=read.flag(contract.ENV_MPI_LAUNCHER_AS_WORKER, "0"),
            data_workers=read.integer(contract.ENV_DATA_WORKERS, 0, low=0, high=100_000),
            metrics_rule=_read_metrics_rule(read),
            mpi_directory=read.optional(contract.ENV_MPI_REGISTRY_DIRECTORY) or "",
        )


def _read_metrics_rule(read: EnvironmentVariables) -> str:
    rule = read.optional(contract.ENV_METRICS) or ""
    if rule and (problem := metrics_rule_problem(rule)):
        raise ConfigurationError(f"{contract.ENV_METRICS}={quoted(rule)} {problem}")
    return rule


def _read_on_loss(read: EnvironmentVariables) -> str:
    absent = read.optional(contract.ENV_ELASTIC) is None
    return "" if absent else read.choice(contract.ENV_ELASTIC, contract.ON_LOSS)


def _read_ports(read: EnvironmentVariables, slots: int) -> AgentPorts:
    ports = AgentPorts(
        agent=read.port(contract.ENV_AGENT_PORT, contract.PORT_AGENT),
        ring_base=read.port(contract.ENV_RING_PORT_BASE, contract.PORT_RING_BASE),
        master=read.port(contract.ENV_MASTER_PORT, contract.PORT_MASTER),
        tf_base=read.port(contract.ENV_TF_PORT_BASE, contract.PORT_TF_BASE),
    )
    for name, base in ((contract.ENV_RING_PORT_BASE, ports.ring_base), (contract.ENV_TF_PORT_BASE, ports.tf_base)):
        if base + slots > 65536:
            raise ConfigurationError(f"{name}={base}: {slots} ports from it on go beyond 65535")
    return ports
