"""Participants of an elastic state, and the registry of extensions for frameworks and features.

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

    Derive from it and override the methods that the value needs; the defaults do nothing. Each method is called on
    every rank, in the order of this class. Only methods marked collective may communicate; they raise PeerLost if a
    rank is lost. A local method marked final must not fail, because other participants have done the same already.
    """

    value: Any = None  # the attribute of the state

    def set_value(self, value: Any) -> None:
        """Replace the value by an object that the program assigned to the state's attribute. Local."""

    # A commit

    @property
    def steps_ahead(self) -> int | None:
        """Return the steps since the last commit; None if the value does not count them."""
        return None

    @property
    def undoable(self) -> int | None:
        """Return the number of steps that `restore` and `go_back` can undo; None if a commit makes a copy."""
        return None

    def check(self, name: str, call: str) -> None:
        """Raise ConfigurationError if the value cannot be committed now, during an update. Local.

        `name`: the attribute; `call`: the method of the state that the program has called; both for the message.
        """

    def wait(self) -> None:
        """Wait until the last step has updated the value. May be collective. Raises the error of a failed step."""

    def commit(self) -> None:
        """Save the current value as the one that `restore` returns to. Final, local."""

    def finish_commit(self, is_planned: bool) -> None:
        """Do the ranks' common work after all have committed a step. Collective.

        Called after each exchange of a commit, and at the end of each `State.sync`, because a lost rank may have
        prevented it in the former world. `is_planned`: ranks join or leave next.
        """

    def restore(self) -> None:
        """Set the value to its value at the last commit. Local, on each rank that has left a broken world."""

    # A change of the world

    def hand_over(self, leaving: Collection[int]) -> None:
        """Send state that only the `leaving` ranks have to ranks that stay. Collective, at a commit."""

    def kinds(self, name: str) -> Mapping[str, str]:
        """Return descriptions that must be the same on all ranks, by attribute.

        `State.sync` raises MismatchError otherwise.
        """
        return {name: type(self.value).__name__}

    def offer(self) -> Any:
        """Return plain data that is sent to all ranks when they agree on a step. Local."""
        return None

    def plan(self, offers: Sequence[Any]) -> None:
        """Choose the step that `go_back` returns to, from the offers of the survivors at the agreed step. Local."""

    def receive(self, agreed: ElasticCommonStep, is_undone: bool) -> None:
        """Receive the value of rank `agreed.donor` if `agreed.transfers`. Collective.

        `restore` still returns to this rank's own last commit until the next `commit`. `is_undone`: `discard` must
        return to it even after that, until `adopt`, because this rank joins others and its state is incomplete until
        `prepare`.
        """

    def go_back(self, world: ProcessGroupContext) -> None:
        """Undo updates after the planned step. Final, local; called on all ranks when all values were received."""

    def prepare(self, world: ProcessGroupContext) -> None:
        """Build this rank's part of the state in `world`. The former part stays in use. Collective."""

    def adopt(self) -> None:
        """Switch to the received and prepared state, if there is any. Final, local.

        Called when all ranks have prepared theirs, or in the next world if any rank has called it in this one.
        """

    def discard(self) -> None:
        """Discard the received and prepared state, if there is any: the world broke before `adopt`. Final, local."""


@runtime_checkable
class ParticipantSource(Protocol):
    """Value that creates its own participant, without a handler or an extension."""

    def as_participant(self) -> Participant: ...


# Factory of participants, by attribute, for values that have none yet. The second argument has all values of the state.
# A name that is not an attribute, such as "optimizer.buffers", gives a value a second participant.
ParticipantFactory = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Participant]]


def _no_participants(left: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Participant]:
    """Return no participants."""
    return {}


def _do_nothing() -> None:
    """Do nothing before a sync."""


@dataclass(frozen=True)
class StateExtension:
    """Additions of a framework or feature to every state that is constructed after the registration.

    `participants`: factory for the values that it supports. `wire_values`: additions to plain values. `before_sync`:
    called before each `State.sync`; collective.
    """

    participants: ParticipantFactory = _no_participants
    wire_values: ForeignWireValues | None = None
    before_sync: Callable[[], object] = _do_nothing


_extensions: list[StateExtension] = []


def register_extension(extension: StateExtension) -> None:
    """Register `extension` for every state constructed from now on. Call it on all ranks in the same order."""
    _extensions.append(extension)


def extensions() -> Sequence[StateExtension]:
    """Return the registered extensions in order."""
    return _extensions
