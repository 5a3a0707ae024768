"""Plain values of an elastic state: numbers, strings, containers and arrays, which are copied and sent together."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from ringtrain._core.wire.values import ForeignWireValues
from ringtrain.elastic.agreement import ElasticCommonStep
from ringtrain.elastic.participants import Participant
from ringtrain.elastic.transfer import broadcast


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
