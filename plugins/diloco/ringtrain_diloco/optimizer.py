"""Training over thin lines: ranks train alone for many steps, and average what those steps have changed.

A pseudo-gradient is the outer weights, which all ranks have alike, minus this rank's own. The outer step is a
`HostOptimizer`'s whose gradient that is: averaged over the ring, compressed, sharded and updated in host memory.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

import ringtrain as rt
from ringtrain import ProcessSet
from ringtrain.adapter import (
    BUCKET_BYTES,
    Array,
    CollectiveGroup,
    HostOptimizerGroups,
    ParamSpec,
    check_same_model,
    current_world,
    drain_before_leaving,
)
from ringtrain.adapter.state import StatefulObject, is_stateful
from ringtrain.errors import ConfigurationError, MismatchError, kind_of
from ringtrain.optim import HostOptimizer
from ringtrain.optim.rules import Nesterov, Rule, check_rule
from ringtrain.report import add_to_reports
from ringtrain.step_time import REDUCTION
from ringtrain_diloco.fragments import DiLoCoFragment, DiLoCoSchedule, FragmentExchange, fragment_bounds
from ringtrain_diloco.recovery import DiLoCoLocalWeights, DiLoCoRecovery
from ringtrain_diloco.sites import DiLoCoSiteGroups, DiLoCoSites, SiteOptimizer

log = logging.getLogger("ringtrain")

# Bytes on the wire for each float32, the int8's scales included; other types travel as they are.
_WIRE_BYTES = {"bf16": 2.0, "fp16": 2.0, "int8": 1 + 4 / 512}


class _DiLoCoArrays:
    """Weights that are arrays of the caller's."""

    def __init__(self, params: Mapping[str, Array]) -> None:
        self._params = params

    def read(self, names: Sequence[str]) -> Sequence[Array]:
        return [self._params[name] for name in names]

    def write(self, name: str, values: Array) -> None:
        self._params[name][...] = values


@dataclass(frozen=True)
class _PseudoGradientHeader:
    """What a rank tells the others of a pseudo-gradient: its inner steps so far, the samples since the last one,
    and a digest of the weights it was made of."""

    steps: int
    samples: float
    digest: int


