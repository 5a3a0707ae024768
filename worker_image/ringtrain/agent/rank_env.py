"""The environment that training code finds."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from ringtrain import contract
from ringtrain.agent.config import AgentConfig
from ringtrain.control.model import World

# glibc hands blocks above its threshold back to the kernel at every free; gradients are such blocks, and faulting
# their pages in again was a third of an allreduce's time on loopback. 4 GiB keeps them.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}


def rank_environment(
    config: AgentConfig, world: World, local_rank: int, inherited: Mapping[str, str], cores: int
) -> dict[str, str]:
    """All variables of one rank, by docs/contract.md; `inherited` are those of the pod."""
    own = rank_variables(config, world, config.first_rank + local_rank)
    return {**pod_defaults(config.slots, cores), **inherited, **own}


def pod_defaults(slots: int, cores: int) -> dict[str, str]:
    """Variables that all ranks of a pod get unless the pod has them."""
    return {
        **MALLOC,
        "OMP_NUM_THREADS": str(max(1, cores // slots)),
        # Lines are to be in the log when they are printed, not when a buffer is full: a killed rank has no later.
        "PYTHONUNBUFFERED": "1",
    }


def rank_variables(config: AgentConfig, world: World, rank: int) -> dict[str, str]:
    """Variables that tell `rank`, one of this worker's, its place in the world and its job."""
    local_rank = rank - config.first_rank
    torchrun = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": config.world_size,
        "LOCAL_WORLD_SIZE": config.slots,
        "GROUP_RANK": config.position,
        "MASTER_ADDR": world.master_address,
        "MASTER_PORT": world.master_port,
    }
    ours = {
        contract.ENV_RANK: rank,
        contract.ENV_SIZE: config.world_size,
        contract.ENV_LOCAL_RANK: local_rank,
        contract.ENV_LOCAL_SIZE: config.slots,
        contract.ENV_CROSS_RANK: config.position,
        contract.ENV_CROSS_SIZE: config.workers,
        contract.ENV_RING_ADDRESSES: ",".join(world.ring_addresses),
        contract.ENV_GENERATION: config.job.attempt,
        contract.ENV_ATTEMPT: config.job.attempt,
        contract.ENV_TIMEOUT: f"{config.timeout_s:g}",
        contract.ENV_JOB_NAME: config.job.name,
        contract.ENV_JOB_NAMESPACE: config.job.namespace,
    }
    if config.encrypt != "none":
        ours[contract.ENV_ENCRYPT] = config.encrypt
        ours[contract.ENV_SECRET_DIR] = str(config.secrets.directory)
        ours[contract.ENV_JOB_UID] = config.job.uid
    if config.secrets.token_file is not None:
        ours[contract.ENV_TOKEN_FILE] = str(config.secrets.token_file)
    if config.checkpoint_dir:
        ours[contract.ENV_CHECKPOINT_DIR] = config.checkpoint_dir
    if config.restore_from:
        ours[contract.ENV_RESTORE_FROM] = config.restore_from
    variables = {name: str(value) for name, value in {**torchrun, **ours}.items()}
    return {**variables, "TF_CONFIG": tf_config(world, rank)}


def tf_config(world: World, rank: int) -> str:
    """TF_CONFIG in which every rank is a `worker` and its index is its rank."""
    cluster = {"worker": list(world.tf_addresses)}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: its affinity, cut to the container's CPU limit."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cgroup.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no limit ("max"), or no cgroup v2
        return cores
