"""The agent's settings, read from its environment in one place."""

import socket
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import ConfigurationError, quoted
from ringtrain.shared import contract
from ringtrain.shared.settings import Settings, address, choice, flag, integer, part, seconds, tcp_port, text
from ringtrain_job.control.settings import PodSettings
from ringtrain_job.logs.metrics_rule import metrics_rule_problem

# Seconds to try to send the last lines after the pod was ordered to stop and its ranks have ended.
LEAVE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class AgentPorts(Settings):
    """Ports that the operator chose; 0: any free port."""

    agent: int = tcp_port(contract.ENV_AGENT_PORT, contract.PORT_AGENT)
    ring_base: int = tcp_port(contract.ENV_RING_PORT_BASE, contract.PORT_RING_BASE)
    master: int = tcp_port(contract.ENV_MASTER_PORT, contract.PORT_MASTER)
    tf_base: int = tcp_port(contract.ENV_TF_PORT_BASE, contract.PORT_TF_BASE)


def _checked_metrics_rule(rule: str) -> str:
    if problem := metrics_rule_problem(rule):
        raise ConfigurationError(f"{contract.ENV_METRICS}={quoted(rule)} {problem}")
    return rule


@dataclass(frozen=True, kw_only=True)
class AgentConfig(PodSettings):
    """Settings of an agent. `data_file`: file in which its ranks find the data workers, if the job has any.
    `metrics_rule`: rule for lines that ranks print, see `logs/printed.py`."""

    index: int = integer(contract.ENV_WORKER_INDEX, low=0, high=lambda seen: seen.workers - 1)
    launcher_address: str = address(contract.ENV_LAUNCHER_ADDRESS)
    ports: AgentPorts = part(AgentPorts)
    pod: str = text(contract.ENV_POD_NAME, derived=lambda seen: f"{seen.job.name}-worker-{seen.index}")
    pod_uid: str = text(contract.ENV_POD_UID, "")
    pod_ip: str = text(contract.ENV_POD_IP, "")
    node: str = text(contract.ENV_NODE_NAME, derived=lambda _: socket.gethostname())
    checkpoint_dir: str = text(contract.ENV_CHECKPOINT_DIR, "")
    checkpoint_uri: str = text(contract.ENV_CHECKPOINT_URI, "")
    restore_from: str = text(contract.ENV_RESTORE_FROM, "")
    encrypt: str = choice(contract.ENV_ENCRYPT, contract.ENCRYPTION, "none")
    on_loss: str = choice(contract.ENV_ELASTIC, contract.ON_LOSS, "")
    pod_grace_s: float = seconds(contract.ENV_GRACE_PERIOD, 30.0, zero=True)
    incarnation: int = integer(contract.ENV_INCARNATION, 0, low=0)
    launcher_first: bool = flag(contract.ENV_MPI_LAUNCHER_AS_WORKER)
    metrics_rule: str = text(contract.ENV_METRICS, "", made=_checked_metrics_rule)
    data_file: Path | None = None

    def check(self) -> None:
        """Reject encryption without certificates, and port ranges beyond 65535."""
        if self.encrypt != "none" and self.secrets.tls is None:
            raise ConfigurationError(
                f"{contract.ENV_ENCRYPT}={self.encrypt} needs ca.crt, tls.crt and tls.key in {contract.ENV_SECRET_DIR}"
            )
        bases = {contract.ENV_RING_PORT_BASE: self.ports.ring_base, contract.ENV_TF_PORT_BASE: self.ports.tf_base}
        for name, base in bases.items():
            if base + self.slots > 65536:
                raise ConfigurationError(f"{name}={base}: {self.slots} ports from it on go beyond 65535")

    @property
    def elastic(self) -> bool:
        """Whether the job's world may change within the attempt."""
        return bool(self.on_loss)

    @property
    def living(self) -> bool:
        """Whether ranks survive from one generation to the next, and receive their worlds on a socket."""
        return self.on_loss in ("Replace", "Shrink")

    @property
    def stopped_fence_s(self) -> float:
        """Seconds that a rank stopped by a signal (SIGSTOP) may take to leave its world; it cannot leave by itself."""
        return min(self.grace_s, self.fence_s)

    @property
    def fence_s(self) -> float:
        """Seconds that a rank may take to leave a world that has lost a member, or a slot that is no longer
        requested."""
        return self.timeout_s

    @property
    def notice_s(self) -> float:
        """Seconds that ranks of a pod that is ordered to stop may take to hand over their state before they get a
        signal."""
        return max(0.0, self.pod_grace_s - self.grace_s - LEAVE_S)

    @property
    def first_rank(self) -> int:
        """Rank of local rank 0."""
        return self.position * self.slots

    @property
    def position(self) -> int:
        """Position of this worker in the world: its index, unless the launcher's own agent (the last) comes first."""
        return (self.index + 1) % self.workers if self.launcher_first else self.index

    @property
    def heartbeat_s(self) -> float:
        """Interval of heartbeats without news, well below the launcher's `lost_after_s`."""
        return min(2.0, self.timeout_s / 16)

    @property
    def call_s(self) -> float:
        """Deadline of one call to the launcher, which all agents may call at the same time."""
        return max(1.0, self.timeout_s / 6, min(self.handshake_time_s, self.timeout_s / 2))

    @property
    def launcher_lost_s(self) -> float:
        """Seconds that ranks continue without a launcher: enough to restart it, in an elastic job also in another
        pod."""
        return max(self.timeout_s, self.start_timeout_s) if self.elastic else self.timeout_s

    @property
    def grace_s(self) -> float:
        """Seconds that ranks may take to end after a request."""
        return min(10.0, self.timeout_s / 6)

    @property
    def follow_s(self) -> float:
        """Seconds between the failure of a gang and SIGTERM to its ranks, in which they can handle PeerLost."""
        return self.grace_s / 2 if self.agents_start_ranks else 0.0

    @property
    def save_s(self) -> float:
        """Seconds that ranks may take to save and end when their pod or the job is ordered to stop."""
        keeps = bool(self.checkpoint_dir or self.checkpoint_uri)
        return max(self.grace_s, self.pod_grace_s - LEAVE_S) if keeps else self.grace_s
