"""Handlers: objects that copy and restore a value of an elastic state, and send it whole from one rank to another."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

from ringtrain._core.wire.values import ForeignWireValues
from ringtrain.elastic.agreement import ElasticCommonStep
from ringtrain.elastic.participants import Participant
from ringtrain.elastic.transfer import broadcast

# Pairs of a type and a factory of a handler, or participant, for values of that type.
HandlerPairs = Sequence[tuple[type, Callable[[Any], Any]]]


class StateHandler(ABC):
    """Handler that copies, restores and sends one value of an elastic `State`.

    Derive from it for a type without a handler, and pass it as `State(handlers=[(MyType, MyHandler)], ...)`. Horovod's
    `sync(self)`, without a rank, works too. If a handler has a method `refresh(self)`, it is called instead of `sync`
    if all ranks have the value already and the world has another size.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    @abstractmethod
    def save(self) -> None:
        """Copy the current value of the handled object. Called when a step is committed."""

    @abstractmethod
    def restore(self) -> None:
        """Set the value to the copy of the last `save`."""

    @abstractmethod
    def sync(self, root: int = 0) -> None:
        """Set the value on all ranks to that of rank `root`. Collective."""

    def set_value(self, value: Any) -> None:
        """Replace the handled value by `value`, and copy it as `save` does."""
        self.value = value
        self.save()


class StatefulObjectHandler(StateHandler):
    """Handler of objects with `state_dict()` and `load_state_dict()`, such as samplers, schedules and shards.

    `foreign`: a framework's additions to plain values.
    """

    def __init__(self, value: StatefulObject, foreign: ForeignWireValues | None = None) -> None:
        super().__init__(value)
        self._foreign = foreign
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self, root: int = 0) -> None:
        received = broadcast(self.value.state_dict(), root, type(self.value).__name__, self._foreign)
        self.value.load_state_dict(copy.deepcopy(received))

    def refresh(self) -> None:
        self.value.load_state_dict(self.value.state_dict())


class ShardHandler(StatefulObjectHandler):
    """Handler of a data shard's position."""

    @property
    def kind(self) -> str:
        """Return a text that identifies the shard's data set and its order of samples. All ranks must have the same
        text."""
        return str(self.value.cut)

    @property
    def steps_ahead(self) -> int:
        """Return the number of steps that this rank has begun since the last commit."""
        return int(self.value.steps_since(self._saved))


class HandlerParticipant(Participant):
    """Participant of an elastic state for a value that `handler` copies, restores and sends."""

    def __init__(self, handler: StateHandler) -> None:
        self.handler = handler
        self._own: dict[str, Any] | None = None  # fields of the handler before this rank joined others

    @property
    def value(self) -> Any:
        return self.handler.value

    def set_value(self, value: Any) -> None:
        self.handler.set_value(value)

    @property
    def steps_ahead(self) -> int | None:
        return getattr(self.handler, "steps_ahead", None)

    def kinds(self, name: str) -> Mapping[str, str]:
        return {name: getattr(self.handler, "kind", type(self.value).__name__)}

    def commit(self) -> None:
        self.handler.save()

    def restore(self) -> None:
        self.handler.restore()

    def receive(self, agreed: ElasticCommonStep, is_undone: bool) -> None:
        if agreed.transfers:
            self._own = copy.deepcopy(_fields_of(self.handler)) if is_undone else None
            _sync_handler(self.handler, agreed.donor)
        elif hasattr(self.handler, "refresh"):
            self.handler.refresh()

    def adopt(self) -> None:
        self._own = None

    def discard(self) -> None:
        if self._own is not None:
            vars(self.handler).update(self._own)
            self._own = None
            self.handler.restore()


def participants_by_type(values: Mapping[str, Any], pairs: HandlerPairs) -> dict[str, Participant]:
    """Return a participant for each of `values` whose type is in `pairs`; the first matching pair is used."""
    made = {}
    for name, value in values.items():
        fitting = (make for kind, make in pairs if _is_of_kind(value, kind) and not isinstance(value, type))
        if (make := next(fitting, None)) is not None:
            one = make(value)
            made[name] = one if isinstance(one, Participant) else HandlerParticipant(one)
    return made


def _is_of_kind(value: Any, kind: type) -> bool:
    return is_stateful(value) if kind is StatefulObject else isinstance(value, kind)


def _fields_of(handler: StateHandler) -> dict[str, Any]:
    return {name: value for name, value in vars(handler).items() if name != "value"}


def _sync_handler(handler: StateHandler, root: int) -> None:
    """Set the handler's value to that of rank `root`. Handlers whose `sync` has no `root` are supported. Collective."""
    if inspect.signature(handler.sync).parameters:
        handler.sync(root)
        return
    if root == 0:  # Horovod's handlers always send from rank 0
        handler.sync()
        return
    handler.save()
    vars(handler).update(broadcast(_fields_of(handler), root, type(handler).__name__))
    handler.restore()


class StatefulObject(Protocol):
    """An object with `state_dict()` and `load_state_dict()`, such as an optimizer or a schedule."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


def is_stateful(value: object) -> TypeGuard[StatefulObject]:
    """Return whether `value` has `state_dict` and `load_state_dict`, even if only its `__getattr__` provides them."""
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))
