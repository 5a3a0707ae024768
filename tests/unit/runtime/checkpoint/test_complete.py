"""Names of the folders of checkpoints."""

import pytest

from ringtrain.checkpoint.complete import NAME, save_began_ms, step_of


@pytest.mark.parametrize(
    ("name", "step", "began_ms"),
    [("ckpt-0000000007-0000000000ff", 7, 255), ("ckpt-12345678901-018f00000010", 12_345_678_901, 0x018F00000010)],
)
def test_a_folders_name_has_the_step_and_the_time_at_which_the_save_began(name: str, step: int, began_ms: int) -> None:
    """In decimal and in hexadecimal digits, wherever the folder is."""
    assert NAME.fullmatch(name)
    for folder in (name, f"attempt-1/{name}"):
        assert (step_of(folder), save_began_ms(folder)) == (step, began_ms)
