"""Who counts as a survivor, and which step survivors agree on."""

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
    return [ElasticStateSummary(count, {"optimizer": count}, {}) for count in committed]


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
    assert agreed.updates == {"optimizer": agreed.committed}


def of_sites(*words: tuple[str, int, int] | tuple[str, int, int, str]) -> list[ElasticStateSummary]:
    """Ranks by their site, their commit, and after how many steps since they were interrupted."""
    found = []
    for site, committed, interrupted, *state in words:
        outer = committed - 1 if "behind" in state else 5
        found.append(
            ElasticStateSummary(committed, {"diloco": committed}, {}, site, interrupted, outer, "waits" in state)
        )
    return found


@pytest.mark.parametrize(
    ("words", "ranks", "committed", "sites"),
    [
        ([("a", 3, 2), ("b", 3, 4), ("b", 3, 5)], (0, 2, 3), 3, ((0,), (2, 1))),
        # A site that has come to the next commit waits there; one of the other has lost a step to it.
        ([("a", 4, -1), ("b", 3, 4), ("b", 4, -1), ("a", 4, -1)], (0, 1, 2, 3), 4, ()),
        ([("a", 4, -1), ("b", 3, 4), ("b", 3, 3), ("a", 3, 5)], (0, 1, 2, 3), 3, ((0,), (1, 2))),
        # Newcomers, and ranks that have come in since the last commit, wait.
        ([("a", 3, 1), ("a", 0, -1), ("b", 3, 0), ("b", 3, -1, "waits")], (0, None, 1, 2), 3, ((0,), (2,))),
        ([("a", 3, -1, "waits"), ("b", 3, -1, "waits")], (0, 1), 3, ()),
        # In the first interval, too.
        ([("a", 0, 1), ("b", 0, 2)], (0, 1), 0, ((0,), (1,))),
        ([("a", 0, 1), ("b", 0, 2)], (None, None), 0, ()),
        # All are at the commit, or one can go on from it alone: as without sites.
        ([("a", 3, 0), ("b", 3, 0)], (0, 1), 3, ()),
        ([("a", 3, 4), ("b", 3, -1)], (0, 1), 3, ()),
        ([("a", 3, 4), ("b", 4, -1)], (0, 1), 3, ((0,), (1,))),
        # Not all have come through the synchronization of the commit.
        ([("a", 3, 4), ("a", 3, -1, "behind"), ("b", 3, 2)], (0, 1, 2), 3, ()),
    ],
)
def test_sites_that_go_on_between_two_commits(
    words: list[Any], ranks: tuple[int | None, ...], committed: int, sites: tuple[tuple[int, ...], ...]
) -> None:
    """Each from where its furthest rank was interrupted, which is the first of it."""
    agreed = conclude_elastic_step(of_sites(*words), FormerFormation(1, ranks))
    assert (agreed.committed, agreed.sites) == (committed, sites)
