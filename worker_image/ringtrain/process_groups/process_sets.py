"""Groups of ranks that run collectives among themselves."""

import weakref
from collections.abc import Iterable

from ringtrain.communicators.base import Communicator
from ringtrain.errors import ConfigurationError
from ringtrain.process_groups.context import WORLD, Session, current, current_or_none
from ringtrain.wire.signature import Signature


class ProcessSet:
    """Some ranks of the world. Usable in collectives once `add_process_set` has returned on all ranks."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._added: tuple[weakref.ref[Session], int] | None = None
        self._ranks = tuple(sorted(ranks))
        if len(set(self._ranks)) != len(self._ranks) or not self._ranks:
            raise ConfigurationError(
                f"a process set of ranks {list(self._ranks)}; expected at least one, each once"
            )

    @property
    def process_set_id(self) -> int | None:
        """0 for the set of all ranks; None before it is added, after it is removed, and when its world ends."""
        session = current_or_none()
        if session is None or self._added is None or self._added[0]() is not session:
            return None
        return self._added[1]

    @property
    def ranks(self) -> tuple[int, ...]:
        return self._ranks

    def included(self) -> bool:
        """Whether this process is in the set."""
        return current().config.rank in self.ranks

    def rank(self) -> int:
        """This process's place in the set, from 0. Raises ConfigurationError if it is not in it."""
        if not self.included():
            raise ConfigurationError(f"rank {current().config.rank} is not in the process set {list(self.ranks)}")
        return self.ranks.index(current().config.rank)

    def size(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"ProcessSet({list(self._ranks)})"


class _GlobalProcessSet(ProcessSet):
    """All ranks, whatever the world."""

    def __init__(self) -> None:
        """Added to every world by itself."""

    @property
    def process_set_id(self) -> int:
        return WORLD

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(range(current().config.size))

    def __repr__(self) -> str:
        return "global_process_set"


global_process_set = _GlobalProcessSet()


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Make `process_set` usable. Called by all ranks of the world, in the same order, with the same ranks.

    Raises ConfigurationError for ranks that are not there, MismatchError when ranks add different sets.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    session = current()
    if made.process_set_id is not None:
        raise ConfigurationError(f"{made} has been added already")
    if made.ranks[0] < 0 or made.ranks[-1] >= session.config.size:
        raise ConfigurationError(
            f"{made} in a world of {session.config.size}: ranks go from 0 to {session.config.size - 1}"
        )

    def agree() -> int:
        session.communicator().barrier(Signature(f"add_process_set({list(made.ranks)})"))
        return session.add_process_set(made.ranks)

    made._added = weakref.ref(session), session.engine.call(agree)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Take `process_set` out of use, on all ranks alike. Returns False if it was not in use."""
    number = process_set.process_set_id
    if number is None or number == WORLD:
        return False
    session = current()

    def agree() -> None:
        session.communicator().barrier(Signature(f"remove_process_set({list(process_set.ranks)})"))
        session.remove_process_set(number)

    session.engine.call(agree)
    process_set._added = None
    return True


def communicator_of(session: Session, process_set: ProcessSet | None) -> Communicator:
    """The communicator of `process_set`, by default that of all ranks. Raises ConfigurationError."""
    if process_set is None:
        return session.communicator()
    number = process_set.process_set_id
    if number is None:
        raise ConfigurationError(
            f"{process_set} is not in use; call ringtrain.add_process_set() on all ranks first"
        )
    return session.communicator(number)
