"""Survivors of a world, and the step that they agree on."""

from typing import Any

import pytest

from ringtrain._core.process_groups.formations import FormerFormation, former_process_formation
from ringtrain.elastic.agreement import ElasticStateSummary, conclude_elastic_step


def told(adopted: list[int] | None = None, prepared: list[int] | None = None) -> dict[str, Any]:
    return {"adopted": adopted, "prepared": prepared, "sets": []}


@pytest.mark.parametrize(
    ("words", "formation", "ranks"),
    [
        ([told(), told()], 0, (None, None)),
        ([told([3, 1]), told(), told([3, 0])], 3, (1, None, 0)),
        # One has adopted formation 4, so the other, who was lost in its barrier, had all of it.
        ([told([4, 0]), told([3, 1], [4, 1])], 4, (0, 1)),
        # Nobody is known to have adopted formation 4: all have 3 still, but for its newcomer.
        ([told([3, 0], [4, 0]), told(None, [4, 2]), told([3, 1])], 3, (0, None, 1)),
        # A state of an older formation is worth nothing.
        ([told([2, 0]), told([5, 1])], 5, (None, 1)),
    ],
    ids=["all-new", "a-newcomer", "broken-after-the-barrier", "broken-before-the-barrier", "left-behind"],
)
def test_survivors(words: list[dict[str, Any]], formation: int, ranks: tuple[int | None, ...]) -> None:
    """Those whose state is of the last formation that any member has adopted."""
    assert former_process_formation(words) == FormerFormation(formation, ranks)


def said(*committed: int) -> list[ElasticStateSummary]:
    return [ElasticStateSummary(count, {}, {"optimizer": count}) for count in committed]


@pytest.mark.parametrize(
    ("commits", "ranks", "expected"),
    [
        ((7, 7), (0, 1), (7, 0, False)),
        ((8, 7, 8), (0, 1, 2), (7, 1, True)),
        ((0, 7, 8), (None, 1, 0), (7, 1, True)),
        ((0, 0), (None, None), (0, 0, True)),
        ((3, 9), (None, 0), (9, 1, True)),
        # Lost in their first exchange, they may have values of their own.
        ((0, 0), (0, 1), (0, 0, True)),
    ],
    ids=["all-alike", "one-behind", "newcomer-first", "nobody-survived", "only-one-survived", "nothing-committed"],
)
def test_the_agreed_step(commits: tuple[int, ...], ranks: tuple[int | None, ...], expected: tuple[Any, ...]) -> None:
    """The least step of any survivor, from the lowest rank that has it."""
    agreed = conclude_elastic_step(said(*commits), FormerFormation(1, ranks))
    assert (agreed.committed, agreed.donor, agreed.transfers) == expected
    assert {*agreed.offers["optimizer"]} == {agreed.committed}
