"""The runtime's command accepts the command lines that `dtj` runs in a container."""

import pytest

from ringtrain_client.jobs.launcher_output import WantedLauncherOutput
from ringtrain_job.cli.main import main
from ringtrain_job.cli.runs import RUNS


@pytest.mark.parametrize(
    ("wanted", "understood"),
    [
        pytest.param(
            WantedLauncherOutput("digits", rank=3, attempt=None, follow=True, tail=7),
            {"run": None, "runs": RUNS, "rank": 3, "attempt": 2, "following": True, "tail": 7, "reports": False},
            id="one-rank",
        ),
        pytest.param(
            WantedLauncherOutput("digits", rank=None, attempt=1, follow=False, tail=None),
            {"run": None, "runs": RUNS, "rank": None, "attempt": 2, "following": False, "tail": None, "reports": False},
            id="all-ranks",
        ),
        pytest.param(
            WantedLauncherOutput("digits", rank=None, attempt=None, follow=True, tail=None, reports=True),
            {"run": None, "runs": RUNS, "rank": None, "attempt": 2, "following": True, "tail": None, "reports": True},
            id="reports",
        ),
    ],
)
def test_logs_are_asked_for_as_they_are_answered(wanted: WantedLauncherOutput, understood: dict[str, object]) -> None:
    """`ringtrain logs` takes every option that `dtj logs` passes on."""
    program, command, *options = wanted.command("ringtrain", attempt=2, follow=wanted.follow)
    assert program == "ringtrain"
    found = main.get_command(None, command)  # type: ignore[arg-type]  # the context is not looked at
    assert found.make_context(command, options).params == understood
