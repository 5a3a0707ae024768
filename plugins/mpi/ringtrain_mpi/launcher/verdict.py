"""Verdict on an MPI attempt, from the reports of its ranks and the exit of the command that started them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringtrain.errors import counted, in_ranges
from ringtrain.shared.contract import EXIT_BAD_CONFIGURATION
from ringtrain_job.control.model import Failure, Outcome, RankPhase, Reason, Verdict
from ringtrain_job.launcher.verdict import GangView, VerdictPatience, decide_verdict

NO_MPI_INIT = (
    "called MPI_Init: they communicated by other means, such as torch.distributed, or not at all. "
    "spec.mpi.requireInit: true makes that a failure; false disables this warning"
)


@dataclass(frozen=True)
class CommandEnd:
    """Exit of the launcher's command. `code`: exit code, negative for a signal; `tail`: last lines of its output. `at`:
    seconds on the launcher's monotonic clock. `not_started`: why the command could not be started; empty if it ran."""

    code: int
    at: float
    tail: Sequence[str] = ()
    not_started: str = ""


@dataclass(frozen=True)
class DaemonEnd:
    """Failure of the first of mpirun's daemons that failed.

    `code`: its exit code. `said`: its last line of output. `at`: time of the failure, in seconds of `time.monotonic`.
    """

    host: str
    code: int
    said: str
    at: float


def decide_mpi(
    view: GangView, command: CommandEnd | None, daemon: DaemonEnd | None, now: float, patience: VerdictPatience
) -> Verdict | None:
    """Return the verdict on the attempt, or None if it is undecided. `command`: exit of mpirun; None while it runs.

    Reports of ranks have precedence: an mpirun nearly always fails because of a rank.
    """
    if command is not None and command.not_started:
        return Verdict(Outcome.FAILED, command.code, 0, Failure(Reason.CANNOT_START, command.not_started))
    if command is not None and command.code > 0:
        view = replace(view, command_code=command.code)
    end = command or daemon
    if end is not None and now - end.at >= patience.settle_s:
        # mpirun notices a lost worker at once and ends (Open MPI 5 with 0): then a shorter silence suffices.
        patience = replace(patience, lost_after_s=min(patience.lost_after_s, patience.settle_s))
    verdict = decide_verdict(view, now, patience)
    if verdict is not None and verdict.outcome is not Outcome.SUCCEEDED and not _no_mpi_rank_failed(view, verdict):
        return None if command is None and _mpirun_may_know(view, verdict, now, patience) else verdict
    if command is None:
        # All ranks may have succeeded, but a script may start its next mpirun. If a daemon is lost, mpirun may wait for
        # it forever; MPICH's does.
        if daemon and now - daemon.at >= patience.settle_s:
            return _without_mpi_daemon(view, daemon)
        if verdict is not None and verdict.failure is not None and not _mpirun_just_ended(view, now, patience):
            return verdict  # mpirun has killed all ranks; it should have ended itself and become the cause
        return None
    if verdict is not None and verdict.outcome is Outcome.SUCCEEDED and command.code == 0:
        return verdict
    # Agents record the ends of ranks before mpirun learns of them; wait for their reports to arrive.
    if now - command.at < patience.settle_s:
        return None
    if daemon and all(state.phase is RankPhase.WAITING for state in view.ranks):
        return _without_mpi_daemon(view, daemon, command.tail)
    code = 128 - command.code if command.code < 0 else command.code
    if not code and all(state.phase is RankPhase.WAITING for state in view.ranks):
        code = EXIT_BAD_CONFIGURATION  # a retry would end the same way
    return Verdict(Outcome.FAILED, code or 1, view.succeeded, _mpirun_failure(view, command))


def _no_mpi_rank_failed(view: GangView, verdict: Verdict) -> bool:
    """Return whether some ranks have ended in `view` but the verdict names no failed rank, only an incomplete world."""
    return verdict.failure is not None and verdict.failure.reason is Reason.WORLD_INCOMPLETE and bool(view.exits)


def _mpirun_may_know(view: GangView, verdict: Verdict, now: float, patience: VerdictPatience) -> bool:
    """Return whether the end of mpirun may soon show that another rank failed before the reported one."""
    failure = verdict.failure
    if failure is None or failure.reason is not Reason.RANK_FAILED or failure.signal not in ("", "SIGTERM"):
        return False
    first = min(exit.at for exit in view.exits if exit.state.phase is RankPhase.FAILED)
    return now - first < patience.settle_s / 2


def _mpirun_just_ended(view: GangView, now: float, patience: VerdictPatience) -> bool:
    return now - max(exit.at for exit in view.exits) < 2 * patience.settle_s


def _without_mpi_daemon(view: GangView, daemon: DaemonEnd, tail: Sequence[str] = ()) -> Verdict:
    """Return the verdict for a failed mpirun daemon. `tail`: mpirun's last lines, which may contain the reason."""
    message = f"mpirun's daemon on {daemon.host} exited with {daemon.code}: {daemon.said or 'it wrote no output'}"
    code = daemon.code if 0 < daemon.code < 256 else 1
    return Verdict(Outcome.FAILED, code, view.succeeded, Failure(Reason.LAUNCHER_FAILED, message, log_tail=tuple(tail)))


def _mpirun_failure(view: GangView, command: CommandEnd) -> Failure:
    size = len(view.ranks)
    tail = tuple(command.tail)
    if command.code:
        how = f"was killed by signal {-command.code}" if command.code < 0 else f"exited with {command.code}"
        message = (
            f"the launcher's command {how} although no rank failed ({view.succeeded} of "
            f"{counted(size, 'rank')} succeeded)"
        )
        return Failure(Reason.LAUNCHER_FAILED, message, log_tail=tail)
    absent = [state.rank for state in view.ranks if state.phase is RankPhase.WAITING]
    if len(absent) == size:
        message = (
            "the launcher's command exited with 0, but no rank has checked in; it must "
            "start them with the mpirun that it finds in PATH"
        )
        return Failure(Reason.WORLD_INCOMPLETE, message, log_tail=tail)
    names = in_ranges(absent) if absent else "none, but some did not succeed"
    message = (
        f"the launcher's command exited with 0, but only {view.succeeded} of {counted(size, 'rank')} succeeded; "
        f"missing: {names}. The job declares {counted(len(view.workers), 'worker')} x {counted(view.slots, 'slot')}"
    )
    return Failure(Reason.WORLD_INCOMPLETE, message, rank=absent[0] if absent else None, log_tail=tail)
