"""The parts of an elastic state, and the one place where frameworks and features add theirs.

A state has one participant for its plain values and one for each other value. All ranks have the same participants in
the same order. `State.commit` and `State.sync` call them; no participant calls another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.wire.values import ForeignWireValues
from ringtrain.elastic.agreement import ElasticCommonStep


class Participant:
    """Take part in the commits of an elastic state and in its changes of the world.

    Derive from it and replace what the value needs: these methods do nothing. A method is called on every rank, in
    the order of this class. Only those marked collective may communicate; they raise PeerLost if a rank is lost. A
    local one that is marked final must not fail, because other participants have done the same already.
    """

    value: Any = None  # the object that the state shows as an attribute

    def set_value(self, value: Any) -> None:
        """Take another object as the value: a program has assigned it to the state's attribute. Local."""

    # A commit

    @property
    def steps_ahead(self) -> int | None:
        """Steps since the last commit; None if the value does not count them."""
        return None

    @property
    def undoable(self) -> int | None:
        """Number of steps that `restore` and `go_back` can undo; None if a commit makes a copy."""
        return None

    def check(self, name: str, call: str) -> None:
        """Raise ConfigurationError if nothing can be committed now, amid an update. Local.

        `name`: the attribute, `call`: the method of the state that the program has called, both for the message.
        """

    def wait(self) -> None:
        """Return when the value is that of the last step. May be collective. Raises what made the step fail."""

    def commit(self) -> None:
        """Make the value as it is now the one that `restore` goes back to. Final, local."""

    def finish_commit(self, is_planned: bool) -> None:
        """Do what the ranks do together once all have committed a step. Collective.

        Called after each exchange of a commit, and at the end of each `State.sync`, as a lost rank may have prevented
        it in the former world. `is_planned`: ranks are about to join or to leave.
        """

    def restore(self) -> None:
        """Make the value what it was at the last commit. Local, on each rank that has left a broken world."""

    # A change of the world

    def hand_over(self, leaving: Collection[int]) -> None:
        """Send to ranks that stay what only the ranks `leaving` have. Collective, at a commit."""

    def kinds(self, name: str) -> Mapping[str, str]:
        """Return what must be the same on all ranks, by attribute. Other ranks' kinds raise MismatchError."""
        return {name: type(self.value).__name__}

    def offer(self) -> Any:
        """Return plain data that this rank tells all others as they agree on a step. Local."""
        return None

    def plan(self, offers: Sequence[Any]) -> None:
        """Decide what `go_back` goes back to, by the offers of the survivors that are at the agreed step. Local."""

    def receive(self, agreed: ElasticCommonStep, is_undone: bool) -> None:
        """Take the value of rank `agreed.donor` if `agreed.transfers`. Collective.

        `restore` still goes back to this rank's own last commit until `commit` follows. `is_undone`: `discard` goes
        back to it also afterwards, until `adopt`: this rank joins others, whose state is not complete without what
        `prepare` builds.
        """

    def go_back(self, world: ProcessGroupContext) -> None:
        """Undo what goes beyond the planned step. Final, local; on all ranks when all values were received."""

    def prepare(self, world: ProcessGroupContext) -> None:
        """Build the part of the state that this rank has in `world`. The former part stays in use. Collective."""

    def adopt(self) -> None:
        """Go on with what was received and prepared, if anything was. Final, local.

        Called when all ranks have prepared theirs, or in the next world if any rank has called it in this one.
        """

    def discard(self) -> None:
        """Forget what was received and prepared, if anything was: the world broke before. Final, local."""


@runtime_checkable
class ParticipantSource(Protocol):
    """A value that makes its own participant: no handler or extension is asked."""

    def as_participant(self) -> Participant: ...


# Makes participants of values that have none yet, by attribute. The second argument has all values of the state: a
# name that is no attribute, as "optimizer.buffers", gives a value a second participant.
ParticipantFactory = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Participant]]


def _no_participants(left: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Participant]:
    """Return no participants."""
    return {}


def _do_nothing() -> None:
    """Do nothing before a sync."""


@dataclass(frozen=True)
class StateExtension:
    """Additions of a framework or a feature to every state that is made after it was registered.

    `participants`: of the values that it knows. `wire_values`: what it adds to plain values. `before_sync`: called
    before each `State.sync`; collective.
    """

    participants: ParticipantFactory = _no_participants
    wire_values: ForeignWireValues | None = None
    before_sync: Callable[[], object] = _do_nothing


_extensions: list[StateExtension] = []


def register_extension(extension: StateExtension) -> None:
    """Add `extension` to every state that is made from now on. On all ranks, in the same order."""
    _extensions.append(extension)


def extensions() -> Sequence[StateExtension]:
    """Return the extensions that were registered, in order."""
    return _extensions
