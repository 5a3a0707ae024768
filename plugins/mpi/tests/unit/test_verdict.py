"""Outcome of an MPI attempt as a table: results of the ranks and of the command that started them."""

from dataclasses import replace

import pytest

from ringtrain_job.control.model import Outcome, RankPhase, RankState, Reason
from ringtrain_job.launcher.verdict import GangView, RankExit, VerdictPatience, WorkerView
from ringtrain_mpi.launcher.verdict import CommandEnd, DaemonEnd, decide_mpi

PATIENCE = VerdictPatience(lost_after_s=15, settle_s=2)
LOST_DAEMON = DaemonEnd("10.0.0.2", 1, "bind() failed", at=10.0)


def gang(*states: RankState, at: float = 10.0) -> GangView:
    """Two workers of two slots; ranks that are not in `states` wait. All that ended did so `at`."""
    ranks = [RankState(rank, RankPhase.WAITING) for rank in range(4)]
    for state in states:
        ranks[state.rank] = state
    exits = [RankExit(state, at) for state in states if state.phase is not RankPhase.RUNNING]
    return GangView(2, [WorkerView(index, f"job-worker-{index}", "node") for index in range(2)], ranks, exits)


def rank(number: int, phase: RankPhase, code: int | None = None, signal: str = "") -> RankState:
    return RankState(number, phase, code, signal, exit_order=number)


RUNNING = gang(*(rank(number, RankPhase.RUNNING) for number in range(4)))
SUCCEEDED = gang(*(rank(number, RankPhase.SUCCEEDED, 0) for number in range(4)))
SIGTERM = (RankPhase.FAILED, 143, "SIGTERM")
WITHOUT_WORKER = replace(RUNNING, workers=[RUNNING.workers[0], replace(RUNNING.workers[1], silent_since=9.5)])
LEAVING = replace(
    RUNNING, workers=[RUNNING.workers[0], replace(RUNNING.workers[1], leaving="SIGTERM", leaving_since=10.0)]
)
ABORTED = gang(rank(0, RankPhase.FAILED, 14), rank(1, *SIGTERM), rank(2, RankPhase.FAILED, 5), rank(3, *SIGTERM))
TERMINATED = gang(rank(0, *SIGTERM), rank(1, *SIGTERM), rank(2, RankPhase.FAILED, 5), rank(3, *SIGTERM))
STOPPED = [rank(number, RankPhase.STOPPED, 137, "SIGKILL") for number in range(4)]
KILLED = gang(*STOPPED[:3], rank(3, RankPhase.FAILED, 137, "SIGKILL"))


@pytest.mark.parametrize(
    ("view", "command", "daemon", "now"),
    [
        pytest.param(RUNNING, None, None, 10.0, id="running"),
        pytest.param(SUCCEEDED, None, None, 99.0, id="a-script-that-goes-on"),
        pytest.param(RUNNING, CommandEnd(1, 10.0), None, 11.9, id="the-ranks'-news-may-be-on-its-way"),
        pytest.param(RUNNING, None, LOST_DAEMON, 11.9, id="mpirun-may-end-by-itself"),
        pytest.param(WITHOUT_WORKER, None, None, 14.5, id="a-worker-may-come-back"),
        pytest.param(WITHOUT_WORKER, CommandEnd(255, 10.0), None, 11.9, id="and-with-it-news"),
        pytest.param(LEAVING, CommandEnd(143, 10.0), LOST_DAEMON, 10.9, id="the-launcher-may-have-to-stop-too"),
        pytest.param(ABORTED, None, None, 10.9, id="mpirun-may-know-who-began"),
        pytest.param(TERMINATED, None, None, 10.9, id="mpirun-has-stopped-all-and-may-know-why"),
        pytest.param(gang(*STOPPED), None, None, 13.9, id="mpirun-has-killed-all-and-is-about-to-end"),
    ],
)
def test_open(view: GangView, command: CommandEnd | None, daemon: DaemonEnd | None, now: float) -> None:
    """There is no verdict yet."""
    assert decide_mpi(view, command, daemon, now, PATIENCE) is None


