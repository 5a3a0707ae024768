"""What an elastic DiLoCo keeps from commit to commit, goes back to, and takes into the next world."""

from __future__ import annotations

import copy
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np

from ringtrain._core.process_groups.context import current_or_none
from ringtrain._core.process_groups.group import CollectiveGroup, Flat, ProcessGroup
from ringtrain._core.process_groups.process_sets import ProcessSet, process_set_of_world
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.wire.signature import WireSignature
from ringtrain.optim.fragments import DiLoCoFragment, DiLoCoSchedule, FragmentExchange
from ringtrain.optim.sites import DiLoCoSiteGroups, DiLoCoSites
from ringtrain.shared.contract import ENV_TIMEOUT

log = logging.getLogger("ringtrain")


@runtime_checkable
class DiLoCoLocalWeights(Protocol):
    """This rank's own weights, which its inner optimizer changes: in host memory, or on a device."""

    def read(self, names: Sequence[str]) -> Sequence[Flat]:
        """Return the weights `names` as arrays of the host, to be read before the next inner step."""

    def write(self, name: str, values: Flat) -> None:
        """Set the weight `name`, in place."""


@dataclass(frozen=True)
class _DiLoCoCommit:
    """What a rank had at commit `number`, before its synchronization: by fragment the outer steps, the inner step
    of the synchronization before and the samples since; inner steps; its weights, and whether its own inner steps
    made them. `inner`: with sites, the inner optimizer's state."""

    number: int
    updates: list[int]
    sent: list[int]
    steps: int
    samples: list[float]
    weights: dict[str, Flat]
    own: bool
    inner: Any

    @property
    def at(self) -> int:
        """`DiLoCo.updates` then."""
        return self.number + sum(self.updates)


class StatefulObject(Protocol):
    """What tells its state and takes it back, as an inner optimizer does, which ranks of one site have alike."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


def is_stateful(value: object) -> TypeGuard[StatefulObject]:
    """Whether `value` has both methods, or passes them on by `__getattr__`, which `isinstance` sees in Python 3.11
    alone."""
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


@dataclass(frozen=True)
class _InterruptedInterval:
    """Where a rank was between two commits: after inner step `steps`; by fragment the inner step of the
    synchronization before, and the samples since; its weights, and the inner optimizer's state."""

    steps: int
    sent: list[int]
    samples: list[float]
    weights: dict[str, Flat]
    inner: Any


