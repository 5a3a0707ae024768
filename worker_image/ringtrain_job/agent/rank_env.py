"""Environment variables that the agent sets for its ranks."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ringtrain.shared import contract
from ringtrain.shared.address import host_port, split_address
from ringtrain.shared.place import RankPlace
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.control.model import World

# glibc returns blocks above its threshold to the kernel at every free. Gradients are such blocks, and faulting their
# pages in again took a third of an allreduce's time on loopback. With 4 GiB glibc retains them.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}


def rank_environment(
    config: AgentConfig, world: World, local_rank: int, inherited: Mapping[str, str], cores: int
) -> dict[str, str]:
    """Return the whole environment of one rank (docs/contract.md). `inherited`: variables of the pod."""
    own = rank_variables(config, world, config.first_rank + local_rank)
    return {**pod_defaults(config.slots, cores), **inherited, **own}


def slot_environment(
    config: AgentConfig, slot: int, socket: str, inherited: Mapping[str, str], cores: int
) -> dict[str, str]:
    """Return the whole environment of a process in `slot`, which receives its rank and world later on `socket`."""
    own = {**_job_variables(config), contract.ENV_SLOT: str(slot), contract.ENV_AGENT_SOCKET: socket}
    kept = {name: value for name, value in inherited.items() if name not in _OF_A_WORLD}
    return {**pod_defaults(config.slots, cores), **kept, **own}


def pod_defaults(slots: int, cores: int) -> dict[str, str]:
    """Return variables that every rank gets unless the pod's environment sets them.

    `slots`: number of ranks of the pod, which share its `cores` CPU cores.
    """
    return {
        **MALLOC,
        "OMP_NUM_THREADS": str(max(1, cores // slots)),
        # Log lines at once instead of when a buffer is full: a killed rank cannot flush it.
        "PYTHONUNBUFFERED": "1",
    }


def rank_variables(config: AgentConfig, world: World, rank: int) -> dict[str, str]:
    """Return the variables of `rank`, a rank of this worker, that describe world and job."""
    return _rank_world_variables(config, world, rank_place_in_gang(config, rank), config.position)


def generation_variables(config: AgentConfig, world: World, slot: int) -> dict[str, str]:
    """Return environment variables for the process in `slot`, which describe the job and the generation `world`."""
    own = {
        contract.ENV_FORMATION: str(world.formation),
        contract.ENV_COMMITTED: str(world.committed),
        contract.ENV_SLOT: str(slot),
    }
    place, pod = rank_place_in_generation(world, slot, config.slots)
    return {**_rank_world_variables(config, world, place, pod), **own}


def rank_place_in_gang(config: AgentConfig, rank: int) -> RankPlace:
    """Return the place (rank, local rank, cross rank) of `rank`, a rank of this worker, in a world of all workers and
    all slots."""
    local_rank = rank - config.first_rank
    position = config.position
    return RankPlace(rank, config.world_size, local_rank, config.slots, position, config.workers)


def rank_place_in_generation(world: World, slot: int, slots: int) -> tuple[RankPlace, int]:
    """Return the place (rank, local rank, cross rank) of the process in `slot` in a generation, and its pod's index.

    `world`: the generation. `slots`: number of slots of each worker. Pods are numbered in the order of their first
    ranks, and their size is the number of members in them. The local rank is the slot's, because a process has chosen
    its device by it. If a slot of the pod is not a member, a local rank may be greater than or equal to the local size.
    """
    pods: dict[int, list[int]] = {}
    for rank, member in enumerate(world.members):
        pods.setdefault(member.slot // slots, []).append(rank)
    rank = next(rank for rank, member in enumerate(world.members) if member.slot == slot)
    place = RankPlace.among([*pods.values()], rank)
    return replace(place, local_rank=slot % slots), list(pods).index(slot // slots)


def _rank_world_variables(config: AgentConfig, world: World, place: RankPlace, pod: int) -> dict[str, str]:
    variables = {**_rank_place_variables(world, place, pod), **_job_variables(config)}
    if world.sites:
        variables[contract.ENV_SITES] = ",".join(world.sites)
    return {**variables, "TF_CONFIG": rank_tf_config(world, place.rank)}


def _rank_place_variables(world: World, place: RankPlace, pod: int) -> dict[str, str]:
    addresses = world.ring_addresses
    variables = {
        "RANK": place.rank,
        "LOCAL_RANK": place.local_rank,
        "WORLD_SIZE": place.size,
        "LOCAL_WORLD_SIZE": place.local_size,
        "GROUP_RANK": pod,
        "MASTER_ADDR": world.master_address,
        "MASTER_PORT": world.master_port,
        # For jax.distributed, whose coordinator runs in rank 0.
        "JAX_COORDINATOR_ADDRESS": host_port(world.master_address, world.master_port),
        "JAX_NUM_PROCESSES": place.size,
        "JAX_PROCESS_ID": place.rank,
        contract.ENV_RING_ADDRESSES: ",".join(addresses),
        contract.ENV_GENERATION: world.generation,
        "HOROVOD_HOSTNAME": split_address(addresses[place.rank])[0] if place.rank < len(addresses) else "",
        **place.variables(),
    }
    return {name: str(value) for name, value in variables.items()}


# Variables that a process must not inherit from its pod before it has received a world.
_OF_A_WORLD = frozenset(
    {
        *_rank_place_variables(World(1, (), (), "", 0), RankPlace(0, 1, 0, 1, 0, 1), 0),
        contract.ENV_FORMATION,
        contract.ENV_COMMITTED,
        contract.ENV_WORLD_FILE,
        contract.ENV_SITES,
        "TF_CONFIG",
    }
)


def _job_variables(config: AgentConfig) -> dict[str, str]:
    """Return the variables of ranks that are equal in all worlds of the attempt."""
    job = {
        contract.ENV_ATTEMPT: str(config.job.attempt),
        contract.ENV_TIMEOUT: f"{config.timeout_s:g}",
        contract.ENV_JOB_NAME: config.job.name,
        contract.ENV_JOB_NAMESPACE: config.job.namespace,
    }
    if config.encrypt != "none":
        job[contract.ENV_ENCRYPT] = config.encrypt
        job[contract.ENV_SECRET_DIR] = str(config.secrets.directory)
        job[contract.ENV_JOB_UID] = config.job.uid
    if config.data_file is not None:
        job[contract.ENV_DATA_WORKERS_FILE] = str(config.data_file)
        job[contract.ENV_JOB_UID] = config.job.uid
        if config.secrets.directory is not None:
            job[contract.ENV_SECRET_DIR] = str(config.secrets.directory)
    if config.secrets.token_file is not None:
        job[contract.ENV_TOKEN_FILE] = str(config.secrets.token_file)
    if config.checkpoint_dir:
        job[contract.ENV_CHECKPOINT_DIR] = config.checkpoint_dir
    if config.restore_from:
        job[contract.ENV_RESTORE_FROM] = config.restore_from
    return job


def rank_tf_config(world: World, rank: int) -> str:
    """Return a TF_CONFIG for `rank`: every rank is a `worker` whose index is its rank."""
    cluster = {"worker": list(world.tf_addresses)}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many CPU cores this process may use: its affinity, limited by the container's CPU limit."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cgroup.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no limit ("max"), or no cgroup v2
        return cores
