"""What an elastic DiLoCo keeps from commit to commit, goes back to, and takes into the next world."""

from __future__ import annotations

import copy
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

import ringtrain as rt
from ringtrain.adapter import Array, CollectiveGroup, HostOptimizerGroups
from ringtrain.adapter.devices import ProcessGroupContext
from ringtrain.adapter.state import StatefulObject
from ringtrain.shared.contract import ENV_TIMEOUT
from ringtrain_diloco.fragments import DiLoCoFragment, DiLoCoSchedule, FragmentExchange
from ringtrain_diloco.participant import DiLoCoParticipant
from ringtrain_diloco.sites import check_elastic_sites

log = logging.getLogger("ringtrain")


@runtime_checkable
class DiLoCoLocalWeights(Protocol):
    """This rank's own weights, which its inner optimizer changes: in host memory, or on a device."""

    def read(self, names: Sequence[str]) -> Sequence[Array]:
        """Return the weights `names` as arrays of the host, to be read before the next inner step."""

    def write(self, name: str, values: Array) -> None:
        """Set the weight `name`, in place."""


@dataclass(frozen=True)
class _DiLoCoCommit:
    """State of a rank at commit `number`, before its synchronization: by fragment the outer steps, the inner step
    of the synchronization before and the samples since; inner steps; its weights, and whether its own inner steps
    made them. `inner`: the inner optimizer's state, if it is known."""

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
        """`DiLoCo.updates` then."""
        return self.number + sum(self.updates)


