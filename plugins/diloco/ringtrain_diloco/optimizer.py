"""Training over slow links: ranks train alone for many steps, then average the changes of those steps.

The pseudo-gradient of a rank is the outer weights, which are equal on all ranks, minus the rank's own weights. It is
the gradient of a `HostOptimizer`, which averages, compresses and shards it, and updates the outer weights in host
memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
from ringtrain.adapter.state import StatefulObject
from ringtrain.errors import ConfigurationError, counted
from ringtrain.optim.rules import Nesterov, Rule, check_rule
from ringtrain.report import add_to_reports
from ringtrain.step_time import REDUCTION
from ringtrain_diloco.agreement import PseudoGradientHeader, agree_on_step, digest_of
from ringtrain_diloco.arguments import (
    DiLoCoLocalWeights,
    check_elastic,
    checked_inner,
    checked_weights,
    sync_periods,
)
from ringtrain_diloco.fragments import DiLoCoFragment, DiLoCoSchedule, FragmentExchange
from ringtrain_diloco.saved import SavedDiLoCo
from ringtrain_diloco.sites import DiLoCoSiteGroups, DiLoCoSites
from ringtrain_diloco.weights import OuterWeights, cut_into_fragments


class DiLoCo(SavedDiLoCo):
    """Average over all ranks the changes of many inner steps, and step an outer optimizer by that average.

        diloco = DiLoCo(params, outer=Nesterov(lr=0.7, momentum=0.9), sync_every=100)
        for batch in batches:
            inner_step(params, batch)       # your optimizer changes `params` in place
            diloco.step()                   # after each inner step, equally often on all ranks
        diloco.finish()                     # all ranks have equal weights

    `params`: weights of this rank by name, writable arrays of float16, bfloat16, float32 or float64; or
    `DiLoCoLocalWeights`, with the initial values in `initial`. All ranks begin with the values of rank 0. The outer
    weights and the pseudo-gradients take twice the memory of the weights on the host. The outer optimizer's state is
    sharded: each rank stores 1/size of it.

    `outer`: a rule of `ringtrain.optim`. Its gradient is the mean over ranks of the outer weights minus the local ones.
    `SGD(lr=1)` is Local SGD: the outer weights become the mean of the local ones.

    `sync_every`: H, the number of inner steps between two synchronizations of a parameter; or a list with one H for
    each site, so that slow sites take fewer steps. The mean is weighted by samples; a step counts as 1 sample unless
    `step` gets another number.

    `sites`: the ranks of each site. Ranks of a site make the same inner steps, on gradients that `average` has
    averaged; different weights raise MismatchError. The default is the sites of the world (`ringtrain.sites()`). In a
    world without sites, and if `sites` is (), each rank is a site. Each byte of an exchange travels between sites once.

    `fragments`: the number of groups into which parameters are divided, in their order and of about equal bytes. Groups
    are synchronized one after another.

    `overlap_steps`: the number of inner steps during which a synchronization runs in the background, before its outer
    weights are used. Must be less than `sync_every // fragments`.

    `mix`: after a synchronization the weights of a rank are `outer + mix * (local - outer)`. If `mix` is 0 they are the
    outer weights; otherwise ranks have different weights until `finish()`. `outer_weights` are always equal.

    `compression`: "bf16", "fp16" or "int8", for float32 parameters, with error feedback. `compression` and
    `bucket_bytes` mean the same as for `HostOptimizer`.

    `elastic`: the world may change. Add the DiLoCo to a `ringtrain.elastic.State` and commit the state whenever
    `step()` returns True: the commit synchronizes. If a rank is lost, only its own inner steps since the last commit of
    each fragment are lost; the mean is over the other ranks. A new rank begins at a commit, with the outer weights. If
    a rank is lost during an exchange, all ranks repeat the exchange, from the weights of its commit; with
    `overlap_steps` they also repeat the inner steps since then. Before a planned change all fragments are synchronized.
    Each site has one rank; a site of several ranks raises ConfigurationError.

    `redundancy`: number of replicas of each shard, see `HostOptimizer`.

    `inner`: the inner optimizer, an object with `state_dict()` and `load_state_dict()`. A commit copies its state, and
    a rank that returns to a commit loads the copy. If `inner` is missing or (), the state of the inner optimizer is not
    restored.

    With H = 1, one fragment, `SGD(lr=1)` as `outer` and SGD(lr) as inner optimizer, this is synchronous SGD(lr). All
    bits of the weights are equal if the dtype represents weights, `lr` times gradients and their sums exactly;
    otherwise a weight `w` differs by the rounding of `w - (w - lr * g)`, half of the last bit of `w`.

    Collective: all ranks pass the same arguments and take the same number of inner steps (H of their site between two
    synchronizations). Different arguments raise MismatchError with both values. Different numbers of steps raise it at
    the next synchronization. A wrong argument raises ConfigurationError that names it.

    DiLoCo: Douillard et al. 2023. Fragments, overlap and mix: Douillard et al. 2025 (Streaming DiLoCo, algorithm 2).
    Local SGD: Stich 2019. Weights by samples: McMahan et al. 2017 (federated averaging). Steps by the speed of a site:
    Liu et al. 2024 (asynchronous local SGD, dynamic local updates). Maturity: Experimental.
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
        initial, local = checked_weights(params, initial)
        schedules = [DiLoCoSchedule(h, fragments, overlap_steps, mix) for h in sync_periods(sync_every)]
        for schedule in schedules:
            schedule.check(len(initial))
        check_rule(outer)
        chosen = DiLoCoSites.chosen(sites, elastic, group)
        self._every_site_alike = len(schedules) == 1
        if not self._every_site_alike and (elastic or len(schedules) != len(chosen.ranks)):
            raise ConfigurationError(
                f"DiLoCo: sync_every is {sync_every}; expected one number, or, without elastic, one for each of "
                f"{counted(len(chosen.ranks), 'site')}"
            )
        self._schedule = schedules[0 if self._every_site_alike else chosen.own]
        self._elastic, self._takes_sites_of_world = elastic, elastic and sites is None and group is None
        self._inner = checked_inner(inner)
        self._groups = HostOptimizerGroups(rt.global_process_set)
        if group is None:
            check_elastic(elastic)
        self._group = group or self._groups.first(elastic)
        specs = tuple(ParamSpec(name, array.shape, array.dtype) for name, array in initial.items())
        compared = vars(self._schedule) | {"outer": outer, "sync_every": sync_every, "sites": chosen.ranks}
        check_same_model(self._group, specs, {name: repr(value) for name, value in compared.items()})
        self._sites = None if chosen.alone else DiLoCoSiteGroups(chosen)
        options = {"bucket_bytes": bucket_bytes, "compression": compression}
        if self._sites is None:
            options |= {"elastic": elastic, "redundancy": redundancy}
        made = cut_into_fragments(initial, fragments, outer, self._sites or self._group, options)
        self._fragments, self._weights = made, OuterWeights(local, made, mix)
        self._steps = self._synchronizations = 0
        self._exchange = None
        self._norm: float | None = None
        self._exchanged_s = self._waited_s = 0.0
        self._bytes = self._weights.wire_bytes(compression)
        self._weights.use(self._fragments)

    def step(self, samples: float = 1) -> bool:
        """Count an inner step on `samples` samples, and synchronize a fragment if due. Call it after each inner step.

        Returns True if local weights were changed. With `overlap_steps` it begins an exchange and does not wait for it.
        With `elastic` it does not synchronize; True then means that a commit of the state is due. Raises PeerLost if a
        rank was lost, MismatchError if ranks took different numbers of steps.
        """
        if not 0 <= samples < math.inf:
            raise ConfigurationError(f"DiLoCo: samples is {samples}; expected a finite number, 0 or more")
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
        """Synchronize all changes and give all ranks the outer weights. Collective.

        Call it at the end of training, or before an evaluation or a checkpoint of weights alone. The schedule does not
        change. Raises MismatchError if ranks took different numbers of steps; with `elastic` ConfigurationError if the
        state was not committed after the last inner step.
        """
        if self._elastic and self._last_commits and self._last_commits[-1].steps != self._steps:
            raise ConfigurationError(
                f"DiLoCo: finish() was called after inner step {self._steps}, but the last commit of the state was "
                f"after step {self._last_commits[-1].steps}; call commit() of the state first"
            )
        if self._exchange is not None:
            self._land()
        with REDUCTION:
            self._agree("finish()")
            unsent = [fragment.sent < self._steps for fragment in self._fragments]
            everyone = self._group.allgather_object(unsent, "DiLoCo's finish()")  # one site may have nothing to send
        for fragment, behind in zip(self._fragments, zip(*everyone, strict=True), strict=True):
            if any(behind):
                self._begin(fragment, overlaps=False)
                self._land()
        self._weights.use(self._fragments)

    def average(self, gradients: Mapping[str, Array]) -> None:
        """Average `gradients` (arrays by name) over the ranks of this site in place, before an inner step.

        Collective in the site. Does nothing if the rank trains alone.
        """
        if self._sites is not None:
            self._sites.average(gradients)

    @property
    def site(self) -> ProcessSet | None:
        """Process set of this rank's site; None if the rank trains alone."""
        return None if self._sites is None else self._sites.site

    @property
    def sync_every(self) -> int:
        """Number of inner steps between two synchronizations of a parameter, for this rank."""
        return self._schedule.sync_every

    @property
    def steps(self) -> int:
        """Number of inner steps."""
        return self._steps

    @property
    def due(self) -> bool:
        """Whether a synchronization is due after the last inner step and has not begun."""
        index = self._schedule.due(self._steps)
        return index is not None and self._fragments[index].sent < self._steps

    @property
    def outer_weights(self) -> Mapping[str, Array]:
        """Outer weights by name, equal on all ranks. They are views, valid until the next `step()`.

        Waits for an exchange that is under way.
        """
        if self._exchange is not None:
            self._exchange.wait()
        return self._weights.by_name

    @property
    def synchronizations(self) -> int:
        """Number of finished synchronizations of fragments on this rank."""
        return self._synchronizations

    @property
    def pseudo_gradient_norm(self) -> float | None:
        """L2 norm of the mean pseudo-gradient of the last synchronization; None before the first one."""
        return self._norm

    @property
    def state_bytes(self) -> int:
        """Bytes of the outer optimizer's state on this rank."""
        return self._weights.state_bytes

    @property
    def sync_bytes(self) -> int:
        """Bytes that this rank sends in one synchronization of all fragments, without headers.

        With sites, bytes that it sends to other sites.
        """
        size = self._group.size if self._sites is None else len(self._sites.sites.ranks)
        return round(2 * self._bytes * (size - 1) / size)

    @property
    def hidden_share(self) -> float:
        """Fraction of exchange time that overlapped inner steps, from 0 to 1."""
        return 1 - min(1.0, self._waited_s / self._exchanged_s) if self._exchanged_s else 0.0

    def close(self) -> None:
        """Wait for an exchange in progress, then free memory and file descriptors. Local weights stay usable."""
        self.drain()
        self._weights.close()
        self._groups.close()
        if self._sites is not None:
            self._sites.close()

    def drain(self) -> None:
        """Wait until an exchange in progress has ended, with or without an error."""
        if self._exchange is not None:
            self._exchange.join()

    def _begin(self, fragment: DiLoCoFragment, overlaps: bool) -> None:
        """Compute the pseudo-gradient of `fragment` and begin its outer step, in the background if `overlaps`."""
        outer = fragment.outer
        carries = fragment.carries
        local = self._weights.write_pseudo_gradient(fragment)
        samples = fragment.samples if self._own else 0
        header = PseudoGradientHeader(self._steps, samples, digest_of(local) if self._sites else 0)
        fragment.sent, fragment.samples = self._steps, 0
        what = f"the synchronization of fragment {fragment.index}"

        def work() -> None:
            share = self._agree(what, header)
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
        """Wait for the exchange in progress and set the local weights from its outer weights."""
        assert self._exchange is not None
        exchange = self._exchange
        exchange.wait()
        outer = exchange.fragment.outer
        self._weights.mix_into_local(exchange.fragment)
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

    def _agree(self, what: str, own: PseudoGradientHeader | None = None) -> float:
        """Check that all ranks do `what` after the same inner step.

        Returns the weight, in the mean, of this rank's site (a group of ranks). `own`: this rank's header; None if only
        the number of steps is compared.
        """
        period = 1 if self._every_site_alike else self._schedule.sync_every
        each_alone = tuple((rank,) for rank in range(self._group.size))  # of the present world
        sites = each_alone if self._sites is None else self._sites.sites.ranks
        return agree_on_step(self._group, what, own or PseudoGradientHeader(self._steps), sites, period)
