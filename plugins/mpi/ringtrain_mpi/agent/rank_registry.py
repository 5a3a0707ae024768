"""Unix socket in the agent through which each rank's `rank_wrapper` reports its start and its end."""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ringtrain.errors import ConfigurationError
from ringtrain.shared.framing import receive_message, send_message
from ringtrain_mpi.agent.children import MpiAgentMainThread
from ringtrain_mpi.listener import MpiSocketListener
from ringtrain_mpi.rank_wrapper import RankAssignment

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arrival:
    """Report of a rank that mpirun has started, from MPI's variables. `starter`: implementation of that mpirun, such as
    OpenMPI."""

    rank: int
    size: int
    starter: str


@dataclass(frozen=True)
class Departure:
    """Report of an ended rank. `code`: exit code, negative for a signal. `world`: size of its MPI world, or None.

    `library`: file name of its MPI library, if it was detected. `told`: whether the rank's wrapper sent this
    report; if not, mpirun has killed the wrapper, as it does with all ranks when one has failed. `asked`: whether
    mpirun sent the signal that ended the rank. `exec_errno`: error number if the program could not be executed, else 0.
    """

    code: int
    world: int | None = None
    library: str = ""
    told: bool = True
    asked: bool = False
    exec_errno: int = 0


class MpiRankHost(Protocol):
    """Callbacks of the registry into the agent. All methods except `await_begun` run on the agent's main thread."""

    def await_begun(self) -> None:
        """Wait until ranks may start; not on the main thread. Raises ConfigurationError after a deadline."""

    def assign(self, arrival: Arrival) -> RankAssignment:
        """Accept a rank; return its pipes and variables. Raises ConfigurationError if it is not of this job."""

    def started(self, rank: int, pid: int) -> None:
        """Record that the rank's program has started as process `pid`, a session leader."""

    def stop(self, rank: int) -> None:
        """Stop the rank, as mpirun has requested."""

    def ended(self, rank: int, departure: Departure) -> None:
        """Record the end of the rank's program."""


class MpiRankRegistry:
    """Unix socket server at `path` to which the wrapper of each rank connects. Only this user can open it."""

    def __init__(self, path: Path, main: MpiAgentMainThread, host: MpiRankHost) -> None:
        self._main = main
        self._host = host
        self._listener = MpiSocketListener(path, self._serve, "ringtrain-rank")

    def close(self) -> None:
        """Stop accepting connections of ranks."""
        self._listener.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, TimeoutError):
            hello = receive_message(connection)
            if hello is None:
                return
            arrival = Arrival(**hello[0])
            try:
                self._host.await_begun()
                assignment = self._main.run(lambda: self._host.assign(arrival))
            except ConfigurationError as exc:
                log.error("rank %d was refused: %s", arrival.rank, exc)
                send_message(connection, {"error": str(exc)})
                return
            self._follow(connection, arrival.rank, assignment)

    def _follow(self, connection: socket.socket, rank: int, assignment: RankAssignment) -> None:
        departure = Departure(-signal.SIGKILL, told=False)
        try:
            answer = {"variables": dict(assignment.variables), "check_in": assignment.check_in}
            send_message(connection, answer, (assignment.log_fd, assignment.report_fd))
            os.close(assignment.log_fd)
            os.close(assignment.report_fd)
            if (started := receive_message(connection)) is not None:
                self._main.run(lambda: self._host.started(rank, int(started[0]["pid"])))
            while started is not None and (message := receive_message(connection)) is not None:
                if "code" in message[0]:
                    departure = _mpi_departure(message[0])
                    break
                self._main.run(lambda: self._host.stop(rank))
        finally:
            self._main.run(lambda: self._host.ended(rank, departure))
        send_message(connection, {})  # recorded: mpirun may learn of the end now


def _mpi_departure(message: Mapping[str, Any]) -> Departure:
    return Departure(
        int(message["code"]),
        message["world"],
        str(message["library"]),
        asked=bool(message["asked"]),
        exec_errno=int(message["execErrno"]),
    )
