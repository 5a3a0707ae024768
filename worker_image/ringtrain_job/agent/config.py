"""Settings of the agent, read from environment variables."""

import socket
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import ConfigurationError, counted, quoted
from ringtrain.shared import contract
from ringtrain.shared.settings import Settings, address, choice, flag, integer, part, seconds, tcp_port, text
from ringtrain_job.control.settings import PodSettings
from ringtrain_job.logs.metrics_rule import metrics_rule_problem

# Seconds to try to send the last lines after the pod was ordered to stop and its ranks have ended.
LEAVE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class AgentPorts(Settings):
    """Ports that the operator has assigned to a worker; 0 stands for any free port."""

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
    """Settings of an agent.

    `data_file`: file that lists the job's data workers for its ranks, or None. `metrics_rule`: regular expression that
    finds steps and metrics in printed lines, see `logs/printed.py`.
    """

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
        """Raise ConfigurationError if encryption lacks certificates or a port range exceeds 65535."""
        if self.encrypt != "none" and self.secrets.tls is None:
            raise ConfigurationError(
                f"{contract.ENV_ENCRYPT}={self.encrypt} needs ca.crt, tls.crt and tls.key in {contract.ENV_SECRET_DIR}"
            )
        bases = {contract.ENV_RING_PORT_BASE: self.ports.ring_base, contract.ENV_TF_PORT_BASE: self.ports.tf_base}
        for name, base in bases.items():
            if base + self.slots > 65536:
                raise ConfigurationError(
                    f"{name}={base}: {counted(self.slots, 'port')} from {base} on would exceed 65535; choose a lower "
                    "port"
                )

    @property
    def elastic(self) -> bool:
        """Whether ranks may join and leave the job during an attempt."""
        return bool(self.on_loss)

    @property
    def living(self) -> bool:
        """Whether rank processes survive a change of the world (policies Replace and Shrink) instead of restarting."""
        return self.on_loss in ("Replace", "Shrink")

    @property
    def stopped_fence_s(self) -> float:
        """Seconds after which a rank that SIGSTOP has stopped is killed if it must leave its world."""
        return min(self.grace_s, self.fence_s)

    @property
    def fence_s(self) -> float:
        """Seconds that a rank has to leave its world, or to end if its slot is no longer used, before it is killed."""
        return self.timeout_s

    @property
    def notice_s(self) -> float:
        """Seconds that ranks have to hand over their state when their pod must stop; then they get SIGTERM."""
        return max(0.0, self.pod_grace_s - self.grace_s - LEAVE_S)

    @property
    def first_rank(self) -> int:
        """Lowest rank of this worker; it has local rank 0."""
        return self.position * self.slots

    @property
    def position(self) -> int:
        """Index of this worker's group of ranks in the world: the worker's index, or one more if the launcher's ranks
        come first."""
        return (self.index + 1) % self.workers if self.launcher_first else self.index

    @property
    def heartbeat_s(self) -> float:
        """Seconds between heartbeats if nothing has changed; well below the launcher's `lost_after_s`."""
        return min(2.0, self.timeout_s / 16)

    @property
    def call_s(self) -> float:
        """Deadline in seconds of one call to the launcher; it allows for all agents calling at once."""
        return max(1.0, self.timeout_s / 6, min(self.handshake_time_s, self.timeout_s / 2))

    @property
    def launcher_lost_s(self) -> float:
        """Seconds that ranks continue while the launcher does not answer: long enough to restart it."""
        return max(self.timeout_s, self.start_timeout_s) if self.elastic else self.timeout_s

    @property
    def grace_s(self) -> float:
        """Seconds from a stop request to the kill of a rank."""
        return min(10.0, self.timeout_s / 6)

    @property
    def follow_s(self) -> float:
        """Seconds from the first failure of a rank to SIGTERM for the others, which can handle PeerLost meanwhile."""
        return self.grace_s / 2 if self.agents_start_ranks else 0.0

    @property
    def save_s(self) -> float:
        """Seconds that ranks may take to save a checkpoint and end when their pod or the job is stopped."""
        keeps = bool(self.checkpoint_dir or self.checkpoint_uri)
        return max(self.grace_s, self.pod_grace_s - LEAVE_S) if keeps else self.grace_s