class DiLoCoRecovery(ABC):
    """The part of a `DiLoCo` that `ringtrain.elastic.State` asks, with `elastic`."""

    _sites: DiLoCoSiteGroups | None
    _inner: StatefulObject | None
    _follows_sites: bool
    _fragments: list[DiLoCoFragment]
    _local: DiLoCoLocalWeights
    _schedule: DiLoCoSchedule
    _opened: list[ProcessGroup]  # of this world, and of the one that is prepared
    _group: CollectiveGroup
    _exchange: FragmentExchange | None
    _steps: int

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
        self._next_sites: DiLoCoSiteGroups | None = None  # of the world that is prepared
        self._whole_sites: DiLoCoSiteGroups | None = None  # while a part of each site goes on
        self._site_changed: Callable[[ProcessSet], None] = lambda site: None
        # After which inner step a site can go on: the last one that was kept, and nothing was averaged since.
        self._step_kept: int | None = None
        self._last_kept = 0  # the inner step of the last `keep`
        self._interrupted: _InterruptedInterval | None = None
        self._is_behind = False  # whether others of its site have made a step that this rank has not

    @property
    def updates(self) -> int:
        """Commits and outer steps of all fragments so far, without one that is under way: no two moments at which
        a state may begin again have the same number."""
        return self._commits + sum(fragment.updates for fragment in self._fragments)

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
        inner = self._inner_state() if self._follows_sites else None
        if self._last_commits and self._last_commits[-1].number == self._commits:
            self._last_commits.pop()
        self._last_commits.append(
            _DiLoCoCommit(self._commits, updates, sent, self._steps, samples, weights, self._own, inner)
        )
        self._committed_at = time.monotonic()

    def rollback(self, to: int | None = None) -> int:
        """Go back to the moment when `updates` was `to`: to a commit, or to the end of its synchronization. Local.
        Return `to`."""
        if self._step_kept == self._steps:
            self._interrupted = self._now()
        self._step_kept = None
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
        """Have local weights as after `updates`: those of a commit, or what its synchronization made of them; and
        with sites the inner optimizer's state of that commit: some ranks may have made inner steps since, others
        none."""
        self._steps = kept.steps
        self._set_inner(kept.inner)
        for index, fragment in enumerate(self._fragments):
            for name in fragment.names:
                self._local.write(name, kept.weights[name])
            fragment.sent, fragment.samples = kept.sent[index], kept.samples[index]
            if updates[index] > kept.updates[index]:
                fragment.sent, fragment.samples = kept.steps, 0
                self._mix(fragment)

    def _leave_in_time(self, world: ProcessGroupContext) -> None:
        """Raise PeerLost where a member was lost and the next commit, which notices that, is so far away that this
        rank's agent would end the process first; not where `keep` follows each step, which raises it at once."""
        if self._follows_sites and self._last_kept == self._steps - 1:
            return
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
            world.group().call(lambda ring: ring.barrier(WireSignature("DiLoCo")))

    def hand_over(self, leaving: Collection[int]) -> None:
        """As `HostOptimizer.hand_over`."""
        for fragment in self._fragments:
            fragment.host.hand_over(leaving)

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Bring the outer optimizer into the world of now, in a group of its own. Collective."""
        opened = self._open_group()
        if self._follows_sites:
            self._next_sites = DiLoCoSiteGroups(DiLoCoSites.of_world())
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
        """Commits, inner steps, and by fragment that of the last synchronization, of a rank that knows them; where
        sites are at different commits, of one that is at the first. Collective."""
        own = [self._known, self._own, self._commits, self._steps, [fragment.sent for fragment in self._fragments]]
        told = group.allgather_object(own, "DiLoCo's steps")
        _, _, commits, steps, sent = min(told, key=lambda one: (not one[0], not one[1], one[2]))
        return commits, steps, sent

    def adopt(self) -> None:
        """Go on with what `prepare` brought. Local."""
        self._opened = self._opened[-1:]
        self._group = self._opened[0]
        self._sites, self._whole_sites = self._next_sites or self._sites, None
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
        if not (self._own and self._follows_sites):  # sites may be at different commits
            self._be_at(commits, steps, sent)
        sent = [fragment.sent for fragment in self._fragments]
        for fragment in self._fragments:
            fragment.updates = fragment.host.updates
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
        self._is_behind, self._interrupted = False, None
        self._synchronized = [fragment.updates for fragment in self._fragments]

    def _be_at(self, commits: int, steps: int, sent: Sequence[int]) -> None:
        """Be at a commit of others."""
        self._commits, self._committed_steps = commits, steps
        self._set_steps(steps, sent)

    def _set_steps(self, steps: int, sent: Sequence[int]) -> None:
        self._steps = steps
        for fragment, step in zip(self._fragments, sent, strict=True):
            fragment.sent = step

    # With sites, which may have several ranks: between commits those of a site have the same weights.

    @property
    def in_sites(self) -> DiLoCoRecovery | None:
        """This, where the worlds of an elastic job name their sites."""
        return self if self._follows_sites else None

    @property
    def site_group(self) -> ProcessGroup:
        """The ranks of this rank's site."""
        assert self._sites is not None
        return self._sites.near

    @property
    def knows_site(self) -> bool:
        """Whether the local weights are those of this rank's site."""
        return self._own

    @property
    def steps_interrupted(self) -> int:
        """After how many inner steps since the last commit this rank can go on; -1: from the commit alone."""
        return -1 if self._interrupted is None else self._interrupted.steps - self._steps

    @property
    def outer_steps(self) -> int:
        """Outer steps of all fragments whose weights have arrived."""
        return sum(fragment.updates for fragment in self._fragments)

    def watch_site(self, changed: Callable[[ProcessSet], None]) -> None:
        """Call `changed` with the ranks that gradients are averaged over, whenever those are others."""
        self._site_changed = changed

    def averaged(self) -> None:
        """Gradients were averaged, so weights may change: they are none to go on from until `keep`."""
        self._step_kept = None

    def keep(self) -> None:
        """Have the site go on from here where a rank is lost. Raises PeerLost where one was."""
        self._step_kept = None if self._exchange is not None else self._steps
        self._interrupted = None  # of an earlier step than the values that are kept with this one
        self._last_kept = self._steps
        if self._follows_sites and (world := current_or_none()) is not None and world.is_lost:
            world.group().call(lambda ring: ring.barrier(WireSignature("DiLoCo")))

    def forget_site(self) -> None:
        """Others of this rank's site have made a step that it has not: it takes their state."""
        self._is_behind, self._own, self._known, self._interrupted = True, False, False, None

    def part_sites(self, sites: Sequence[Sequence[int]]) -> ProcessGroup | None:
        """Average gradients over `sites` alone, ascending ranks, until `whole_sites`; the group of this rank's, if
        it is in one. Every rank calls it with the same."""
        assert self._sites is not None
        self._whole_sites, rank = self._sites, self._sites.sites.rank
        if not any(rank in ranks for ranks in sites):
            for ranks in sites:
                process_set_of_world(ranks)
            return None
        self._sites = DiLoCoSiteGroups(DiLoCoSites(tuple(map(tuple, sites)), rank, follows=True))
        self._site_changed(self._sites.site)
        return self._sites.near

    def whole_sites(self) -> None:
        """Average gradients over all ranks of this rank's site again, or for the first time in this world."""
        self._sites, self._whole_sites = self._whole_sites or self._sites, None
        assert self._sites is not None
        self._site_changed(self._sites.site)

    def interrupted_state(self) -> dict[str, Any]:
        """What the ranks of a site go on from between two commits."""
        assert self._interrupted is not None
        return dict(vars(self._interrupted))

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Go on from what `interrupted_state` gave on a rank of this site. Local."""
        self._interrupted = _InterruptedInterval(**state)
        self._take_site(state)
        self._step_kept = self._steps

    def meet(self, group: CollectiveGroup) -> None:
        """Learn at which inner step the others commit. Collective."""
        commits, steps, sent = self._steps_of_others(group)
        if not self._own:
            self._be_at(commits, steps, sent)

    def site_state(self) -> dict[str, Any]:
        """What a rank that enters this site begins from."""
        return dict(vars(self._now()))

    def enter_site(self, state: Mapping[str, Any]) -> None:
        """Take what `site_state` gave on another rank of this site, where this rank does not know it. Local."""
        if self._own:
            return
        own = [fragment.samples for fragment in self._fragments]
        self._take_site(state)
        for fragment, samples in zip(self._fragments, own, strict=True):
            fragment.samples = fragment.samples if self._is_behind else samples
        self._own = self._is_behind

    def begin_site(self) -> None:
        """Begin from the outer weights, where no rank knows the weights of this site. Local."""
        self._take_outer()
        for fragment in self._fragments:
            fragment.samples = 0

    def _now(self) -> _InterruptedInterval:
        names = [name for fragment in self._fragments for name in fragment.names]
        weights = {name: np.array(array) for name, array in zip(names, self._local.read(names), strict=True)}
        sent, samples = ([*of] for of in zip(*((f.sent, f.samples) for f in self._fragments), strict=True))
        return _InterruptedInterval(self._steps, sent, samples, weights, self._inner_state())

    def _take_site(self, state: Mapping[str, Any]) -> None:
        self._set_steps(state["steps"], state["sent"])
        for fragment, samples in zip(self._fragments, state["samples"], strict=True):
            fragment.samples = samples
        for name, values in state["weights"].items():
            self._local.write(name, values)
        self._set_inner(state["inner"])

    def _inner_state(self) -> Any:
        """A copy, which later inner steps do not change."""
        return None if self._inner is None else copy.deepcopy(self._inner.state_dict())

    def _set_inner(self, state: Any) -> None:
        if self._inner is not None and state is not None:
            self._inner.load_state_dict(copy.deepcopy(state))  # torch takes tensors as they are

    @abstractmethod
    def drain(self) -> None:
        """Return when an exchange that is under way has ended, however it ended."""

    @abstractmethod
    def _open_group(self) -> ProcessGroup:
        """A group of all ranks whose collectives need not wait for the script's."""

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
