"""What the agents of a run over several hosts are told, and where they reach this machine."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.address import host_port
from ringtrain_job.cli.certificates import SECRET_FILES
from ringtrain_job.cli.remote_agent import Order, first_address
from ringtrain_job.cli.ssh import portable

# Set anew on each host: where its secrets are, and its own address.
_OF_AN_AGENT: Final = (contract.ENV_SECRET_DIR, contract.ENV_POD_IP)


@dataclass(frozen=True)
class AgentOrders:
    """What all agents of a run have in common. `secrets`: directory with one of each role."""

    environment: Mapping[str, str]
    secrets: Path
    port: int
    interfaces: Sequence[str]
    level: str
    command: Sequence[str]

    def agent_environment(self, index: int, host: str, run_address: str) -> dict[str, str]:
        """Of the agent of worker `index` on `host`, which reaches this machine at `run_address`."""
        return {
            **{name: value for name, value in self.environment.items() if name not in _OF_AN_AGENT},
            contract.ENV_WORKER_INDEX: str(index),
            contract.ENV_POD_NAME: f"{self.environment[contract.ENV_JOB_NAME]}-worker-{index}",
            contract.ENV_NODE_NAME: host,
            contract.ENV_LAUNCHER_ADDRESS: host_port(run_address, self.port),
        }

    def order(self, environment: Mapping[str, str]) -> Order:
        """What an agent that `remote-agent` runs is told."""
        directory = self.secrets / contract.ROLE_WORKER
        return Order(
            secrets={file: (directory / file).read_text() for file in SECRET_FILES},
            environment=portable(environment),
            directory=os.getcwd(),
            interfaces=tuple(self.interfaces),
            level=self.level,
            command=tuple(self.command),
        )

    def run_address(self, host: str, seen: str) -> str:
        """This machine's address for `host`, which has `seen` this one; empty: none."""
        if self.interfaces:
            return first_address(self.interfaces)
        if not seen:
            raise ConfigurationError(
                f"host {host} does not know from which address it is reached (SSH_CONNECTION is not set there); "
                "say with --network-interfaces which interface all hosts have"
            )
        return seen
