"""A run of a sample takes some cases of a long test; the same ones again when it is asked to."""

from support.sampling import Sample

VALUES = list("abcdefgh")


def test_a_sample_is_the_same_for_its_seed_and_leaves_nothing_out_for_ever() -> None:
    """Whoever replays a number gets its cases; over the numbers every case has its turn."""
    samples = [Sample(str(seed)).of(VALUES, 3, "a test") for seed in range(100)]
    assert samples == [Sample(str(seed)).of(VALUES, 3, "a test") for seed in range(100)]
    assert {len(taken) for taken in samples} == {3}
    assert all(taken == sorted(taken) for taken in samples)
    assert {value for taken in samples for value in taken} == set(VALUES)


def test_without_a_seed_everything_is_taken() -> None:
    assert Sample("").of(VALUES, 3, "a test") == VALUES
    assert Sample("1").of(VALUES, 8, "a test") == VALUES
