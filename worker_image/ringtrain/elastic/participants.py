"""Participants, which commit, restore and send the values of an elastic state, and extensions that add value types.

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
    """Base class of participants, each of which takes part in commits and world changes for one value of an elastic
    state.

    Derive from it and override the methods that the value needs; the defaults do nothing. Each method is called on
    every rank, in the order of this class. Only methods marked collective may communicate; they raise PeerLost if a
    rank is lost. A local method marked final must not fail, because other participants have done the same already.
    """

    value: Any = None  # the attribute of the state

    def set_value(self, value: Any) -> None:
        """Replace the value by an object that the program assigned to the state's attribute. Not collective."""

    # A commit

    @property
    def steps_ahead(self) -> int | None:
        """Return the number of steps since the last commit; None if the value does not count steps."""
        return None

    @property
    def undoable(self) -> int | None:
        """Return the number of steps that a rollback can undo; None if a commit copies the value instead."""
        return None

    def check(self, name: str, call: str) -> None:
        """Raise ConfigurationError if the value cannot be committed now, during an update. Not collective.

        `name`: name of the state's attribute, for the message. `call`: name of the state's method that the program has
        called, for the message.
        """

    def wait(self) -> None:
        """Wait until the last step has updated the value. May be collective. Raises the error of a failed step."""

    def commit(self) -> None:
        """Save the object's current value as the one that `restore` returns to. Must not fail. Not collective."""

    def finish_commit(self, is_planned: bool) -> None:
        """Do collective work after all ranks have committed a step, such as an average over sites.

        Called after each exchange of a commit. Also called at the end of each `State.sync`, because a lost rank may
        have prevented the call in the former world. `is_planned`: whether ranks join or leave next.
        """

    def restore(self) -> None:
        """Set the value to its value at the last commit, on each rank that has left a broken world. Not collective."""

    # A change of the world

    def hand_over(self, leaving: Collection[int]) -> None:
        """Send state that only the `leaving` ranks have to ranks that stay. Collective, at a commit."""

    def kinds(self, name: str) -> Mapping[str, str]:
        """Return, for each attribute of the state, a text that must be the same on all ranks.

        If the texts differ, `State.sync` raises MismatchError. `name`: attribute of this participant's value.
        """
        return {name: type(self.value).__name__}

    def offer(self) -> Any:
        """Return plain data that all ranks receive when they agree on a step. Not collective."""
        return None

    def plan(self, offers: Sequence[Any]) -> None:
        """Choose the step to which `go_back` returns. Not collective.

        `offers`: results of `offer()` on all survivors that have committed the step on which all ranks agreed.
        """

    def receive(self, agreed: ElasticCommonStep, is_undone: bool) -> None:
        """Receive the value from rank `agreed.donor` if `agreed.transfers` is True. Collective.

        Until the next `commit`, `restore` still returns to this rank's own last commit. `is_undone`: whether this rank
        joins others, so that its state is incomplete until `prepare`. If True, `discard` must return to this rank's own
        last commit until `adopt` is called, even after the next `commit`.
        """

    def go_back(self, world: ProcessGroupContext) -> None:
        """Undo updates after the planned step, once all values were received. Must not fail. Not collective."""

    def prepare(self, world: ProcessGroupContext) -> None:
        """Build this rank's part of the state for `world`. The former part stays in use until `adopt`. Collective."""

    def adopt(self) -> None:
        """Switch to the received and prepared state, if any. Must not fail. Not collective.

        Called when all ranks have prepared their state. If the world breaks before that call on this rank, but another
        rank has already adopted its state, the call follows in the next world.
        """

    def discard(self) -> None:
        """Discard the received and prepared state, if any, because the world broke before any rank adopted it. Must not
        fail."""


@runtime_checkable
class ParticipantSource(Protocol):
    """Interface of a value that creates its own participant, without a handler or an extension."""

    def as_participant(self) -> Participant: ...


# Factory of participants, by attribute, for values that have none yet. The second argument has all values of the state.
# A name that is not an attribute, such as "optimizer.buffers", gives a value a second participant.
ParticipantFactory = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Participant]]


def _no_participants(left: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Participant]:
    """Return an empty dictionary: the extension creates participants for none of the `values`.

    `left`: values of the state that are not plain and have no participant yet. `values`: all values of the state.
    """
    return {}


def _do_nothing() -> None:
    """Do nothing before a sync, for an extension that needs no such call."""


@dataclass(frozen=True)
class StateExtension:
    """Extension by a framework or feature, for every elastic state constructed after its registration.

    `participants`: returns participants for those values that the extension supports. `wire_values`: functions that
    encode the framework's own types. `before_sync`: called before each `State.sync`; collective.
    """

    participants: ParticipantFactory = _no_participants
    wire_values: ForeignWireValues | None = None
    before_sync: Callable[[], object] = _do_nothing


_extensions: list[StateExtension] = []


def register_extension(extension: StateExtension) -> None:
    """Register `extension` for all states constructed later. Call it on all ranks in the same order."""
    _extensions.append(extension)


def extensions() -> Sequence[StateExtension]:
    """Return the registered extensions in the order of registration."""
    return _extensions
