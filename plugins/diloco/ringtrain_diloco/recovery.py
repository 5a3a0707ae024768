"""Elastic DiLoCo: commit, roll back to a commit, and reshard for the next world."""

from __future__ import annotations

import copy
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ringtrain as rt
from ringtrain.adapter import Array, CollectiveGroup, HostOptimizerGroups
from ringtrain.adapter.devices import ProcessGroupContext
from ringtrain.adapter.state import ElasticOptimizer, OptimizerParticipant, StatefulObject
from ringtrain.shared.contract import ENV_TIMEOUT
from ringtrain_diloco.fragments import DiLoCoFragment, DiLoCoSchedule, FragmentExchange
from ringtrain_diloco.sites import check_elastic_sites
from ringtrain_diloco.weights import OuterWeights

log = logging.getLogger("ringtrain")


@dataclass(frozen=True)
class _DiLoCoCommit:
    """Copy of a rank's state at commit `number`, before the synchronization that follows the commit.

    `updates`: number of outer steps of each fragment. `sent`: inner step at which each fragment was last synchronized.
    `samples`: number of samples since this synchronization. `own`: whether inner steps of this rank made `weights`.
    `inner`: the inner optimizer's state, or None.
    """

    number: int
    updates: list[int]
    sent: list[int]
    steps: int
    samples: list[float]
    weights: dict[str, Array]
    own: bool
    inner: Any

    @property
    def at(self) -> int:
        """Value of `DiLoCo.updates` at this commit."""
        return self.number + sum(self.updates)


