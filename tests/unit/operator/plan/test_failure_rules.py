"""A failure as one line of text."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ringtrain_operator.plan.failure_rules import describe_failure
from ringtrain_operator.status.model import Failure

RANK = {"reason": "RankFailed", "pod": "digits-worker-1"}


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ({"reason": "Timeout"}, "attempt 2: Timeout"),
        ({**RANK, "message": "rank 1 exited"}, "attempt 2: rank 1 exited (digits-worker-1)"),
        (
            {**RANK, "message": "rank 1 ended", "exit_code": 3},
            "attempt 2: rank 1 ended (digits-worker-1, exit code 3)",
        ),
        (
            {**RANK, "message": "digits-worker-1 exited with 3", "exit_code": 3},
            "attempt 2: digits-worker-1 exited with 3",
        ),
        (
            {"reason": "RankFailed", "message": "rank 1 was killed by SIGKILL", "exit_code": 137, "signal": "SIGKILL"},
            "attempt 2: rank 1 was killed by SIGKILL",
        ),
        (
            {"reason": "RankFailed", "message": "rank 1 ended", "log_tail": ("loading", "ValueError: no", " ")},
            "attempt 2: rank 1 ended: ValueError: no",
        ),
    ],
)
def test_a_failure_is_described_by_what_is_known(failure: dict[str, Any], text: str) -> None:
    """Pod and exit code follow the message unless it has them; then comes the last line of output."""
    whole = {"attempt": 2, "message": "", "time": datetime(2026, 1, 1, tzinfo=UTC), **failure}
    assert describe_failure(Failure(**whole)) == text
