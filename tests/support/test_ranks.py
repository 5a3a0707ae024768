"""The launcher of ranks itself."""

import os
import signal

from support.ranks import ranks_ended, run_ranks, started_ranks, tell


def _ring(offset: int) -> int:
    return int(os.environ["RINGTRAIN_RANK"]) + offset


def _fail_on_rank_1() -> str:
    if os.environ["RINGTRAIN_RANK"] == "1":
        raise ValueError("rank 1 says no")
    return "fine"


def _wait_for_signal() -> None:
    tell("ready")
    signal.pause()


def test_every_rank_returns_its_value() -> None:
    """Values come back by rank."""
    assert run_ranks(_ring, 3, 10) == [10, 11, 12]


def test_a_failing_rank_is_told_with_its_error() -> None:
    """The error of a rank reaches the test as `type: message`."""
    outcomes = ranks_ended(_fail_on_rank_1, 2)
    assert [o.error for o in outcomes] == [None, "ValueError: rank 1 says no"]
    assert outcomes[0].value == "fine"


def test_a_killed_rank_has_its_exit_code_and_no_one_is_left() -> None:
    """A rank killed from outside has the signal's exit code; the other one is killed when the block ends."""
    with started_ranks(_wait_for_signal, 2) as ranks:
        assert [ranks.message(0), ranks.message(1)] == ["ready", "ready"]
        ranks.signal(1, signal.SIGKILL)
        assert ranks.outcomes(ranks=[1])[0].exit_code == -signal.SIGKILL
        processes = ranks.processes
    assert not any(process.is_alive() for process in processes)
