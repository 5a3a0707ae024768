"""Lists of numbers and names in messages."""

import pytest

from ringtrain.errors import in_ranges, some_of


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        pytest.param([], "none", id="nothing"),
        pytest.param([3], "3", id="one"),
        pytest.param([3, 2], "2, 3", id="two-beside-each-other"),
        pytest.param([2, 3, 4], "2-4", id="a-run"),
        pytest.param([0, 1, 2, 5, 7, 8], "0-2, 5, 7, 8", id="runs-and-others"),
        pytest.param(range(8000), "0-7999", id="thousands"),
        pytest.param([*range(0, 16, 2), 20, 21, 22], "0, 2, 4, 6, 8, 10, 12, 14 and 3 more", id="many-pieces"),
    ],
)
def test_numbers_in_a_message(numbers: list[int], text: str) -> None:
    """All of them where that is short, and never more than a line: a message may have 4096 bytes in all."""
    assert in_ranges(numbers) == text


def test_names_in_a_message() -> None:
    assert some_of(["a", "b"]) == "a, b"
    assert some_of([f"w-{index}" for index in range(1000)]).endswith("w-6, w-7 and 992 more")