class DiLoCoRecovery(ABC):
    """The part of a `DiLoCo` that `ringtrain.elastic.State` asks, with `elastic`."""

    _inner: StatefulObject | None
    _takes_sites_of_world: bool
    _fragments: list[DiLoCoFragment]
    _local: DiLoCoLocalWeights
    _schedule: DiLoCoSchedule
    _groups: HostOptimizerGroups
    _group: CollectiveGroup
    _exchange: FragmentExchange | None
    _steps: int
    _next_group: CollectiveGroup

    def __init__(self) -> None:
        self._own = True  # whether the local weights are what this rank's inner steps have made
        self._known = True  # whether this rank knows where the others are
        # Of two commits: a rank may have come through the synchronization that another one has to repeat.
        self._last_commits: deque[_DiLoCoCommit] = deque(maxlen=2)
        self._commits = self._reached = 0  # reached: inner steps before a rollback
        self._committed_steps = 0  # inner steps at the last commit
        self._prepared: tuple[int, int, list[int]] = 0, 0, []
        self._committed_at = time.monotonic()
        self._restored: tuple[_DiLoCoCommit, Sequence[int]] | None = None
        self._synchronized: list[int] = []  # updates by fragment after the last commit's synchronization

    @property
    def updates(self) -> int:
        """Commits and outer steps of all fragments so far, without one that is under way: no two moments at which
        a state may begin again have the same number."""
        return self._commits + sum(fragment.updates for fragment in self._fragments)

    def as_participant(self) -> DiLoCoParticipant:
        """Return this as a part of an elastic state."""
        return DiLoCoParticipant(self)

    @property
    def undoable(self) -> int:
        """How many of the last outer steps can be undone: one of each fragment."""
        return len(self._fragments)

    @property
    def accumulating(self) -> bool:
        """Whether a commit has to wait: never, it may come after any inner step."""
        return False

    def wait_for(self) -> None:
        """Take the outer weights of an exchange that is under way. On all ranks after the same inner step."""
        if self._exchange is not None:
            self._land()

    def commit(self) -> None:
        """Keep this rank's own weights as they are, before they are synchronized: `rollback` goes back to them.

        Once more after the same inner step it is the same commit: how often a rank did it before a world failed
        must not decide to which one it can go back.
        """
        self._commits += self._steps != self._committed_steps
        self._committed_steps = self._steps
        for fragment in self._fragments:
            fragment.host.commit()
        if self._restored is not None and self._restored[0].steps == self._steps:
            return  # until `adopt` outer weights may not be whole: what a rollback went back to stays as it is
        self._restored = None
        names = [name for fragment in self._fragments for name in fragment.names]
        weights = {name: np.array(array) for name, array in zip(names, self._local.read(names), strict=True)}
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
        """Go back to the moment when `updates` was `to`: to a commit, or to the end of its synchronization. Local.
        Return `to`."""
        self.drain()
        self._exchange = None
        self._reached = max(self._reached, self._steps)
        done = self.updates if to is None else to
        kept = next((kept for kept in reversed(self._last_commits) if kept.at <= done), None)
        self._known, self._own = kept is not None, False
        updates = [fragment.updates for fragment in self._fragments]
        if kept is not None:
            is_done = kept.at < done
            updates, self._own = (self._synchronized if is_done else kept.updates), kept.own or is_done
            self._commits, self._committed_steps = kept.number, kept.steps
            while self._last_commits[-1] is not kept:
                self._last_commits.pop()
        for fragment, wanted in zip(self._fragments, updates, strict=True):
            fragment.updates = fragment.host.rollback(wanted)
        self._restored = None if kept is None else (kept, updates)
        if self._restored is not None:
            self._restore(*self._restored)
        return done

    def _restore(self, kept: _DiLoCoCommit, updates: Sequence[int]) -> None:
        """Set local weights to those after `updates`: those of a commit, or what its synchronization made of them.
        Load the inner optimizer's state of that commit, too: this rank may have made inner steps since."""
        self._steps = kept.steps
        if self._inner is not None:
            self._inner.load_state_dict(copy.deepcopy(kept.inner))  # torch takes tensors as they are
        for index, fragment in enumerate(self._fragments):
            for name in fragment.names:
                self._local.write(name, kept.weights[name])
            fragment.sent, fragment.samples = kept.sent[index], kept.samples[index]
            if updates[index] > kept.updates[index]:
                fragment.sent, fragment.samples = kept.steps, 0
                self._mix(fragment)

    def _leave_in_time(self, world: ProcessGroupContext) -> None:
        """Raise PeerLost where a member was lost and the next commit, which notices that, is so far away that this
        rank's agent would end the process first."""
        per_step_s = (time.monotonic() - self._committed_at) / max(1, self._steps - self._last_commits[-1].steps)
        left = self._schedule.steps_left(self._steps)
        if (left_s := left * per_step_s) > world.config.waits.timeout_s / 2:
            log.warning(
                "a rank was lost, and the next commit is %d inner steps or %.0f s away (sync_every=%d), where %s "
                "is %g s: going back to the last commit",
                left,
                left_s,
                self._schedule.sync_every,
                ENV_TIMEOUT,
                world.config.waits.timeout_s,
            )
            rt.barrier()

    def hand_over(self, leaving: Collection[int]) -> None:
        """As `HostOptimizer.hand_over`."""
        for fragment in self._fragments:
            fragment.host.hand_over(leaving)

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Bring the outer optimizer into the world of now, in a group of its own. Collective."""
        if self._takes_sites_of_world:
            check_elastic_sites()
        opened = self._next_group = self._groups.open()
        for fragment in self._fragments:
            fragment.host.prepare(opened, former)
        if former[opened.rank] is None:
            first = min(fragment.sent for fragment in self._fragments) + 1
            if self._known and first <= self._reached:
                log.warning(
                    "the others went on without this rank: its inner steps %d to %d are given up, and it takes "
                    "their outer weights",
                    first,
                    self._reached,
                )
            self._own = self._known = False
        self._prepared = self._steps_of_others(opened)

    def _steps_of_others(self, group: CollectiveGroup) -> tuple[int, int, list[int]]:
        """Return commits, inner steps, and the step of each fragment's last synchronization, of the first rank that
        knows them. Collective."""
        own = [self._known, self._commits, self._steps, [fragment.sent for fragment in self._fragments]]
        told = group.allgather_object(own, "DiLoCo's steps")
        _, commits, steps, sent = next((one for one in told if one[0]), told[0])
        return commits, steps, sent

    def adopt(self) -> None:
        """Go on with what `prepare` brought. Local."""
        self._groups.adopt()
        self._group = self._next_group
        for fragment in self._fragments:
            fragment.host.adopt()
        if self._known and self._restored is not None:
            self._restore(*self._restored)  # outer weights are whole now
        else:
            self._take_outer()
            for fragment in self._fragments:
                fragment.samples = 0
        self._restored = None
        commits, steps, sent = self._prepared
        self._commits, self._steps, self._committed_steps = commits, steps, steps
        for fragment, step in zip(self._fragments, sent, strict=True):
            fragment.sent, fragment.updates = step, fragment.host.updates
        self._synchronized = [fragment.updates for fragment in self._fragments]
        if self._group.rank == 0 and min(sent) < self._steps:
            log.warning("inner steps %d to %d count without those of ranks that were lost", min(sent) + 1, self._steps)

    def discard(self) -> None:
        """Forget what `prepare` brought. Local."""
        for fragment in self._fragments:
            fragment.host.discard()

    def finish_commit(self, whole: bool = False) -> None:
        """Average what inner steps have changed since the last time, of the ranks that know their own: of the
        fragment that is due; of all where none is, or with `whole`, as before a planned change. Collective, after
        a commit on all ranks, and again in the next world where that failed."""
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
        """Return when an exchange that is under way has ended, however it ended."""

    @abstractmethod
    def _begin(self, fragment: DiLoCoFragment, overlaps: bool) -> None:
        """Take the pseudo-gradient of `fragment` as it is now, and begin its outer step."""

    @abstractmethod
    def _land(self) -> None:
        """Wait for the exchange that is under way, and take its outer weights."""

    @abstractmethod
    def _mix(self, fragment: DiLoCoFragment) -> None:
        """Take the outer weights of a fragment, and keep the part `mix` of what this rank has."""

    @abstractmethod
    def _take_outer(self, *fragments: DiLoCoFragment) -> None:
        """Have the outer weights of these fragments, or of all, as local ones."""
