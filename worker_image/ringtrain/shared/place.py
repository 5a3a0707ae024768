"""Where a rank is in the world, and among the ranks of its host or pod; and by which variables it is told."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.shared import contract


@dataclass(frozen=True)
class RankPlace:
    """`cross_rank` of `cross_size`: among the ranks that have the same position among the ranks of their hosts."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @staticmethod
    def among(hosts: Sequence[Sequence[int]], rank: int) -> "RankPlace":
        """The place of `rank` where `hosts` are the ranks of each."""
        own = next(ranks for ranks in hosts if rank in ranks)
        position = own.index(rank)
        column = [ranks[position] for ranks in hosts if len(ranks) > position]
        size = sum(map(len, hosts))
        return RankPlace(rank, size, position, len(own), column.index(rank), len(column))

    def variables(self) -> dict[str, str]:
        """Ours, and those that Horovod's launchers set, which scripts read: `os.environ["HOROVOD_RANK"]`."""
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
