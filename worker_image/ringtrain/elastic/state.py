"""What survives a change of the world: values that are committed with a step, restored, and given to newcomers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.formations import CARRIED, FormationPlace, own_agent
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.reduction.ops import Max
from ringtrain._core.wire.signature import WireSignature, WireTensorSignature
from ringtrain._core.wire.values import ForeignWireValues
from ringtrain.elastic.agreement import ElasticCommonStep, ElasticStateSummary, agree_on_common_step
from ringtrain.elastic.data import ElasticShard
from ringtrain.elastic.handlers import (
    ElasticOptimizer,
    ElasticOptimizerHandler,
    ShardHandler,
    StatefulObjectHandler,
    sync_handler,
)
from ringtrain.elastic.interrupt import HostsUpdatedInterrupt
from ringtrain.elastic.transfer import broadcast, check_sendable
from ringtrain.errors import ConfigurationError, MismatchError, NotRestored
from ringtrain.optim.recovery import StatefulObject, is_stateful

log = logging.getLogger("ringtrain")

Registry = Sequence[tuple[type, Callable[[Any], Any]]]
HANDLERS: list[tuple[type, Callable[[Any], Any]]] = [
    (ElasticOptimizer, ElasticOptimizerHandler),
    (ElasticShard, ShardHandler),
    (StatefulObject, StatefulObjectHandler),
]
# What makes handlers, by a name, of what goes with a value: buffers of a model that an optimizer trains. It gets
# the value, and all values of the state.
COMPANIONS: list[Callable[[Any, Sequence[Any]], dict[str, Any]]] = []
_COMMIT = WireSignature("commit", (WireTensorSignature(None, "int64", (3,)),))


@dataclass(frozen=True)
class ElasticStateAdapter:
    """What a framework adds to every state, where its adapter was imported.

    `values`: to plain data, in a state that has no addition of its own. `handler`: makes a handler of a value that
    is no plain data and that no pair of `HANDLERS` knows, or returns None. `meet`: called before each `sync`;
    collective.
    """

    values: ForeignWireValues
    handler: Callable[[Any], Any]
    meet: Callable[[], object]


ADAPTERS: list[ElasticStateAdapter] = []


@dataclass(frozen=True)
class _OwnElasticState:
    """A committed step as a rank keeps it: how many commits, plain values, and what handlers keep of theirs."""

    committed: int
    values: dict[str, Any]
    handlers: dict[str, dict[str, Any]]


class State:
    """Values that ranks have alike at each committed step; attributes of this object.

        state = elastic.State(optimizer=optimizer, shard=shard, epoch=0)

    Numbers, texts, containers and arrays are copied. Objects with `state_dict()` and `load_state_dict()` are asked
    for their state. A host optimizer's state stays where it is, spread over the ranks; it needs a commit after
    every update. Raises ConfigurationError for other values.

    Collective: `commit`, `check_host_updates` and `sync`. A step is committed or never was: after a loss all
    survivors have the values of the last step that all of them had committed.
    """

    _foreign: ForeignWireValues | None = None  # what a framework's State adds to plain data

    def __init__(self, *, handlers: Registry = (), **values: Any) -> None:
        """`handlers`: pairs of a type and what keeps a value of that type; they are looked at before ours."""
        self._handlers: dict[str, Any] = {}
        self._saved: dict[str, Any] = {}
        self._committed = 0
        self._host_messages = 0
        self._under_way = False  # whether a step may have begun
        self._begins_anew = 0  # the step that was committed before all that had the state were lost
        self._own: _OwnElasticState | None = None  # what this rank had itself, while it takes what others have
        self._reset_callbacks: list[Callable[[], Any]] = []
        for name, value in values.items():
            if hasattr(type(self), name) or name.startswith("_"):
                raise ConfigurationError(f"State: {name!r} is the state's own; give the value another name")
            handler = _state_handler_of(value, [*handlers, *HANDLERS]) or self._plain_or_handler(name, value)
            if handler is None:
                self._saved[name] = copy.deepcopy(value)
            else:
                self._handlers[name] = handler
            super().__setattr__(name, value)
        for name, value in values.items():
            for make in COMPANIONS:
                more = make(value, [*values.values()])
                self._handlers |= {f"{name}.{of}": handler for of, handler in more.items()}

    def __setattr__(self, name: str, value: Any) -> None:
        handler = vars(self).get("_handlers", {}).get(name)
        if handler is not None and handler.value is not value:
            handler.set_value(value)
        super().__setattr__(name, value)

    @property
    def committed(self) -> int:
        """How many commits have gone into these values, on whichever ranks."""
        return self._committed

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Call these after each change of the world, in order, before `sync`: to scale a learning rate with
        `size()`, for example."""
        self._reset_callbacks.extend(callbacks)

    def commit(self) -> None:
        """Make the step count: what is lost from now on is restored to here. Collective.

        Raises HostsUpdatedInterrupt, on all ranks, where the world is to change; MismatchError where ranks have
        committed different numbers of steps.
        """
        self._refuse_amid_updates("commit")
        self._refuse_to_begin_anew()
        for name, handler in self._reforming():
            handler.wait()
            if handler.updates_ahead > handler.undoable:
                raise ConfigurationError(
                    f"State.commit: {name!r} has made {handler.updates_ahead} updates since the last commit; "
                    "commit after every update: a host optimizer can undo one, and copies nothing for it. After "
                    "load_state_dict() call save() of the state first"
                )
        self._committed += 1
        self.save()
        # A rank that gets through this exchange knows that all others have saved the step.
        self._under_way = False
        changes = self._exchange()
        for _, handler in self._reforming():
            handler.finish_commit(whole=changes)
        self._under_way = True
        if (agent := own_agent()) is not None:
            CARRIED.committed = self._committed
            agent.committed(self._committed)
        if changes:
            self._host_messages = 0
            raise HostsUpdatedInterrupt

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt, on all ranks, where the world is to change; what the values are now is
        committed then. Collective."""
        self._refuse_amid_updates("check_host_updates")
        if self._exchange():
            self._host_messages = 0
            self._refuse_to_begin_anew()
            for _, handler in self._reforming():
                handler.wait()
            self._committed += 1
            CARRIED.committed = self._committed
            self.save()
            for _, handler in self._reforming():
                handler.finish_commit(whole=True)
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Copy all values."""
        for handler in self._handlers.values():
            handler.save()
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        """Make all values what they were at the last commit."""
        for _, handler in self._reforming():
            handler.restore()
        self._restore_plain()

    def sync(self) -> None:
        """Give all ranks the values of the last committed step. Collective, once in each world, on every rank.

        Survivors agree on the last step that each of them has committed. The lowest rank that is at it gives its
        values to newcomers and to ranks that are a step ahead; host optimizers rebuild what lost ranks had.
        Raises MismatchError where ranks have made their states of different values.
        """
        for adapter in ADAPTERS:
            adapter.meet()
        world = current()
        self._under_way = was_adopted = False
        if CARRIED.prepared is not None:
            was_adopted = CARRIED.prepared.formation == world.former.formation
            for _, handler in self._reforming():
                handler.settle(was_adopted)
            CARRIED.adopted, CARRIED.prepared = (CARRIED.prepared if was_adopted else CARRIED.adopted), None
        if self._own is not None and not was_adopted:
            # Who was to give it all was lost: their values without their optimizer would be nobody's state.
            self._put_back(self._own)
        self._own = self._kept() if self._is_joining(world) else None
        agreed = agree_on_common_step(world, self._said())
        goes_on = bool(world.former.survivors) and agreed.committed > 0
        self._begins_anew = 0 if goes_on else world.config.numbers.committed
        if goes_on and agreed.committed < world.config.numbers.committed:
            log.warning("commit %d is lost; training goes on from commit %d", world.config.numbers.committed, agreed.committed)
        self._transfer(agreed)
        # All that can't be undone, at once: where a rank is lost before, the values are those of the last commit,
        # and where one is lost afterwards, they are those of the agreed step.
        for name, handler in self._reforming():
            handler.go_back(world, agreed.updates.get(name, 0))
        self._committed = CARRIED.committed = agreed.committed
        self.save()
        prepared = [handler for _, handler in self._reforming() if handler.prepare(world)]
        place = FormationPlace(world.config.numbers.formation, world.config.place.rank)
        if world.config.numbers.formation:
            CARRIED.prepared = place
        world.group().call(lambda ring: ring.barrier(WireSignature("elastic sync")))
        for handler in prepared:
            handler.adopt()
        if world.config.numbers.formation:
            CARRIED.adopted, CARRIED.prepared = place, None
        self._own = None
        for _, handler in self._reforming():
            handler.finish_commit()
        world.state_is_synced = self._under_way = True

    def hand_over(self) -> bool:
        """Have ranks that stay hold what those that leave hold alone; whether they have it. Collective, when all
        leave their world at the same commit."""
        agent, group = own_agent(), current().group()
        heard = None if agent is None or agent.leaving is None else sorted(agent.leaving)
        said = [set(one) for one in group.allgather_object(heard, "elastic leavers") if one is not None]
        if not said:
            return False
        leaving = set.intersection(*said)  # who was told to leave may be told to stay, never the other way
        if len(leaving) == group.size:
            return False
        if leaving:
            for _, handler in self._reforming():
                handler.hand_over(leaving)
            group.call(lambda ring: ring.barrier(WireSignature("elastic hand-over")))
        return True

    def begin_from(self, what: str) -> None:
        """Say that this training goes on from `what`, a checkpoint that was read by other means than
        `ringtrain.checkpoint`, whose `latest()` says so itself. On any rank, before the first commit."""
        CARRIED.restored = what or "a checkpoint"

    def reset(self) -> None:
        """Called after each change of the world, before the callbacks; for classes derived from this one."""

    def on_reset(self) -> None:
        """The world has changed: `reset`, then the registered callbacks."""
        self._host_messages = 0
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Have the next commit raise HostsUpdatedInterrupt on all ranks, as it does at the agent's word."""
        self._host_messages += 1

    def steps_under_way(self) -> int:
        """How many steps are lost with what is not committed: 1 unless a shard or host optimizer knows better."""
        if not self._under_way:
            return 0
        ahead = [handler.updates_ahead for _, handler in self._reforming()]
        shards = [one for one in self._handlers.values() if isinstance(one, ShardHandler)]
        return max([*ahead, *(one.steps_ahead for one in shards)], default=1)

    def _is_joining(self, world: ProcessGroupContext) -> bool:
        """Whether this rank takes its values from others, and its optimizers' state after them."""
        is_new = bool(world.former.survivors) and world.former.ranks[world.config.place.rank] is None
        return is_new and bool(self._reforming())

    def _kept(self) -> _OwnElasticState:
        kept = {
            name: copy.deepcopy({key: value for key, value in vars(handler).items() if key != "value"})
            for name, handler in self._plain()
        }
        return _OwnElasticState(self._committed, self._saved, kept)

    def _put_back(self, own: _OwnElasticState) -> None:
        self._committed = CARRIED.committed = own.committed
        self._saved = own.values
        for name, handler in self._plain():
            vars(handler).update(own.handlers[name])
            handler.restore()
            self._show(name, handler)
        self._set_values(self._saved)

    def _restore_plain(self) -> None:
        for name, handler in self._plain():
            handler.restore()
            self._show(name, handler)
        self._set_values(self._saved)

    def _transfer(self, agreed: ElasticCommonStep) -> None:
        for name, handler in self._plain():
            if agreed.transfers:
                sync_handler(handler, agreed.donor)
                self._show(name, handler)
            elif hasattr(handler, "refresh"):
                handler.refresh()
        if agreed.transfers and self._saved:
            values = {name: getattr(self, name) for name in self._saved}
            self._set_values(broadcast(values, agreed.donor, "values", self._known()))

    def _plain_or_handler(self, name: str, value: Any) -> Any:
        """None for plain data, else a handler. Raises ConfigurationError where there is none."""
        try:
            check_sendable(value, repr(name), self._known())
        except ConfigurationError:
            found = next(filter(None, (adapter.handler(value) for adapter in ADAPTERS)), None)
            if found is None:
                raise
            return found
        return None

    def _known(self) -> ForeignWireValues | None:
        return self._foreign or next((adapter.values for adapter in ADAPTERS), None)

    def _show(self, name: str, handler: Any) -> None:
        """Have the attribute be the handler's value, which may be another object than before."""
        if name in vars(self):
            super().__setattr__(name, handler.value)

    def _set_values(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            super().__setattr__(name, copy.deepcopy(value))

    def _plain(self) -> list[tuple[str, Any]]:
        return [(name, one) for name, one in self._handlers.items() if not isinstance(one, ElasticOptimizerHandler)]

    def _reforming(self) -> list[tuple[str, ElasticOptimizerHandler]]:
        return [(name, one) for name, one in self._handlers.items() if isinstance(one, ElasticOptimizerHandler)]

    def _refuse_amid_updates(self, what: str) -> None:
        for name, handler in self._reforming():
            if handler.is_accumulating:
                raise ConfigurationError(
                    f"State.{what}: {name!r} has gradients of an update that is not made, which would be lost "
                    f"with a rank, or as the world changes; call {what}() after the step() that returns True: "
                    "after as many backward passes as set_backward_passes_per_step() or `accumulate` told the "
                    "optimizer"
                )

    def _refuse_to_begin_anew(self) -> None:
        """Raise NotRestored on all ranks where committed steps are lost and nobody has read a checkpoint."""
        if not self._begins_anew:
            return
        read = current().group().allgather_object(CARRIED.restored, "elastic checkpoint")
        if not any(read):
            raise NotRestored(
                (),
                f"no rank is left that has the state of commit {self._begins_anew}, and this training began "
                "without a checkpoint; read one with ringtrain.checkpoint before the first commit, or tell "
                "state.begin_from() which one it goes on from",
            )
        log.warning("commit %d is lost; training goes on from %s", self._begins_anew, max(read))
        self._begins_anew = 0

    def _said(self) -> ElasticStateSummary:
        kinds = {name: _state_kind_of(handler.value) for name, handler in self._handlers.items()}
        updates = {name: handler.committed_updates for name, handler in self._reforming()}
        kinds |= dict.fromkeys(self._saved, "value")
        return ElasticStateSummary(self._committed, updates, kinds)

    def _exchange(self) -> bool:
        """Tell all ranks of changes that this one has heard of; whether any has. Compares the commits."""
        agent = own_agent()
        heard = bool(self._host_messages) or (agent is not None and agent.change_pending)
        numbers = np.array([heard, self._committed, -self._committed], np.int64)
        current().group().call(lambda ring: ring.all_reduce(_COMMIT, numbers, numbers, Max))
        if numbers[1] != -numbers[2]:
            raise MismatchError(
                f"State.commit: rank {current().config.place.rank} is at commit {self._committed}, and ranks are at "
                f"{-numbers[2]} to {numbers[1]}; every rank must commit the same steps"
            )
        return bool(numbers[0])


class ObjectState(State):
    """A state of plain values, with Horovod's arguments.

    `bcast_object`, `get_rank`: accepted for Horovod's sake and not used: the world knows its ranks.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


def _state_kind_of(value: Any) -> str:
    """What ranks have alike of a value before any of it was sent."""
    return value.cut if isinstance(value, ElasticShard) else type(value).__name__


def _state_handler_of(value: Any, registry: Registry) -> Any:
    for kind, make in registry:
        fits = is_stateful(value) if kind is StatefulObject else isinstance(value, kind)
        if fits and not isinstance(value, type):
            return make(value)
    return None
