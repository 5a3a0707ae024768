"""Check that all ranks shard the same data set; otherwise some samples would be used twice and others never."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any, Final, NamedTuple

from ringtrain._core.process_groups.context import current_or_none
from ringtrain.errors import MismatchError

# Number of comparisons for which an epoch waits for the same epoch on other ranks: one may read an epoch ahead.
_COMPARISONS: Final = 2
# If a rank begins more epochs between two comparisons, only the newest are compared.
_MOST_KEPT: Final = 64


class ProcessGroupEpoch(NamedTuple):
    """One pass over this rank's shard of a data set, recorded when the rank began it.

    `number`: number of the epoch on this rank. `cut`: description of the data set's partition. `begin`: the epoch and
    position. `compared`: number of comparisons in which not all ranks had begun this epoch.
    """

    number: int
    cut: str
    begin: str
    compared: int

    def __str__(self) -> str:
        return f"{self.cut}, {self.begin}"


class ProcessGroupEpochs:
    """Epochs that this rank has begun and that must still be compared with the epochs of other ranks.

    Ranks need not be synchronous here: a rank may read ahead or evaluate alone. So it is not an error if a rank began
    an epoch that others did not. It is an error if two ranks began different epochs of one partition, or if each of the
    two used a partition that the other never used.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn: list[ProcessGroupEpoch] = []
        self._cuts: dict[str, None] = {}  # all partitions, the newest last
        self._count = 0

    def note(self, cut: str, begin: str) -> None:
        """Record that this rank begins the epoch `begin` of the data set partition `cut`."""
        with self._lock:
            self._count += 1
            self._drawn = [*self._drawn, ProcessGroupEpoch(self._count, cut, begin, 0)][-_MOST_KEPT:]
            self._cuts.pop(cut, None)
            self._cuts = dict.fromkeys([*self._cuts, cut][-_MOST_KEPT:])

    def summary(self) -> dict[str, list[Any]]:
        """Return this rank's epochs and partitions, for the comparison with other ranks."""
        with self._lock:
            return {"drawn": list(self._drawn), "cuts": list(self._cuts)}

    def compare(self, rank: int, reported: Sequence[Mapping[str, Iterable[Any]]]) -> None:
        """Compare the epochs of all ranks, and remove those that all ranks have begun.

        `reported`: result of `summary()` on each rank. `rank`: this rank. Raises MismatchError, on every rank, if two
        ranks report for the second time epochs that do not belong to one partition of a data set.
        """
        everyone = [[ProcessGroupEpoch(*one) for one in of_rank["drawn"]] for of_rank in reported]
        common = set.intersection(*({str(one) for one in drawn} for drawn in everyone))
        left = [[one for one in drawn if str(one) not in common] for drawn in everyone]
        last = max((one.number for one in everyone[rank]), default=0)
        waiting = [one._replace(compared=one.compared + 1) for one in left[rank] if one.compared < _COMPARISONS]
        with self._lock:
            self._drawn = waiting + [one for one in self._drawn if one.number > last]
        _refuse_differing_epochs(left, [set(of_rank["cuts"]) for of_rank in reported])


def process_group_epochs_of(size: int) -> ProcessGroupEpochs:
    """Return the epochs recorded on this rank; an empty object if its world does not have `size` ranks."""
    world = current_or_none()
    if world is None or world.config.place.size != size:
        return ProcessGroupEpochs()
    return world.attached(ProcessGroupEpochs, ProcessGroupEpochs)


def note_process_group_epoch(rank: int, size: int, cut: str, begin: str) -> None:
    """Record that shard `rank` of `size` begins an epoch, if that is this rank's shard in its world."""
    world = current_or_none()
    if world is not None and size > 1 and (rank, size) == (world.config.place.rank, world.config.place.size):
        world.attached(ProcessGroupEpochs, ProcessGroupEpochs).note(cut, begin)


def _refuse_differing_epochs(left: Sequence[Sequence[ProcessGroupEpoch]], cuts: Sequence[set[str]]) -> None:
    old = {rank: [one for one in drawn if one.compared] for rank, drawn in enumerate(left)}
    for one, other in combinations([rank for rank, drawn in old.items() if drawn], 2):
        for here, there in product(old[one], old[other]):
            if str(here) == str(there):
                continue
            if here.cut == there.cut or (here.cut not in cuts[other] and there.cut not in cuts[one]):
                raise MismatchError(
                    f"rank {one} trains on {here}, but rank {other} trains on {there}; all ranks must "
                    "shard one data set equally, otherwise some samples are used twice and others never: "
                    "pass the same data set and epoch everywhere"
                )
