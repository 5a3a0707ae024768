"""The last committed step that all survivors have, and who gives it to the others."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ringtrain._core.process_groups.formations import FormerFormation
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain.errors import MismatchError


@dataclass(frozen=True)
class ElasticStateSummary:
    """What a rank says of its state. `updates`: of each host optimizer at the commit. `kinds`: what the state is
    made of.

    Of a DiLoCo in sites: `site`: the name of this rank's. `interrupted`: from how many inner steps after the
    commit it can go on; -1: from the commit alone. `outer`: outer steps. `waits`: it has the outer weights of the
    commit and no inner steps, and enters its site at the next one.
    """

    committed: int
    updates: Mapping[str, int]
    kinds: Mapping[str, str]
    site: str = ""
    interrupted: int = -1
    outer: int = 0
    waits: bool = False


@dataclass(frozen=True)
class ElasticCommonStep:
    """`committed`: the step that all go on from. `donor`: the rank that has it. `transfers`: whether any rank has
    not. `updates`: of each host optimizer at that step.

    `sites`: of a DiLoCo that was interrupted between that commit and the next, the ranks of each site that go on
    from where they were, or wait at the next one; the first of each is the furthest. All others wait for it.
    """

    committed: int
    donor: int
    transfers: bool
    updates: Mapping[str, int]
    sites: tuple[tuple[int, ...], ...] = ()

    @property
    def last(self) -> int:
        """The commit that ranks have made who are furthest, or one less."""
        return self.committed + bool(self.sites)

    def site_of(self, rank: int) -> tuple[int, ...]:
        """The ranks of the site of `rank` that go on, or wait at the next commit; empty if it does neither."""
        return next((ranks for ranks in self.sites if rank in ranks), ())


def agree_on_common_step(world: ProcessGroupContext, said: ElasticStateSummary) -> ElasticCommonStep:
    """Tell all ranks what this one has, and return what all conclude. Collective.

    Raises MismatchError where states are made of different values.
    """
    heard = [ElasticStateSummary(**one) for one in world.group().allgather_object(asdict(said), "elastic state")]
    _check_elastic_state_kinds(heard)
    return conclude_elastic_step(heard, world.former)


def conclude_elastic_step(heard: Sequence[ElasticStateSummary], former: FormerFormation) -> ElasticCommonStep:
    """The least step that any survivor has committed: each survivor has it, or is one ahead and can undo that.

    Without survivors it is that of rank 0. Before the first commit all get it: nobody may have had it yet.
    """
    counting = former.survivors or [0]
    counting = [rank for rank in counting if not heard[rank].waits] or counting
    sites = _furthest_commit(heard, counting)
    committed = min(heard[ranks[0]].committed for ranks in sites)
    have_met = len({heard[rank].outer for rank in former.survivors}) == 1  # through the same synchronizations
    if have_met and heard[counting[0]].site and _elastic_sites_that_go_on(heard, sites, committed):
        donor = next(rank for rank in counting if heard[rank].committed == committed)
        others = any(not any(rank in ranks for ranks in sites) for rank in range(len(heard)))
        return ElasticCommonStep(committed, donor, others, heard[donor].updates, tuple(sites))
    donor = next(rank for rank in counting if heard[rank].committed == committed)
    behind = any(rank not in counting or heard[rank].committed != committed for rank in range(len(heard)))
    # A DiLoCo's commit is followed by updates, which a rank at that commit may have made, and another one not.
    at_it = [heard[rank].updates for rank in counting if heard[rank].committed == committed]
    updates = {name: min(one[name] for one in at_it) for name in heard[donor].updates}
    return ElasticCommonStep(committed, donor, behind or not committed, updates)


def _furthest_commit(heard: Sequence[ElasticStateSummary], counting: Sequence[int]) -> list[tuple[int, ...]]:
    """By site, the ranks at the last commit that any of it has, the furthest first; without sites each rank."""
    sites: dict[str | int, list[int]] = {}
    for rank in counting:
        sites.setdefault(heard[rank].site or rank, []).append(rank)
    last = [
        [rank for rank in ranks if heard[rank].committed == _last_step_of_elastic_states(heard, ranks)]
        for ranks in sites.values()
    ]
    return [tuple(sorted(ranks, key=lambda rank: -heard[rank].interrupted)) for ranks in last]


def _last_step_of_elastic_states(heard: Sequence[ElasticStateSummary], ranks: Sequence[int]) -> int:
    return max(heard[rank].committed for rank in ranks)


def _elastic_sites_that_go_on(
    heard: Sequence[ElasticStateSummary], sites: Sequence[Sequence[int]], committed: int
) -> bool:
    """Whether sites go on between two commits: some have taken steps since the first of them, or are at the
    second, and none has to go back to the first."""
    ahead = [heard[ranks[0]].committed > committed for ranks in sites]
    interrupted = [heard[ranks[0]].interrupted for ranks in sites]
    goes_back = any(not far and steps < 0 for far, steps in zip(ahead, interrupted, strict=True))
    return not goes_back and (any(ahead) or any(steps > 0 for steps in interrupted))


def _check_elastic_state_kinds(heard: Sequence[ElasticStateSummary]) -> None:
    for rank, one in enumerate(heard):
        if one.kinds != heard[0].kinds:
            raise MismatchError(
                f"the elastic state is made of {dict(heard[0].kinds)} on rank 0 and of {dict(one.kinds)} on rank "
                f"{rank}; every rank must make the same State"
            )
