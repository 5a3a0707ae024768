"""Rank and world size from the variables of `srun`, and the exchange of addresses between its tasks.

SLURM names the nodes, but no ports. Task 0 runs on the first node of the step, and listens on a port derived from the
numbers of job and step, or on MASTER_PORT + 1000 if that is set.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ringtrain._core.world.gathering import RendezvousPoint, gather_addresses
from ringtrain._core.world.torchrun import rendezvous_port
from ringtrain.errors import ConfigurationError
from ringtrain.shared.address import host_port, is_loopback, own_address, reachable_address
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.ports import HeldPorts
from ringtrain.shared.slurm import node_names

# Below Linux's range of ephemeral ports.
_PORTS: Final = range(10_000, 30_000)
_WAY_OUT: Final = "export another MASTER_PORT in the job's script, or set RINGTRAIN_RING_ADDRESSES"


@dataclass(frozen=True)
class SlurmRank:
    """Rank and world size of a process that `srun` started. `step`: SLURM job and step, unique for the world."""

    rank: int
    size: int
    step: str


def slurm_rank(env: Mapping[str, str]) -> SlurmRank | None:
    """Return this task's rank; None if it is not a task of `srun`, or if another launcher started the ranks.

    The script of `sbatch` is not a task: SLURM_PROCID is 0 there, and there is no step. Raises ConfigurationError.
    """
    if not all(env.get(name) for name in ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS")):
        return None
    step = f"{env.get('SLURM_JOB_ID', '')}.{env['SLURM_STEP_ID']}"
    if _is_of_another_launcher(env, step):
        return None
    read = EnvironmentVariables(env)
    size = read.integer("SLURM_STEP_NUM_TASKS", low=1)
    return SlurmRank(read.integer("SLURM_PROCID", low=0, high=size - 1), size, step)


def _is_of_another_launcher(env: Mapping[str, str], step: str) -> bool:
    """Return whether mpirun or torchrun has started this process inside the SLURM task."""
    if env.get("RANK") and env.get("WORLD_SIZE"):
        return True
    if "PMI_RANK" in env:
        return env.get("PMI_JOBID") != step
    if "PMIX_RANK" in env:
        return not env.get("PMIX_NAMESPACE", "").startswith("slurm.")
    return "OMPI_COMM_WORLD_RANK" in env


def rendezvous_on_first_node(
    found: SlurmRank, env: Mapping[str, str], token: bytes | None, timeout_s: float
) -> tuple[str, ...]:
    """Return the addresses of all ranks, by rank, exchanged through rank 0 on the first node.

    Raises ConfigurationError if there is no way to exchange them, or if not all ranks join within `timeout_s`.
    """
    nodes = node_names("SLURM_STEP_NODELIST", env)
    port = _PORTS[zlib.crc32(found.step.encode()) % len(_PORTS)]
    if env.get("MASTER_PORT"):
        port = rendezvous_port(EnvironmentVariables(env).integer("MASTER_PORT", low=1, high=65_535))
    own = "127.0.0.1" if len(nodes) == 1 else env.get("RINGTRAIN_POD_IP") or _own_address(nodes[0], port)
    first = own if found.rank == 0 or len(nodes) == 1 else nodes[0]
    point = RendezvousPoint(
        (first, port), "SLURM_STEP_NUM_TASKS", "start one task for each rank (srun --ntasks)", _WAY_OUT
    )
    held = HeldPorts()
    try:
        (listens,) = held.take(0, 1)
        # Without a token, the step keeps ranks of two jobs with the same port apart.
        proof = token or found.step.encode()
        return gather_addresses(found.rank, found.size, point, host_port(own, listens), proof, timeout_s)
    finally:
        held.release()


def _own_address(node: str, port: int) -> str:
    """Return the address at which other nodes reach this node, on the route to the first node."""
    try:
        own = own_address(host_port(node, port))
    except OSError as error:
        raise ConfigurationError(
            f'the first node of SLURM_STEP_NODELIST, "{node}", can\'t be resolved or reached: '
            f"{error.strerror or error}; make its name resolvable on all nodes, or set RINGTRAIN_RING_ADDRESSES"
        ) from error
    return reachable_address() if is_loopback(host_port(own, port)) else own