@pytest.mark.parametrize(
    ("view", "command", "daemon", "reason", "words"),
    [
        pytest.param(KILLED, None, None, Reason.RANK_FAILED, "rank 3 was killed by SIGKILL", id="first-cause"),
        pytest.param(
            KILLED, CommandEnd(137, 10.1), LOST_DAEMON, Reason.RANK_FAILED, "rank 3", id="a-rank-comes-first"
        ),
        pytest.param(ABORTED, CommandEnd(5, 10.5), None, Reason.RANK_FAILED, "rank 2 exited with 5", id="aborted"),
        pytest.param(
            TERMINATED, CommandEnd(5, 10.5), None, Reason.RANK_FAILED, "rank 2 exited with 5", id="stopped-first",
        ),
        pytest.param(
            LEAVING, CommandEnd(143, 10.0), LOST_DAEMON, Reason.AGENT_LOST, "was stopped by SIGTERM", id="left",
        ),
        pytest.param(ABORTED, None, None, Reason.RANK_FAILED, "rank 0 exited with 14", id="mpirun-does-not-say"),
        pytest.param(
            gang(*STOPPED), CommandEnd(-9, 10.1), None, Reason.LAUNCHER_FAILED, "was killed by signal 9",
            id="mpirun-was-killed",
        ),
        pytest.param(
            gang(*STOPPED), None, None, Reason.WORLD_INCOMPLETE, "only 0 of 4", id="mpirun-does-not-end",
        ),
        pytest.param(
            RUNNING, None, LOST_DAEMON, Reason.LAUNCHER_FAILED, "daemon on 10.0.0.2 exited with 1: bind() failed",
            id="mpirun-waits-for-a-lost-daemon",
        ),
        pytest.param(
            WITHOUT_WORKER, CommandEnd(255, 10.0), LOST_DAEMON, Reason.AGENT_LOST, "worker 1 (pod job-worker-1",
            id="mpirun-ends-for-a-lost-worker",
        ),
        pytest.param(
            WITHOUT_WORKER, CommandEnd(0, 10.0), None, Reason.AGENT_LOST, "worker 1 (pod job-worker-1",
            id="mpirun-ends-well-for-a-lost-worker",
        ),
        pytest.param(
            WITHOUT_WORKER, None, LOST_DAEMON, Reason.AGENT_LOST, "worker 1 (pod job-worker-1",
            id="mpirun-waits-for-a-lost-worker",
        ),
        pytest.param(
            gang(), CommandEnd(0, 10.0), None, Reason.WORLD_INCOMPLETE, "no rank has checked in",
            id="no-ranks",
        ),
        pytest.param(
            gang(rank(0, RankPhase.SUCCEEDED, 0)), CommandEnd(0, 10.0), None, Reason.WORLD_INCOMPLETE,
            "exited with 0, but only 1 of 4 ranks succeeded; missing: 1-3. The job declares 2 workers", id="too-few",
        ),
    ],
)  # fmt: skip
def test_failed(
    view: GangView, command: CommandEnd | None, daemon: DaemonEnd | None, reason: Reason, words: str
) -> None:
    """The verdict contains the reason and a message."""
    verdict = decide_mpi(view, command, daemon, 14.5, PATIENCE)
    assert (verdict.outcome, verdict.failure.reason) == (Outcome.FAILED, reason)
    assert words in verdict.failure.message


def test_a_daemon_that_ends_before_any_rank() -> None:
    """The verdict contains mpirun's output, because the daemon may have printed nothing."""
    daemon = DaemonEnd("10.0.0.2", 1, "", at=10.0)
    verdict = decide_mpi(gang(), CommandEnd(1, 10.0, ("no such directory",)), daemon, 14.5, PATIENCE)
    assert verdict.failure.message == "mpirun's daemon on 10.0.0.2 exited with 1: it wrote no output"
    assert verdict.failure.log_tail == ("no such directory",)


def test_success_is_every_rank_and_the_command() -> None:
    verdict = decide_mpi(SUCCEEDED, CommandEnd(0, 10.0), None, 10.0, PATIENCE)
    assert (verdict.outcome, verdict.ranks_succeeded) == (Outcome.SUCCEEDED, 4)
