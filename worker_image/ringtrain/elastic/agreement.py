"""Agreement of all ranks on the last committed step that all survivors have, and on the rank that sends its state."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ringtrain._core.process_groups.formations import FormerFormation
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain.errors import MismatchError


@dataclass(frozen=True)
class ElasticStateSummary:
    """Summary of one rank's state for the other ranks: number of commits, kinds of its values, and data of its
    participants."""

    committed: int
    kinds: Mapping[str, str]
    offers: Mapping[str, Any]


@dataclass(frozen=True)
class ElasticCommonStep:
    """Step from which all ranks continue.

    `committed`: number of the step. `donor`: lowest rank that has the state of this step. `transfers`: whether any rank
    lacks this state. `offers`: for each participant, the offers of all survivors that are at that step.
    """

    committed: int
    donor: int
    transfers: bool
    offers: Mapping[str, Sequence[Any]]


def agree_on_common_step(world: ProcessGroupContext, own: ElasticStateSummary) -> ElasticCommonStep:
    """Exchange the summaries of all ranks, and return the step from which all continue. Collective.

    Raises MismatchError if states consist of different values.
    """
    summaries = [ElasticStateSummary(**one) for one in world.group().allgather_object(asdict(own), "elastic state")]
    _check_elastic_state_kinds(summaries)
    return conclude_elastic_step(summaries, world.former)


def conclude_elastic_step(summaries: Sequence[ElasticStateSummary], former: FormerFormation) -> ElasticCommonStep:
    """Return the smallest step that any survivor has committed. All survivors can restore it: they are at most one step
    ahead.

    Without survivors the result is the step of rank 0. Before the first commit all ranks receive the state of the
    donor, because perhaps no rank had it.
    """
    counting = former.survivors or [0]
    committed = min(summaries[rank].committed for rank in counting)
    at_it = [rank for rank in counting if summaries[rank].committed == committed]
    offers = {name: [summaries[rank].offers[name] for rank in at_it] for name in summaries[at_it[0]].offers}
    return ElasticCommonStep(committed, at_it[0], len(at_it) < len(summaries) or not committed, offers)


def _check_elastic_state_kinds(summaries: Sequence[ElasticStateSummary]) -> None:
    for rank, one in enumerate(summaries):
        if one.kinds != summaries[0].kinds:
            raise MismatchError(
                f"the elastic state has {dict(summaries[0].kinds)} on rank 0 and {dict(one.kinds)} on rank "
                f"{rank}; every rank must construct the same State"
            )
