"""Process sets: subsets of the world's ranks that run collectives among themselves."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ringtrain._core.communicators.numbers import WORLD
from ringtrain._core.process_groups.context import current, current_or_none, joins_survivors
from ringtrain._core.process_groups.group import ProcessGroup
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.wire.signature import WireSignature
from ringtrain.errors import ConfigurationError


class ProcessSet:
    """Set of world ranks that run collectives together. Usable once `add_process_set` has returned on all ranks.

    Constructed from a list of world ranks, or an mpi4py communicator. Before it is added, after it is removed, and when
    its world has ended, `process_set_id`, `size()`, `rank()` and `included()` are None.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        self._added: tuple[weakref.ref[ProcessGroupContext], int] | None = None  # the world, and the number in it
        self._ranks = _ranks_of(ranks_or_comm)

    @property
    def process_set_id(self) -> int | None:
        """Return the set's number: 0 for the set of all ranks, None if the set is not in use."""
        context = current_or_none()
        if context is None or self._added is None or self._added[0]() is not context:
            return None
        return self._added[1]

    @property
    def ranks(self) -> list[int] | None:
        """Return the world ranks of the members, ascending."""
        return list(self._ranks)

    def bind(self, context: ProcessGroupContext, number: int) -> None:
        """Connect this object to the process set `number` of the world `context`."""
        self._added = weakref.ref(context), number

    def size(self) -> int | None:
        """Return the number of members."""
        return None if self.process_set_id is None else len(self.ranks or [])

    def rank(self) -> int | None:
        """Return this process's index in the set; -1 if it is not a member; None if the set is not in use."""
        if self.process_set_id is None:
            return None
        own, ranks = current().config.place.rank, self.ranks or []
        return ranks.index(own) if own in ranks else -1

    def included(self) -> bool | None:
        """Return whether this process is a member; None if the set is not in use."""
        rank = self.rank()
        return None if rank is None else rank >= 0

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    __repr__ = __str__


class _GlobalProcessSet(ProcessSet):
    """Set of all ranks of any world."""

    def __init__(self) -> None:
        """Create the set of all ranks, which exists in every world."""

    @property
    def process_set_id(self) -> int | None:
        return None if current_or_none() is None else WORLD

    @property
    def ranks(self) -> list[int] | None:
        context = current_or_none()
        return None if context is None else list(range(context.config.place.size))

    def included(self) -> bool | None:
        return None if current_or_none() is None else True

    def __str__(self) -> str:
        return "global_process_set"

    __repr__ = __str__


global_process_set = _GlobalProcessSet()


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Create a process set and return it. Every rank of the world must call this with the same ranks.

    Raises ConfigurationError for ranks outside the world and for a set that exists already, MismatchError if ranks add
    different sets.
    """
    context = current()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    ranks, size = added.ranks or [], context.config.place.size
    if not ranks or ranks[0] < 0 or ranks[-1] >= size:
        raise ConfigurationError(f"process set {ranks}: expected one or more ranks from 0 to {size - 1}")
    # The former world had it: newcomers add the existing sets, and so do ranks that enter their function again.
    if (left := context.take_former_set(ranks)) is not None:
        context.bind_set(added, left)
        return added
    if joins_survivors():
        raise ConfigurationError(
            f"process set {ranks} does not exist in the world that this rank joins; call add_process_set in the "
            "function that elastic.run runs, on all ranks"
        )
    if added.process_set_id is not None or context.added_set(ranks) is not None:
        raise ConfigurationError(f"process set {ranks}: a set of these ranks exists already; use the existing set")
    context.group().call(lambda communicator: communicator.barrier(WireSignature(f"add_process_set({ranks})")))
    context.bind_set(added, context.add_set(tuple(ranks)))
    return added


def process_set_of(ranks: Sequence[int]) -> ProcessSet:
    """Return the process set with these ranks (ascending), and add it if it does not exist.

    Every rank of the world calls this with the same ranks. Raises the same errors as `add_process_set`.
    """
    context = current()
    if list(ranks) == global_process_set.ranks:
        return global_process_set
    number = context.added_set(ranks)
    if number is None:
        return add_process_set(ranks)
    found = ProcessSet(ranks)
    found.bind(context, number)
    return found


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; every rank must call this. Return False if it is the set of all ranks or not in use.

    Raises ConfigurationError, on every rank, while a named collective of the set is in flight on any of them; the set
    stays in use.
    """
    number = process_set.process_set_id
    if not number:
        return False
    context = current()
    what = WireSignature(f"remove_process_set({process_set.ranks})")
    own = np.frombuffer(context.in_flight(number).encode(), np.uint8)
    activities = context.group().call(lambda communicator: communicator.all_gather_parts(what, own))
    busy = [f"{part.tobytes().decode()} on rank {rank}" for rank, part in enumerate(activities) if len(part)]
    if busy:
        raise ConfigurationError(
            f"process set {process_set.ranks} can't be removed while collectives of it are in flight: "
            f"{', '.join(busy)}; call synchronize() for these collectives on every rank of the set first"
        )
    context.remove_set(number)
    process_set._added = None
    return True


def group_of(process_set: ProcessSet | None = None) -> ProcessGroup:
    """Return the group of `process_set` (default: all ranks) for the public collectives.

    Raises NotInitializedError without a world, ConfigurationError for a set that is not in use or without this rank.
    """
    return current().groups[WORLD if process_set is None else number_of(process_set)]


def open_group(process_set: ProcessSet) -> ProcessGroup:
    """Open another group of the ranks of `process_set`. Its collectives do not wait for collectives of other groups.

    All ranks of `process_set` open the same groups in the same order.
    """
    return current().open_group(number_of(process_set))


def number_of(process_set: ProcessSet) -> int:
    """Return the number of `process_set`. Raises ConfigurationError if it is not in use or does not have this rank."""
    number = process_set.process_set_id
    if number is None:
        raise ConfigurationError(
            f"{process_set} is not in use; pass this process set to init() or add_process_set() on all ranks first"
        )
    if not process_set.included():
        raise ConfigurationError(
            f"rank {current().config.place.rank} is not a member of {process_set}; only its ranks may use it"
        )
    return number


def members(process_set: ProcessSet) -> int:
    """Return the number of ranks in `process_set`. Raises ConfigurationError if this rank is not a member."""
    number_of(process_set)
    return len(process_set.ranks or [])


def trains_alone(process_set: ProcessSet) -> bool:
    """Return whether this rank exchanges gradients with no other rank.

    This rank is the only member of `process_set`, or, as in Horovod, not a member. Raises ConfigurationError for a set
    that is not in use.
    """
    if process_set.included() is False:
        return True
    return members(process_set) == 1


def _ranks_of(ranks_or_comm: Any) -> Sequence[int]:
    if hasattr(ranks_or_comm, "allgather"):  # an mpi4py communicator gathers its members' world ranks
        world = importlib.import_module("mpi4py.MPI").COMM_WORLD
        return sorted(ranks_or_comm.allgather(world.rank))
    ranks = sorted(int(rank) for rank in ranks_or_comm)
    if len(set(ranks)) != len(ranks):
        raise ConfigurationError(f"process set {ranks}: a rank is listed twice; expected each rank once")
    return ranks
