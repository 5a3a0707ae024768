"""Place of a rank (rank, local rank and cross rank), and the environment variables that contain it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.shared import contract


def job_variables(name: str, namespace: str, uid: str, workers: int, slots: int) -> dict[str, str]:
    """Return the variables that launcher and agents of a job outside Kubernetes get instead of the operator's."""
    return {
        contract.ENV_JOB_NAME: name,
        contract.ENV_JOB_NAMESPACE: namespace,
        contract.ENV_JOB_UID: uid,
        contract.ENV_ATTEMPT: "1",
        contract.ENV_BACKEND: "ring",
        contract.ENV_NUM_WORKERS: str(workers),
        contract.ENV_SLOTS_PER_WORKER: str(slots),
        contract.ENV_TERMINATION_MESSAGE_PATH: os.devnull,
    }


@dataclass(frozen=True)
class RankPlace:
    """Rank and size of the world, local rank on the host or in the pod, and cross rank between hosts.

    `cross_rank`: index of this rank among the `cross_size` ranks that have the same local rank on their hosts.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1

    @staticmethod
    def among(hosts: Sequence[Sequence[int]], rank: int) -> "RankPlace":
        """Return the place of `rank` in a world whose hosts have these ranks."""
        own = next(ranks for ranks in hosts if rank in ranks)
        position = own.index(rank)
        column = [ranks[position] for ranks in hosts if len(ranks) > position]
        size = sum(map(len, hosts))
        return RankPlace(rank, size, position, len(own), column.index(rank), len(column))

    def variables(self) -> dict[str, str]:
        """Return the place as environment variables, under ringtrain's and Horovod's names (`HOROVOD_RANK`)."""
        values = {
            contract.ENV_RANK: self.rank,
            contract.ENV_SIZE: self.size,
            contract.ENV_LOCAL_RANK: self.local_rank,
            contract.ENV_LOCAL_SIZE: self.local_size,
            contract.ENV_CROSS_RANK: self.cross_rank,
            contract.ENV_CROSS_SIZE: self.cross_size,
        }
        horovod = {name.replace("RINGTRAIN_", "HOROVOD_"): value for name, value in values.items()}
        return {name: str(value) for name, value in {**values, **horovod}.items()}
