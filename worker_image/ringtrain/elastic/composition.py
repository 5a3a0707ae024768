"""Creation of participants: one object for each value of an elastic state, which commits, restores and sends it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from functools import partial
from operator import methodcaller
from typing import Any

from ringtrain._core.wire.values import ForeignWireValues
from ringtrain.elastic.agreement import ElasticCommonStep
from ringtrain.elastic.data import ElasticShard
from ringtrain.elastic.handlers import (
    HandlerPairs,
    ShardHandler,
    StatefulObject,
    StatefulObjectHandler,
    is_stateful,
    participants_by_type,
)
from ringtrain.elastic.optimizers import ElasticOptimizer, OptimizerParticipant
from ringtrain.elastic.participants import Participant, ParticipantSource, extensions
from ringtrain.elastic.transfer import broadcast, check_sendable
from ringtrain.errors import ConfigurationError, kind_of


def make_participants(
    attributes: dict[str, Any], values: Mapping[str, Any], pairs: HandlerPairs, foreign: ForeignWireValues | None
) -> dict[str, Participant]:
    """Return a participant for each attribute in `values`. One participant, named "", has all plain values.

    `attributes`: the attributes of the state. `pairs`: handlers that take precedence over all others. `foreign`:
    functions that encode a framework's own types. Optimizers come first in the result, because they are restored before
    the values that depend on them. Raises ConfigurationError for a value without a handler.
    """
    foreign = foreign or next((one.wire_values for one in extensions() if one.wire_values is not None), None)
    first = (ParticipantSource, methodcaller("as_participant"))
    made = participants_by_type(values, [first, *pairs, (ElasticOptimizer, OptimizerParticipant)])
    objects = _without(values, made)
    refusals = {name: None if is_stateful(value) else _refusal(name, value, foreign) for name, value in objects.items()}
    objects = {name: value for name, value in objects.items() if is_stateful(value) or refusals[name]}
    for extension in extensions():
        made |= extension.participants(_without(objects, made), values)
    stateful = partial(StatefulObjectHandler, foreign=foreign)
    made |= participants_by_type(_without(objects, made), [(ElasticShard, ShardHandler), (StatefulObject, stateful)])
    for name, value in _without(objects, made).items():
        raise refusals[name] or ConfigurationError(f"State: {name!r} is {kind_of(value)}; expected an object")
    made[""] = PlainValues(attributes, [name for name in values if name not in made], foreign)
    return dict(sorted(made.items(), key=lambda item: not isinstance(item[1], OptimizerParticipant)))


def _without(values: Mapping[str, Any], made: Mapping[str, Participant]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in made}


def _refusal(name: str, value: Any, foreign: ForeignWireValues | None) -> ConfigurationError | None:
    """Return an error that explains why an elastic state does not support `value`; None if `value` is plain data."""
    try:
        check_sendable(value, repr(name), foreign)
    except ConfigurationError as error:
        return error
    return None


class PlainValues(Participant):
    """Participant of an elastic state for all its plain values. `attributes`: attributes of the state, of which `names`
    are plain.

    `foreign`: additions of the state's framework to plain values.
    """

    def __init__(self, attributes: dict[str, Any], names: Collection[str], foreign: ForeignWireValues | None) -> None:
        self._attributes, self._names, self._foreign = attributes, names, foreign
        self._own: dict[str, Any] | None = None  # this rank's last commit before it joined others
        self.commit()

    def kinds(self, name: str) -> Mapping[str, str]:
        return dict.fromkeys(self._names, "value")

    def commit(self) -> None:
        self._saved = {name: copy.deepcopy(self._attributes[name]) for name in self._names}

    def restore(self) -> None:
        self._attributes.update(copy.deepcopy(self._saved))

    def receive(self, agreed: ElasticCommonStep, is_undone: bool) -> None:
        if agreed.transfers and self._names:
            self._own = self._saved if is_undone else None
            own = {name: self._attributes[name] for name in self._names}
            self._attributes.update(copy.deepcopy(broadcast(own, agreed.donor, "values", self._foreign)))

    def adopt(self) -> None:
        self._own = None

    def discard(self) -> None:
        if self._own is not None:
            self._saved, self._own = self._own, None
            self.restore()
