"""What `ringtrain run` accepts."""

import pytest
from click.testing import CliRunner

from ringtrain.cli.main import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-np", "2", "-H", "node-a:1,node-b:1", "true"], "submit a DistributedTrainingJob"),
        (["-np", "2", "-H", "localhost:1", "true"], "1 slots for 2 ranks; expected localhost:2"),
        (["-np", "2", "-H", "localhost:many", "true"], "'many' is not a number of slots"),
        (["-np", "0", "true"], "0 is not in the range"),
        (["true"], "Missing option '-np'"),
        (["-np", "1"], "Missing argument"),
    ],
    ids=["other-hosts", "too-few-slots", "no-number", "no-rank", "no-np", "no-command"],
)
def test_usage_errors(words: list[str], said: str) -> None:
    """Nothing is started, and the message says what to do instead."""
    result = CliRunner().invoke(main, ["run", *words])
    assert result.exit_code == 2
    assert said in result.output


def test_help_names_all_commands() -> None:
    """`ringtrain --help` lists them."""
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in ("agent", "launcher", "run"))