class DiLoCoRecovery(ABC):
    """Part of `DiLoCo` with the methods that `ringtrain.elastic.State` calls if `elastic=True`."""

    _inner: StatefulObject | None
    _takes_sites_of_world: bool
    _fragments: list[DiLoCoFragment]
    _weights: OuterWeights
    _schedule: DiLoCoSchedule
    _groups: HostOptimizerGroups
    _group: CollectiveGroup
    _exchange: FragmentExchange | None
    _steps: int
    _next_group: CollectiveGroup

    def __init__(self) -> None:
        self._own = True  # whether inner steps of this rank made the local weights
        self._known = True  # whether this rank has the step numbers of the world
        # Two commits: this rank may have finished a synchronization that another one has to repeat.
        self._last_commits: deque[_DiLoCoCommit] = deque(maxlen=2)
        self._commits = self._reached = 0  # reached: number of inner steps before a rollback
        self._committed_steps = 0  # inner steps at the last commit
        self._prepared: tuple[int, int, list[int]] = 0, 0, []
        self._committed_at = time.monotonic()
        self._restored: tuple[_DiLoCoCommit, Sequence[int]] | None = None
        self._synchronized: list[int] = []  # outer steps of each fragment after the last commit's synchronization

    @property
    def updates(self) -> int:
        """Number of commits plus outer steps of all fragments. An exchange in progress does not count.

        The number is different at each point to which a state may go back.
        """
        return self._commits + sum(fragment.updates for fragment in self._fragments)

    def as_participant(self) -> DiLoCoParticipant:
        """Return an object through which `ringtrain.elastic.State` commits and rolls back this optimizer."""
        return DiLoCoParticipant(self)

    @property
    def undoable(self) -> int:
        """Number of outer steps that a rollback can undo: one of each fragment."""
        return len(self._fragments)

    @property
    def accumulating(self) -> bool:
        """Return False: a commit may follow any inner step."""
        return False

    def wait_for(self) -> None:
        """Wait for an exchange in progress and set the local weights from it. All ranks call it after the same step."""
        if self._exchange is not None:
            self._land()

    def commit(self) -> None:
        """Copy the weights of this rank before they are synchronized, so that `rollback` can restore them.

        A second call after the same inner step repeats the same commit: the number of calls before a world failed must
        not change the commit to which a rank can go back.
        """
        self._commits += self._steps != self._committed_steps
        self._committed_steps = self._steps
        for fragment in self._fragments:
            fragment.host.commit()
        if self._restored is not None and self._restored[0].steps == self._steps:
            return  # outer weights may be incomplete before `adopt`: leave the commit of the rollback unchanged
        self._restored = None
        weights = self._weights.copy_local()
        at = [(fragment.updates, fragment.sent, fragment.samples) for fragment in self._fragments]
        updates, sent, samples = (list(of) for of in zip(*at, strict=True))
        inner = None if self._inner is None else copy.deepcopy(self._inner.state_dict())
        if self._last_commits and self._last_commits[-1].number == self._commits:
            self._last_commits.pop()
        self._last_commits.append(
            _DiLoCoCommit(self._commits, updates, sent, self._steps, samples, weights, self._own, inner)
        )
        self._committed_at = time.monotonic()

    def rollback(self, to: int | None = None) -> int:
        """Go back to the state in which `updates` was `to`: at a commit, or after the synchronization that follows a
        commit. Not collective.

        Returns `to`; if it is None, the present value of `updates`.
        """
        self.drain()
        self._exchange = None
        self._reached = max(self._reached, self._steps)
        done = self.updates if to is None else to
        commit = next((commit for commit in reversed(self._last_commits) if commit.at <= done), None)
        self._known, self._own = commit is not None, False
        updates = [fragment.updates for fragment in self._fragments]
        if commit is not None:
            is_done = commit.at < done
            updates, self._own = (self._synchronized if is_done else commit.updates), commit.own or is_done
            self._commits, self._committed_steps = commit.number, commit.steps
            while self._last_commits[-1] is not commit:
                self._last_commits.pop()
        for fragment, wanted in zip(self._fragments, updates, strict=True):
            fragment.updates = fragment.host.rollback(wanted)
        self._restored = None if commit is None else (commit, updates)
        if self._restored is not None:
            self._restore(*self._restored)
        return done

    def _restore(self, commit: _DiLoCoCommit, updates: Sequence[int]) -> None:
        """Set the local weights and the inner optimizer's state to those of `commit`.

        `updates`: number of outer updates of each fragment. A fragment that has made more of them than at the commit
        was synchronized since; its local weights are mixed with the new outer weights.
        """
        self._steps = commit.steps
        if self._inner is not None:
            self._inner.load_state_dict(copy.deepcopy(commit.inner))  # torch does not copy tensors
        for index, fragment in enumerate(self._fragments):
            self._weights.write_local({name: commit.weights[name] for name in fragment.names})
            fragment.sent, fragment.samples = commit.sent[index], commit.samples[index]
            if updates[index] > commit.updates[index]:
                fragment.sent, fragment.samples = commit.steps, 0
                self._weights.mix_into_local(fragment)

    def _leave_in_time(self, world: ProcessGroupContext) -> None:
        """Raise PeerLost if a rank was lost and the agent would end this process before the next commit."""
        per_step_s = (time.monotonic() - self._committed_at) / max(1, self._steps - self._last_commits[-1].steps)
        left = self._schedule.steps_left(self._steps)
        if (left_s := left * per_step_s) > world.config.waits.timeout_s / 2:
            log.warning(
                "a rank was lost; the next commit is %d inner steps or %.0f s away (sync_every=%d), too long for %s=%g "
                "s: going back to the last commit",
                left,
                left_s,
                self._schedule.sync_every,
                ENV_TIMEOUT,
                world.config.waits.timeout_s,
            )
            rt.barrier()

    def hand_over(self, leaving: Collection[int]) -> None:
        """Send to ranks that stay the shards that only the ranks `leaving` have. Collective."""
        for fragment in self._fragments:
            fragment.host.hand_over(leaving)

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Reshard the outer optimizer for the ranks of `group`, in a new process group of these ranks. Collective."""
        if self._takes_sites_of_world:
            check_elastic_sites()
        opened = self._next_group = self._groups.open()
        for fragment in self._fragments:
            fragment.host.prepare(opened, former)
        if former[opened.rank] is None:
            first = min(fragment.sent for fragment in self._fragments) + 1
            if self._known and first <= self._reached:
                log.warning(
                    "this rank discards its inner steps %d to %d and uses the outer weights of the other "
                    "ranks, which continued without it",
                    first,
                    self._reached,
                )
            self._own = self._known = False
        self._prepared = self._steps_of_others(opened)

    def _steps_of_others(self, group: CollectiveGroup) -> tuple[int, int, list[int]]:
        """Return numbers of commits and inner steps, and the step of each fragment's last synchronization. Collective.

        The values of the first rank that has them are returned.
        """
        own = [self._known, self._commits, self._steps, [fragment.sent for fragment in self._fragments]]
        everyone = group.allgather_object(own, "DiLoCo's steps")
        _, commits, steps, sent = next((one for one in everyone if one[0]), everyone[0])
        return commits, steps, sent

    def adopt(self) -> None:
        """Switch to the state that `prepare` built. Not collective."""
        self._groups.adopt()
        self._group = self._next_group
        for fragment in self._fragments:
            fragment.host.adopt()
        if self._known and self._restored is not None:
            self._restore(*self._restored)  # outer weights are complete now
        else:
            self._weights.use(self._fragments)
            for fragment in self._fragments:
                fragment.samples = 0
        self._restored = None
        commits, steps, sent = self._prepared
        self._commits, self._steps, self._committed_steps = commits, steps, steps
        for fragment, step in zip(self._fragments, sent, strict=True):
            fragment.sent, fragment.updates = step, fragment.host.updates
        self._synchronized = [fragment.updates for fragment in self._fragments]
        if self._group.rank == 0 and min(sent) < self._steps:
            first = min(sent) + 1
            log.warning("the mean change of inner steps %d to %d does not include lost ranks", first, self._steps)

    def discard(self) -> None:
        """Discard the state that `prepare` built. Not collective."""
        for fragment in self._fragments:
            fragment.host.discard()

    def finish_commit(self, whole: bool = False) -> None:
        """Synchronize the fragment that is due, or all fragments if none is due or `whole` is True. Collective.

        Called after all ranks have committed. If this call fails because a rank was lost, it is repeated in the next
        world. The mean is over the ranks whose weights come from their own inner steps. `whole`: True before a planned
        change of the world.
        """
        index = self._schedule.due(self._steps)
        overlaps = self._schedule.overlap_steps > 0 and not whole and index is not None
        for fragment in self._fragments if whole or index is None else [self._fragments[index]]:
            if fragment.sent < self._steps:
                self._begin(fragment, overlaps)
                if not overlaps:
                    self._land()
        self._own, self._known, self._reached = True, True, 0
        self._synchronized = [fragment.updates for fragment in self._fragments]

    @abstractmethod
    def drain(self) -> None:
        """Wait until an exchange in progress has ended, with or without an error."""

    @abstractmethod
    def _begin(self, fragment: DiLoCoFragment, overlaps: bool) -> None:
        """Compute the pseudo-gradient of `fragment` and begin its outer step, in the background if `overlaps`."""

    @abstractmethod
    def _land(self) -> None:
        """Wait for the exchange in progress and set the local weights from its outer weights."""


class SynchronizingOptimizer(ElasticOptimizer, Protocol):
    """Interface of an optimizer whose ranks synchronize after all of them have committed a step."""

    @property
    def undoable(self) -> int: ...

    def finish_commit(self, whole: bool) -> None: ...


class DiLoCoParticipant(OptimizerParticipant):
    """Adapter for `ringtrain.elastic.State`: synchronizes after commits, can undo an outer step of each fragment."""

    value: SynchronizingOptimizer

    @property
    def undoable(self) -> int:
        return self.value.undoable

    def finish_commit(self, is_planned: bool) -> None:
        self.value.finish_commit(whole=is_planned)
        self._committed = int(self.value.updates)
