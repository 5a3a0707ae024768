"""Finds ranks whose shards of a data set are not parts of one: samples would count twice, and others never."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any, Final, NamedTuple

from ringtrain._core.process_groups.context import current_or_none
from ringtrain.errors import MismatchError

# Comparisons that an epoch waits for its like on other ranks: one that reads ahead begins an epoch earlier.
_COMPARISONS: Final = 2
# Of a rank that begins more epochs between two comparisons, the newest are compared.
_MOST_KEPT: Final = 64


class ProcessGroupEpoch(NamedTuple):
    """An epoch that a rank began. `number`: counts them on that rank. `cut`: how the data set is cut. `begin`:
    the epoch, and where in it. `compared`: how many comparisons it went through without its like on all ranks."""

    number: int
    cut: str
    begin: str
    compared: int

    def __str__(self) -> str:
        return f"{self.cut}, {self.begin}"


class ProcessGroupEpochs:
    """The epochs that one rank began in its world, and that were not seen to begin on all ranks.

    Ranks need not keep step here: one may read ahead, and one alone may evaluate. So it is no error that a rank
    began an epoch that others did not. It is one where two ranks began different epochs of one cut, or where each
    of the two has cut a data set as the other never did.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn: list[ProcessGroupEpoch] = []
        self._cuts: dict[str, None] = {}  # all of them, the newest last
        self._count = 0

    def note(self, cut: str, begin: str) -> None:
        """This rank begins an epoch."""
        with self._lock:
            self._count += 1
            self._drawn = [*self._drawn, ProcessGroupEpoch(self._count, cut, begin, 0)][-_MOST_KEPT:]
            self._cuts.pop(cut, None)
            self._cuts = dict.fromkeys([*self._cuts, cut][-_MOST_KEPT:])

    def told(self) -> dict[str, list[Any]]:
        """What this rank tells the others of what it began."""
        with self._lock:
            return {"drawn": list(self._drawn), "cuts": list(self._cuts)}

    def compare(self, rank: int, told: Sequence[Mapping[str, Iterable[Any]]]) -> None:
        """Forget what all ranks began. `told`: by rank, what each of them told; this one is `rank`.

        Raises MismatchError, on every rank, where two ranks told for the second time of epochs that are not of
        one data set, cut alike.
        """
        everyone = [[ProcessGroupEpoch(*one) for one in of_rank["drawn"]] for of_rank in told]
        common = set.intersection(*({str(one) for one in drawn} for drawn in everyone))
        left = [[one for one in drawn if str(one) not in common] for drawn in everyone]
        last = max((one.number for one in everyone[rank]), default=0)
        waiting = [one._replace(compared=one.compared + 1) for one in left[rank] if one.compared < _COMPARISONS]
        with self._lock:
            self._drawn = waiting + [one for one in self._drawn if one.number > last]
        _refuse_differing_epochs(left, [set(of_rank["cuts"]) for of_rank in told])


def process_group_epochs_of(size: int) -> ProcessGroupEpochs:
    """What this rank began to train on, where `size` ranks are its world; nothing where they are a part of it."""
    world = current_or_none()
    if world is None or world.config.place.size != size:
        return ProcessGroupEpochs()
    return world.attached(ProcessGroupEpochs, ProcessGroupEpochs)


def note_process_group_epoch(rank: int, size: int, cut: str, begin: str) -> None:
    """The part of `rank` of `size` of a data set begins an epoch. Nothing is compared unless it is this rank's
    part among all ranks of its world."""
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
                    f"rank {one} trains on {here}, and rank {other} on {there}; ranks must cut one data set "
                    "alike, or samples count twice and others never: give every rank the same, and the same epoch"
                )
