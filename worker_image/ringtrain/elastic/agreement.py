"""The last committed step that all survivors have, and who gives it to the others."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ringtrain._core.process_groups.formations import FormerFormation
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain.errors import MismatchError


@dataclass(frozen=True)
class ElasticStateSummary:
    """What a rank says of its state. `updates`: of each host optimizer at the commit. `kinds`: what the state is
    made of."""

    committed: int
    updates: Mapping[str, int]
    kinds: Mapping[str, str]


@dataclass(frozen=True)
class ElasticCommonStep:
    """`committed`: the step that all go on from. `donor`: the rank that has it. `transfers`: whether any rank has
    not. `updates`: of each host optimizer at that step."""

    committed: int
    donor: int
    transfers: bool
    updates: Mapping[str, int]


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
    committed = min(heard[rank].committed for rank in counting)
    donor = next(rank for rank in counting if heard[rank].committed == committed)
    behind = any(rank not in counting or heard[rank].committed != committed for rank in range(len(heard)))
    # An optimizer may update after the commit: one rank may have made that update, and another one not.
    at_it = [heard[rank].updates for rank in counting if heard[rank].committed == committed]
    updates = {name: min(one[name] for one in at_it) for name in heard[donor].updates}
    return ElasticCommonStep(committed, donor, behind or not committed, updates)


def _check_elastic_state_kinds(heard: Sequence[ElasticStateSummary]) -> None:
    for rank, one in enumerate(heard):
        if one.kinds != heard[0].kinds:
            raise MismatchError(
                f"the elastic state is made of {dict(heard[0].kinds)} on rank 0 and of {dict(one.kinds)} on rank "
                f"{rank}; every rank must make the same State"
            )
