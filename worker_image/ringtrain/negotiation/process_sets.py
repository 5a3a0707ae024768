"""Sets of ranks that run collectives together: what users hold in their hands."""

from collections.abc import Iterable

from ringtrain.errors import ConfigurationError


class ProcessSet:
    """Ranks of the world that run collectives together.

    Made from a list of world ranks (or an mpi4py communicator) and handed to `init()` or `add_process_set()`,
    which give it a number; until then `process_set_id`, `size()`, `rank()` and `included()` are None.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = _ranks_of(ranks_or_comm)
        self._own_rank: int | None = None

    def size(self) -> int | None:
        """Number of members."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's place among the members; -1 if it is none. Roots are given by world rank all the same."""
        if self.process_set_id is None or self.ranks is None or self._own_rank is None:
            return None
        return self.ranks.index(self._own_rank) if self._own_rank in self.ranks else -1

    def included(self) -> bool | None:
        """Whether this process is a member."""
        rank = self.rank()
        return None if rank is None else rank >= 0

    def bind(self, process_set_id: int, ranks: list[int], own_rank: int) -> None:
        """Make it usable: called by `init()` and `add_process_set()`."""
        self.process_set_id, self.ranks, self._own_rank = process_set_id, ranks, own_rank

    def invalidate(self) -> None:
        """Make it unusable: called by `remove_process_set()` and `shutdown()`."""
        self.process_set_id = self._own_rank = None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    __repr__ = __str__


def _ranks_of(ranks_or_comm: Iterable[int]) -> list[int]:
    translate = getattr(
        ranks_or_comm, "allgather", None
    )  # an mpi4py communicator gathers its members' world ranks
    if translate is not None:
        from mpi4py import MPI

        return sorted(translate(MPI.COMM_WORLD.rank))
    ranks = sorted(int(rank) for rank in ranks_or_comm)
    if len(set(ranks)) != len(ranks):
        raise ConfigurationError(f"process set {ranks}: a rank is listed twice; expected each rank once")
    return ranks
