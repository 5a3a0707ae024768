"""The launcher as a worker: an agent beside it in its pod, the last of the gang."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ringtrain.shared import contract
from ringtrain.shared.address import host_port
from ringtrain.shared.processes import end_child, start_child
from ringtrain_job.agent.mpi.worker import registry_variables


class OwnAgent:
    """An agent process. `directory`: where it makes its registry, so that an mpirun beside it finds it there."""

    def __init__(self, directory: Path, index: int, port: int, inherited: Mapping[str, str]) -> None:
        self._directory = directory
        command = [sys.executable, "-m", "ringtrain", "agent"]
        self._process = start_child(command, {**inherited, **_variables(directory, index, port, inherited)})

    def variables(self) -> dict[str, str]:
        """Variables by which the ranks that mpirun starts in this pod find the agent's registry."""
        return registry_variables(self._directory)

    def close(self, grace_s: float) -> None:
        """Wait for the agent, which the launcher has released, and end it if it does not."""
        end_child(self._process, grace_s)


def _variables(directory: Path, index: int, port: int, inherited: Mapping[str, str]) -> dict[str, str]:
    return {
        contract.ENV_ROLE: contract.ROLE_WORKER,
        contract.ENV_WORKER_INDEX: str(index),
        contract.ENV_LAUNCHER_ADDRESS: host_port(inherited.get(contract.ENV_POD_IP) or "127.0.0.1", port),
        contract.ENV_MPI_REGISTRY_DIRECTORY: str(directory),
        contract.ENV_TERMINATION_MESSAGE_PATH: os.devnull,  # the pod's last output are the launcher's
    }