class DiLoCo(DiLoCoRecovery):
    """Average over all ranks what many inner steps have changed, and step an outer optimizer by that.

        diloco = DiLoCo(params, outer=Nesterov(lr=0.7, momentum=0.9), sync_every=100)
        for batch in batches:
            inner_step(params, batch)       # changes `params` in place, by an optimizer of your own
            diloco.step()                   # after each inner step, on all ranks as often
        diloco.finish()                     # all ranks have the same weights

    `params`: this rank's weights by name, arrays of float16, bfloat16, float32 or float64 that are changed in
    place, or `DiLoCoLocalWeights`, which say where else they are, with their values at the start in `initial`.
    Rank 0's values are sent to all ranks. The outer weights and the room for pseudo-gradients take twice their
    memory on the host, the outer optimizer's state 1/size of what its rule keeps.
    `outer`: a rule of `ringtrain.optim`; its gradient is the mean over ranks of the outer weights minus the local
    ones. `SGD(lr=1)` is Local SGD: the outer weights become the mean of the local ones.
    `sync_every`: H, inner steps from one synchronization of a parameter to its next; or H of each site, in their
    order: a slow one takes fewer. The mean is weighted by samples, of which a step is 1 unless `step` is told.
    `sites`: the ranks of each site, within which all ranks make the same inner steps, on gradients that `average`
    has averaged: else MismatchError. Default: the sites that the world has (`ringtrain.sites()`); without any, and
    with (), each rank is one. Each byte of an exchange travels between sites once.
    `fragments`: parameters are cut in so many groups, in their order and of about as many bytes, which are
    synchronized in turns.
    `overlap_steps`: a synchronization runs beside the next so many inner steps, and its outer weights are taken
    then; less than `sync_every // fragments`.
    `mix`: a rank takes `outer + mix * (local - outer)`: 0, the outer weights; more, that part of its own inner
    steps stays. With more than 0, ranks' weights are their own until `finish()`; `outer_weights` are always equal.
    `compression`: "bf16", "fp16" or "int8", of float32 parameters, with error feedback. It and
    `bucket_bytes` are as of `HostOptimizer`.

    `elastic`: the world may change. Give it to the state of `ringtrain.elastic`, and commit that whenever `step()`
    returns True: the commit synchronizes. A rank that is lost takes with it its own inner steps since the last
    commit of each fragment, and nobody else's; the mean is over those that are left. A newcomer begins at a
    commit, from the outer weights. An exchange that was under way when a rank was lost is made again, by all from
    the weights of its commit: with `overlap_steps` inner steps since then are taken again. Before ranks join or
    leave by plan, all fragments are synchronized. `redundancy`: as of `HostOptimizer`. Each rank is a site of its
    own: a site of several ranks raises ConfigurationError.
    `inner`: the inner optimizer (`state_dict()`, `load_state_dict()`). A commit copies its state, and a rank that
    goes back to a commit loads it again. Without it, or with (), the inner optimizer stays as it is then.

    With H = 1, one fragment, `SGD(lr=1)` outside and SGD(lr) inside this is synchronous SGD(lr): to the bit where
    weights, `lr` times gradients, and their sums are numbers that the dtype holds; elsewhere a weight `w` is off
    by the rounding of `w - (w - lr * g)`, half of the last bit of `w`.

    Collective: all ranks make it with the same arguments, else MismatchError with both values; and take as many
    inner steps (their site's H from one synchronization to the next), else MismatchError with both numbers at the
    next synchronization. A wrong argument is a ConfigurationError that names it.

    DiLoCo: Douillard et al. 2023; fragments, overlap and mix: Douillard et al. 2025 (Streaming DiLoCo, algorithm
    2). Local SGD: Stich 2019. Weights by samples: McMahan et al. 2017 (federated averaging). As many steps as a
    site's speed allows: Liu et al. 2024 (asynchronous local SGD, dynamic local updates). Maturity: Experimental.
    """

    def __init__(
        self,
        params: Mapping[str, Array] | DiLoCoLocalWeights,
        *,
        outer: Rule = Nesterov(),  # noqa: B008  frozen
        sync_every: int | Sequence[int] = 100,
        fragments: int = 1,
        overlap_steps: int = 0,
        mix: float = 0.0,
        compression: str | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        elastic: bool = False,
        redundancy: int = 1,
        sites: Sequence[Sequence[int]] | None = None,
        inner: StatefulObject | tuple[()] | None = None,
        group: CollectiveGroup | None = None,
        initial: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__()
        initial, self._local = _given_weights(params, initial)
        schedules = [DiLoCoSchedule(h, fragments, overlap_steps, mix) for h in _sync_periods(sync_every)]
        for schedule in schedules:
            schedule.check(len(initial))
        check_rule(outer)
        chosen = DiLoCoSites.chosen(sites, elastic, group)
        self._every_site_alike = len(schedules) == 1
        if not self._every_site_alike and (elastic or len(schedules) != len(chosen.ranks)):
            raise ConfigurationError(
                f"DiLoCo: sync_every is {sync_every}; expected one number, or, without elastic, one for each of "
                f"{len(chosen.ranks)} sites"
            )
        self._schedule = schedules[0 if self._every_site_alike else chosen.own]
        self._elastic, self._takes_sites_of_world = elastic, elastic and sites is None and group is None
        self._inner = _checked_inner(inner)
        self._groups = HostOptimizerGroups(rt.global_process_set)
        if group is None:
            _check_elastic(elastic)
        self._group = group or self._groups.first(elastic)
        specs = tuple(ParamSpec(name, array.shape, array.dtype) for name, array in initial.items())
        compared = vars(self._schedule) | {"outer": outer, "sync_every": sync_every, "sites": chosen.ranks}
        check_same_model(self._group, specs, {name: repr(value) for name, value in compared.items()})
        self._sites = None if chosen.alone else DiLoCoSiteGroups(chosen)
        self._fragments = []
        for index, (first, end) in enumerate(pairwise(fragment_bounds([s.nbytes for s in specs], fragments))):
            names = tuple(spec.name for spec in specs[first:end])
            values = {name: initial[name] for name in names}
            # Infinity clips nothing: it is how an update is asked for its norm.
            options: dict[str, Any] = {
                "bucket_bytes": bucket_bytes,
                "clip_norm": math.inf,
                "compression": compression,
            }
            host: HostOptimizer | SiteOptimizer
            if self._sites is not None:
                host = SiteOptimizer(values, outer, self._sites, **options)
            else:
                options |= {"elastic": elastic, "redundancy": redundancy}
                host = HostOptimizer(values, outer, group=self._group, **options)
            carries = host.carries if isinstance(host, SiteOptimizer) else names
            self._fragments.append(DiLoCoFragment(index, names, carries, host))
        self._steps = self._synchronizations = 0
        self._exchange = None
        self._norm: float | None = None
        self._exchanged_s = self._waited_s = 0.0
        wire = _WIRE_BYTES.get(compression or "", 4.0)
        sent = {name for fragment in self._fragments for name in fragment.carries}
        sizes = {s.name: s.size * wire if s.dtype == np.float32 else s.nbytes for s in specs}
        self._bytes = sum(sizes[name] for name in sent)
        self._take_outer()

    def step(self, samples: float = 1) -> bool:
        """Count an inner step that was just taken, on so many samples; synchronize what is due. True: local
        weights were changed.

        With `overlap_steps` it begins an exchange and returns. With `elastic` it begins none, and True says that a
        commit of the state is due, which does. Raises PeerLost when the ring failed, MismatchError where ranks
        took other numbers of steps.
        """
        if not 0 <= samples < math.inf:
            raise ConfigurationError(f"DiLoCo: a step was of {samples} samples; expected a number, 0 or more")
        self._steps += 1
        for fragment in self._fragments:
            fragment.samples += samples
        overlap = self._schedule.overlap_steps
        landed = self._exchange is not None and self._steps >= self._exchange.step + overlap
        if landed:
            self._land()
        index = self._schedule.due(self._steps)
        if self._elastic:
            if index is None and self._last_commits and rt.is_initialized() and (world := current_world()).is_lost:
                self._leave_in_time(world)
            return index is not None
        if index is None:
            return landed
        self._begin(self._fragments[index], overlaps=overlap > 0)
        if not overlap:
            self._land()
        return landed or not overlap

    def finish(self) -> None:
        """Synchronize all that inner steps have changed since; all ranks have the outer weights then. Collective.

        At the end of training, or before an evaluation or a checkpoint of weights alone. The schedule goes on as
        it was. Raises MismatchError where ranks took other numbers of steps; with `elastic` ConfigurationError
        where the state was not committed after the last inner step.
        """
        if self._elastic and self._last_commits and self._last_commits[-1].steps != self._steps:
            raise ConfigurationError(
                f"DiLoCo: finish() after inner step {self._steps}, and the state was committed after step "
                f"{self._last_commits[-1].steps}; call commit() of the state first"
            )
        if self._exchange is not None:
            self._land()
        with REDUCTION:
            self._agree("finish()")
            unsent = [fragment.sent < self._steps for fragment in self._fragments]
            everyone = self._group.allgather_object(unsent, "DiLoCo's finish()")  # a site may be at a multiple of H
        for fragment, behind in zip(self._fragments, zip(*everyone, strict=True), strict=True):
            if any(behind):
                self._begin(fragment, overlaps=False)
                self._land()
        self._take_outer()

    def average(self, gradients: Mapping[str, Array]) -> None:
        """Average `gradients` (arrays by name) over the ranks of this rank's site, in place, for its inner step.
        Collective in the site; nothing happens where the rank trains alone."""
        if self._sites is not None:
            self._sites.average(gradients)

    @property
    def site(self) -> ProcessSet | None:
        """The ranks that make the same inner steps as this one; None where it trains alone."""
        return None if self._sites is None else self._sites.site

    @property
    def sync_every(self) -> int:
        """H of this rank."""
        return self._schedule.sync_every

    @property
    def steps(self) -> int:
        """Inner steps so far."""
        return self._steps

    @property
    def due(self) -> bool:
        """Whether the last inner step was one after which something is synchronized, and it has not been yet."""
        index = self._schedule.due(self._steps)
        return index is not None and self._fragments[index].sent < self._steps

    @property
    def outer_weights(self) -> Mapping[str, Array]:
        """The outer weights by name, the same on all ranks: views, to be read before the next `step()`. An
        exchange that is under way is waited for."""
        if self._exchange is not None:
            self._exchange.wait()
        views = {name: fragment.outer.weights[name] for fragment in self._fragments for name in fragment.names}
        return MappingProxyType(views)

    @property
    def synchronizations(self) -> int:
        """Synchronizations of a fragment that have ended on this rank since it was made."""
        return self._synchronizations

    @property
    def pseudo_gradient_norm(self) -> float | None:
        """L2 norm of the mean pseudo-gradient of the fragment that was synchronized last; None before."""
        return self._norm

    @property
    def state_bytes(self) -> int:
        """Bytes of the outer optimizer's state that this rank holds."""
        return sum(fragment.outer.state_bytes for fragment in self._fragments)

    @property
    def sync_bytes(self) -> int:
        """Bytes that this rank sends for one synchronization of all fragments in a ring, headers not counted; with
        sites, to other sites."""
        size = self._group.size if self._sites is None else len(self._sites.sites.ranks)
        return round(2 * self._bytes * (size - 1) / size)

    @property
    def hidden_share(self) -> float:
        """Which part of the seconds of all exchanges so far was hidden behind inner steps, 0 to 1."""
        return 1 - min(1.0, self._waited_s / self._exchanged_s) if self._exchanged_s else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank needs to go on to the bit: its own weights, and what all ranks have of the outer
        optimizer. Every rank saves its own. Collective; an exchange that is under way is waited for.

        Returns `{"steps", "rank", "size", "sites", "sent", "samples", "landing", "weights": {name: array},
        "outer": [...]}`, the last with the `HostOptimizer.state_dict()` of each fragment.
        """
        if self._exchange is not None:
            self._exchange.wait()
        with REDUCTION:
            self._agree("state_dict()")
        names = [name for fragment in self._fragments for name in fragment.names]
        weights = {name: np.array(array) for name, array in zip(names, self._local.read(names), strict=True)}
        return {
            "steps": self._steps,
            "rank": self._group.rank,
            "size": self._group.size,
            "sites": self._site_ranks,
            "sent": [fragment.sent for fragment in self._fragments],
            "samples": [fragment.samples for fragment in self._fragments],
            "landing": None if self._exchange is None else self._exchange.fragment.index,
            "weights": weights,
            "outer": [fragment.outer.state_dict() for fragment in self._fragments],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what this rank's `state_dict()` gave, to the bit. Not collective.

        In a world of another size, and with `elastic`, any rank's will do, and all ranks begin from the outer
        weights: inner steps since the last synchronization are given up, which a warning says. After `finish()`
        there are none. Raises ConfigurationError for a state of another rank of as many, sites, number of
        fragments, rule or model.
        """
        own: dict[str, Any] = {
            "rank": self._group.rank,
            "size": self._group.size,
            "fragments": len(self._fragments),
        }
        saved = {"rank": state.get("rank"), "size": state.get("size"), "fragments": len(state.get("outer", ()))}
        anew = self._elastic or saved["size"] != own["size"]
        if self._site_ranks or state.get("sites"):
            own["sites"], saved["sites"] = self._site_ranks, state.get("sites")
            anew = False
        if saved != own and not (anew and saved["fragments"] == own["fragments"]):
            raise ConfigurationError(
                f"DiLoCo: the saved state is of {saved} and this is {own}; load each rank's own, or any in a "
                "world of another size with as many fragments"
            )
        if self._exchange is not None:
            self._exchange.wait()
        parts = zip(self._fragments, state["outer"], state["sent"], state["samples"], strict=True)
        for fragment, outer, sent, samples in parts:
            fragment.outer.load_state_dict(outer)
            fragment.sent = state["steps"] if anew else sent
            if self._elastic:
                fragment.updates = fragment.host.updates
            fragment.samples = 0 if anew else samples
        self._steps, self._exchange, self._restored = state["steps"], None, None
        if anew:
            self._take_outer()
            if (first := min(state["sent"]) + 1) <= self._steps:
                log.warning("inner steps %d to %d of the saved state are given up", first, self._steps)
            return
        for name, values in state["weights"].items():
            self._local.write(name, values)
        if (landing := state["landing"]) is not None:
            self._exchange = FragmentExchange(self._fragments[landing], self._fragments[landing].sent)

    def close(self) -> None:
        """Give memory and descriptors back, after an exchange that is under way. Local weights stay."""
        self.drain()
        for fragment in self._fragments:
            fragment.outer.close()
        self._groups.close()
        if self._sites is not None:
            self._sites.close()

    @property
    def _site_ranks(self) -> str:
        return "" if self._sites is None else str([list(ranks) for ranks in self._sites.sites.ranks])

    def drain(self) -> None:
        """Return when an exchange that is under way has ended, however it ended."""
        if self._exchange is not None:
            self._exchange.join()

    def _begin(self, fragment: DiLoCoFragment, overlaps: bool) -> None:
        """Take the pseudo-gradient of `fragment` as it is now, and begin its outer step."""
        outer = fragment.outer
        carries = fragment.carries
        read = self._local.read(fragment.names)
        for name, local in zip(fragment.names, read, strict=True):
            if name in carries:
                np.subtract(outer.weights[name], local, out=outer.gradient(name))
        told = _PseudoGradientHeader(
            self._steps,
            fragment.samples if self._own else 0,
            _crc32(read) if self._sites else 0,
        )
        fragment.sent, fragment.samples = self._steps, 0
        what = f"the synchronization of fragment {fragment.index}"

        def work() -> None:
            share = self._agree(what, told)
            for name in carries:
                if share != 1:
                    outer.gradient(name)[...] *= outer.gradient(name).dtype.type(share)
                outer.submit(name, outer.gradient(name))
            outer.step()

        self._exchange = FragmentExchange(fragment, self._steps, work)
        if overlaps:
            drain_before_leaving(self)
        self._exchange.begin(overlaps)

    def _land(self) -> None:
        """Wait for the exchange that is under way, and take its outer weights."""
        assert self._exchange is not None
        exchange = self._exchange
        exchange.wait()
        outer = exchange.fragment.outer
        self._mix(exchange.fragment)
        if self._elastic:
            exchange.fragment.updates = exchange.fragment.host.updates
        self._norm = outer.gradient_norm
        self._exchanged_s += exchange.seconds
        self._waited_s += exchange.waited
        self._synchronizations += 1
        self._exchange = None
        add_to_reports(
            {
                "diloco_last_sync": exchange.step,
                "diloco_drift": self._norm or 0.0,
                "diloco_hidden": self.hidden_share,
                "diloco_bytes_a_step": self.sync_bytes / self._schedule.sync_every,
            }
        )

    def _mix(self, fragment: DiLoCoFragment) -> None:
        """Take the outer weights of a fragment, and keep the part `mix` of what this rank has."""
        mix, names = self._schedule.mix, fragment.names
        if mix == 0:
            self._take_outer(fragment)
        elif mix < 1:
            for name, local in zip(names, self._local.read(names), strict=True):
                weights = fragment.outer.weights[name]
                self._local.write(name, np.asarray(weights + weights.dtype.type(mix) * (local - weights)))

    def _take_outer(self, *fragments: DiLoCoFragment) -> None:
        """Have the outer weights of these fragments, or of all, as local ones."""
        for fragment in fragments or self._fragments:
            for name in fragment.names:
                self._local.write(name, fragment.outer.weights[name])

    def _agree(self, what: str, told: _PseudoGradientHeader | None = None) -> float:
        """Raise MismatchError on all ranks unless all do this after as many inner steps, and ranks of one site
        with the same weights. Collective.

        Return by how much this rank's pseudo-gradient counts more than the mean one.
        """
        own = told or _PseudoGradientHeader(self._steps, 0, 0)
        at = own.steps if self._every_site_alike else own.steps // self._schedule.sync_every
        everyone = self._group.allgather_object([what, at, *astuple(own)], "DiLoCo")
        for rank, other in enumerate(everyone):
            if other[:2] != everyone[0][:2]:
                raise MismatchError(
                    f"DiLoCo: rank {rank} begins {other[0]} after inner step {other[2]}, and rank 0 "
                    f"{everyone[0][0]} after inner step {everyone[0][2]}; every rank takes as many inner steps: "
                    "give all ranks as many batches"
                )
        samples = [float(count) for *_, count, _ in everyone]
        sites: Sequence[Sequence[int]] = [(rank,) for rank in range(len(everyone))]
        own_site = self._group.rank
        if self._sites is not None:
            sites, own_site = self._sites.sites.ranks, self._sites.sites.own
        for rank, first in ((rank, ranks[0]) for ranks in sites for rank in ranks):
            if everyone[rank][4] != everyone[first][4]:
                raise MismatchError(
                    f"DiLoCo: rank {rank} has other weights than rank {first} of the same site at {what}; ranks "
                    "of a site make the same inner steps: average their gradients first, by average()"
                )
        total = sum(samples)
        return len(sites) * sum(samples[rank] for rank in sites[own_site]) / total if total else 1.0


def _check_elastic(elastic: bool) -> None:
    if current_world().config.numbers.formation and not elastic:
        raise ConfigurationError(
            "DiLoCo was made in an elastic job without elastic=True; pass that, and give it to the state of "
            "ringtrain.elastic, or take elastic out of the job"
        )


def _crc32(arrays: Sequence[Array]) -> int:
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
    return found


def _checked_inner(inner: Any) -> StatefulObject | None:
    if is_stateful(inner):
        return inner
    if inner is None or (isinstance(inner, tuple) and not inner):
        return None
    raise ConfigurationError(
        f"DiLoCo: inner is {kind_of(inner)}; expected an object with state_dict() and load_state_dict(), or () for "
        "an inner optimizer without a state"
    )


def _sync_periods(sync_every: int | Sequence[int]) -> list[int]:
    return list(sync_every) if isinstance(sync_every, Sequence) else [sync_every]


def _given_weights(params: Any, initial: Mapping[str, Array] | None) -> tuple[dict[str, Array], DiLoCoLocalWeights]:
    if isinstance(params, DiLoCoLocalWeights) and initial is not None:
        return dict(initial), params
    arrays = params if isinstance(params, Mapping) else {}
    wrong = [name for name, one in arrays.items() if not (isinstance(one, np.ndarray) and one.flags.writeable)]
    if not arrays or wrong:
        found = f"params is {kind_of(params)}"
        if wrong:
            found = f'parameter "{wrong[0]}" is {kind_of(arrays[wrong[0]])}'
        raise ConfigurationError(
            f"DiLoCo: {found}; expected arrays of numpy by name, at least one, that can be written to; a PyTorch "
            "model is trained by ringtrain.torch.DiLoCo"
        )
    return dict(arrays), _DiLoCoArrays(arrays)
