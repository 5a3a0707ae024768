"""The worlds that a file declares."""

import itertools
from pathlib import Path

from frameworks.declared import declared, pairwise


def test_pairwise_combinations_have_each_pair_of_values() -> None:
    """Six worlds in place of twelve, as one value has three and another two; none where any value has one only."""
    every = list(itertools.product([1, 2, 3], ["a", "b"], ["c", "d"]))
    taken = pairwise(every)
    for first, second in itertools.combinations(range(3), 2):
        assert {(one[first], one[second]) for one in taken} == {(one[first], one[second]) for one in every}
    assert len(taken) == 6
    assert pairwise([(2, "a", "c")]) == [(2, "a", "c")]


def test_a_file_with_pairs_has_these_worlds(tmp_path: Path) -> None:
    file = tmp_path / "test_pairs.py"
    each = '{"RINGTRAIN_A": ["x", "y"], "RINGTRAIN_B": ["z"]}'
    file.write_text(
        f'\nRUN_IN = {{"framework": "os", "ranks": [1, 2], "each": {each}, "pairs": True}}\ndef test_one(): 1\n'
    )
    found = declared(file)
    assert found is not None
    assert [world.label for _, world, _ in found.cases()] == [
        "x-z-ranks-1",
        "y-z-ranks-1",
        "x-z-ranks-2",
        "y-z-ranks-2",
    ]
