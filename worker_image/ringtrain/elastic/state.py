"""Elastic state: values that are committed with a step, restored after a loss, and sent to joining ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.formations import CARRIED, FormationPlace, own_agent
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.reduction.ops import Max
from ringtrain._core.wire.signature import WireSignature, WireTensorSignature
from ringtrain._core.wire.values import ForeignWireValues
from ringtrain.elastic.agreement import ElasticCommonStep, ElasticStateSummary, agree_on_common_step
from ringtrain.elastic.composition import make_participants
from ringtrain.elastic.handlers import HandlerPairs
from ringtrain.elastic.participants import Participant, extensions
from ringtrain.errors import ConfigurationError, MismatchError, NotRestored, counted

log = logging.getLogger("ringtrain")

_COMMIT = WireSignature("commit", (WireTensorSignature(None, "int64", (3,)),))


class State:
    """Values, as attributes of this object, that are equal on all ranks at each committed step.

        state = elastic.State(optimizer=optimizer, shard=shard, epoch=0)

    Numbers, texts, containers and arrays are copied. Of objects with `state_dict()` and `load_state_dict()` the state
    is copied. A host optimizer's state is not copied and stays sharded over the ranks; it needs a commit after every
    update. Raises ConfigurationError for other values. `ringtrain.elastic.participants` is the interface for other
    types.

    Collective: `commit`, `check_host_updates` and `sync`. A step is committed by all ranks or by none: after a loss all
    survivors have the values of the last step that all of them had committed.
    """

    _foreign: ForeignWireValues | None = None  # a framework's additions to plain values

    def __init__(self, *, handlers: HandlerPairs = (), **values: Any) -> None:
        """Construct the state from `values`, which become attributes.

        `handlers`: pairs of a type and its handler, which take precedence over the known ones.
        """
        self._participants: dict[str, Participant] = {}
        self._committed = 0
        self._own_committed: int | None = None  # set while this rank joins others, until it has their whole state
        self._host_messages = 0
        self._under_way = False  # whether a step may have begun
        self._lost_commit = 0  # last committed step if all ranks that had the state were lost
        self._reset_callbacks: list[Callable[[], Any]] = []
        for name in values:
            if hasattr(type(self), name) or name.startswith("_"):
                raise ConfigurationError(f"State: {name!r} is an attribute of State; choose another name")
        vars(self).update(values)
        self._participants = make_participants(vars(self), values, handlers, self._foreign)

    def __setattr__(self, name: str, value: Any) -> None:
        participant = vars(self).get("_participants", {}).get(name)
        if participant is not None and participant.value is not value:
            participant.set_value(value)
        super().__setattr__(name, value)

    @property
    def committed(self) -> int:
        """Return how often these values were committed, by any ranks."""
        return self._committed

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Register callbacks that run after each change of the world, in order, before `sync`.

        One may scale a learning rate with `size()`, for example.
        """
        self._reset_callbacks.extend(callbacks)

    def commit(self) -> None:
        """Commit the step, so that the current values are restored after a later loss. Collective.

        Raises HostsUpdatedInterrupt, on all ranks, if the world is about to change; MismatchError if ranks have
        committed different numbers of steps.
        """
        self._check("commit")
        self._refuse_silent_restart()
        for name, participant in self._participants.items():
            participant.wait()
            ahead, undoable = participant.steps_ahead, participant.undoable
            if ahead is not None and undoable is not None and ahead > undoable:
                raise ConfigurationError(
                    f"State.commit: {name!r} has made {counted(ahead, 'update')} since the last commit; call commit() "
                    "after every update: a host optimizer can undo only one. After load_state_dict() call save() of "
                    "the state first"
                )
        self._committed += 1
        self.save()
        # A rank that completes this exchange knows that all others have saved the step.
        self._under_way = False
        is_planned = self._exchange()
        self._finish_commit(is_planned)
        self._under_way = True
        if (agent := own_agent()) is not None:
            CARRIED.committed = self._committed
            agent.committed(self._committed)
        if is_planned:
            self._host_messages = 0
            raise HostsUpdatedInterrupt

    def check_host_updates(self) -> None:
        """If the world is about to change, commit the current values and raise HostsUpdatedInterrupt on all ranks.
        Collective."""
        self._check("check_host_updates")
        if not self._exchange():
            return
        self._host_messages = 0
        self._refuse_silent_restart()
        for participant in self._participants.values():
            participant.wait()
        self._committed += 1
        CARRIED.committed = self._committed
        self.save()
        self._finish_commit(is_planned=True)
        raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Copy all values."""
        for participant in self._participants.values():
            participant.commit()

    def restore(self) -> None:
        """Set all values to those of the last commit."""
        for participant in self._participants.values():
            participant.restore()
        self._update_attributes()

    def sync(self) -> None:
        """Set the values on all ranks to those of the last committed step. Collective, once in each world.

        1. Agree: ranks exchange their commits. All continue from the smallest commit that a survivor has.
        2. Send: the lowest rank with that commit sends its values to newcomers and to ranks that are a step ahead.
          After a loss in steps 1 and 2 each rank restores its own last commit.
        3. Restore: ranks undo later updates, and save the step. After a later loss they have that step.
        4. Adopt: each rank builds its part of the sharded state, and uses it when all have theirs. If a rank is lost
          before that, the next world finds out whether any rank has adopted its part. If so, all adopt
          theirs, otherwise none does.
        5. Commit: ranks do their common work after a commit, because a lost rank may have prevented it.

        Raises MismatchError if ranks have constructed different states, PeerLost if a rank is lost.
        """
        for extension in extensions():
            extension.before_sync()
        world, self._under_way = current(), False
        self._settle(world)
        is_undone = self._receives_sharded_state(world)
        self._own_committed = self._committed if is_undone else None
        agreed = agree_on_common_step(world, self._summary())
        self._record_lost_commits(world, agreed)
        for name, participant in self._participants.items():
            participant.plan(agreed.offers[name])
        for participant in self._participants.values():
            participant.receive(agreed, is_undone)
        self._update_attributes()
        for participant in self._participants.values():
            participant.go_back(world)
        self._committed = CARRIED.committed = agreed.committed
        self.save()
        self._adopt(world)
        self._finish_commit(is_planned=False)
        world.state_is_synced = self._under_way = True

    def hand_over(self) -> bool:
        """Send state that only the leaving ranks have to ranks that stay. Return whether these have received it.

        Collective, when all ranks leave their world at the same commit.
        """
        agent, group = own_agent(), current().group()
        known = None if agent is None or agent.leaving is None else sorted(agent.leaving)
        everyone = [set(one) for one in group.allgather_object(known, "elastic leavers") if one is not None]
        if not everyone:
            return False
        leaving = set.intersection(*everyone)  # a rank that is to leave may be ordered to stay, never the other way
        if len(leaving) == group.size:
            return False
        if leaving:
            for participant in self._participants.values():
                participant.hand_over(leaving)
            group.call(lambda ring: ring.barrier(WireSignature("elastic hand-over")))
        return True

    def begin_from(self, what: str) -> None:
        """Declare that training continues from the checkpoint `what`, if `latest()` of `ringtrain.checkpoint` did not
        read it.

        Call it on any rank, before the first commit.
        """
        CARRIED.restored = what or "a checkpoint"

    def reset(self) -> None:
        """Do nothing. Derived classes override it; called after each change of the world, before the callbacks."""

    def on_reset(self) -> None:
        """Call `reset`, then the registered callbacks, after a change of the world."""
        self._host_messages = 0
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Make the next commit raise HostsUpdatedInterrupt on all ranks, as if the agent had announced a change."""
        self._host_messages += 1

    def steps_under_way(self) -> int:
        """Return the number of uncommitted steps. Without a shard or optimizer that counts steps, at most 1."""
        if not self._under_way:
            return 0
        counts = [participant.steps_ahead for participant in self._participants.values()]
        return max([count for count in counts if count is not None], default=1)

    def _receives_sharded_state(self, world: ProcessGroupContext) -> bool:
        """Return whether this rank is new and gets its sharded state after the other values."""
        is_new = bool(world.former.survivors) and world.former.ranks[world.config.place.rank] is None
        return is_new and any(participant.undoable is not None for participant in self._participants.values())

    def _settle(self, world: ProcessGroupContext) -> None:
        """Adopt the state prepared in a world that broke, if any rank has adopted it; otherwise discard it."""
        prepared, CARRIED.prepared = CARRIED.prepared, None
        if prepared is not None and prepared.formation == world.former.formation:
            CARRIED.adopted = prepared
            for participant in self._participants.values():
                participant.adopt()
            return
        # Values of other ranks without their optimizer's state would be inconsistent.
        for participant in self._participants.values():
            participant.discard()
        if self._own_committed is not None:
            self._committed = CARRIED.committed = self._own_committed
            self._update_attributes()

    def _adopt(self, world: ProcessGroupContext) -> None:
        """Switch to the state of this world after all ranks have prepared theirs. Collective."""
        for participant in self._participants.values():
            participant.prepare(world)
        place = FormationPlace(world.config.numbers.formation, world.config.place.rank)
        if world.config.numbers.formation:
            CARRIED.prepared = place
        world.group().call(lambda ring: ring.barrier(WireSignature("elastic sync")))
        for participant in self._participants.values():
            participant.adopt()
        if world.config.numbers.formation:
            CARRIED.adopted, CARRIED.prepared = place, None
        self._own_committed = None

    def _finish_commit(self, is_planned: bool) -> None:
        for participant in self._participants.values():
            participant.finish_commit(is_planned)

    def _check(self, call: str) -> None:
        for name, participant in self._participants.items():
            participant.check(name, call)

    def _update_attributes(self) -> None:
        """Set the attributes to the values of the participants, which may be new objects."""
        shown = vars(self)
        shown.update({name: one.value for name, one in self._participants.items() if name in shown})

    def _summary(self) -> ElasticStateSummary:
        kinds: dict[str, str] = {}
        for name, participant in self._participants.items():
            kinds |= participant.kinds(name)
        offers = {name: participant.offer() for name, participant in self._participants.items()}
        return ElasticStateSummary(self._committed, kinds, offers)

    def _record_lost_commits(self, world: ProcessGroupContext, agreed: ElasticCommonStep) -> None:
        goes_on = bool(world.former.survivors) and agreed.committed > 0
        self._lost_commit = 0 if goes_on else world.config.numbers.committed
        if goes_on and agreed.committed < world.config.numbers.committed:
            log.warning(
                "commit %d is lost; training continues from commit %d", world.config.numbers.committed, agreed.committed
            )

    def _refuse_silent_restart(self) -> None:
        """Raise NotRestored on all ranks if committed steps are lost and no rank has read a checkpoint."""
        if not self._lost_commit:
            return
        read = current().group().allgather_object(CARRIED.restored, "elastic checkpoint")
        if not any(read):
            raise NotRestored(
                (),
                f"no remaining rank has the state of commit {self._lost_commit}, and this training "
                "started without a checkpoint; read a checkpoint with ringtrain.checkpoint before "
                "the first commit, or name one by state.begin_from()",
            )
        log.warning("commit %d is lost; training continues from %s", self._lost_commit, max(read))
        self._lost_commit = 0

    def _exchange(self) -> bool:
        """Compare the number of commits of all ranks; return whether any rank expects a planned change of the world.
        Collective."""
        agent = own_agent()
        is_planned = bool(self._host_messages) or (agent is not None and agent.change_pending)
        numbers = np.array([is_planned, self._committed, -self._committed], np.int64)
        current().group().call(lambda ring: ring.all_reduce(_COMMIT, numbers, numbers, Max))
        if numbers[1] != -numbers[2]:
            raise MismatchError(
                f"State.commit: rank {current().config.place.rank} is at commit {self._committed}, other ranks at "
                f"{-numbers[2]} to {numbers[1]}; every rank must commit the same steps"
            )
        return bool(numbers[0])


class ObjectState(State):
    """State of plain values, with Horovod's arguments.

    `bcast_object` and `get_rank` are ignored; Horovod has them.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class HostsUpdatedInterrupt(RuntimeError):
    """The world is about to change. The state is committed, so nothing is lost; `elastic.run` handles this exception.

    Raised by `State.commit` and `State.check_host_updates`, on all ranks at the same step, if workers join or leave.
    `skip_sync`: Horovod's flag, here always False: every member of a new world takes part in its first exchange.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the world is about to change; elastic.run continues in the next one")
        self.skip_sync = skip_sync
