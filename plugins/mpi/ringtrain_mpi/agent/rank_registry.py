"""Where `rank_wrapper` reports: a Unix socket in the agent, one rank a connection."""

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
    """A rank that mpirun has started, by MPI's environment. `starter`: whose mpirun it was."""

    rank: int
    size: int
    starter: str


@dataclass(frozen=True)
class Departure:
    """End of a rank. `code`: negative for a signal. `world`: size of the world it joined, None for none.

    `library`: file name of the MPI library that it was seen to use, as far as that was seen. `told`: by the rank's
    wrapper; else mpirun has killed that, which it does to all ranks when one has failed. `asked`: mpirun sent the
    signal that ended the rank. `exec_errno`: the error number if the program could not be executed, else 0.
    """

    code: int
    world: int | None = None
    library: str = ""
    told: bool = True
    asked: bool = False
    exec_errno: int = 0


class MpiRankHost(Protocol):
    """The agent, which is asked in its main thread."""

    def await_begun(self) -> None:
        """Wait (not in the main thread) until ranks can be taken. ConfigurationError: too long."""

    def assign(self, arrival: Arrival) -> RankAssignment:
        """Take in a rank. ConfigurationError: it is none of this job's."""

    def started(self, rank: int, pid: int) -> None:
        """The rank's program runs, as the leader of a session of its own."""

    def stop(self, rank: int) -> None:
        """mpirun asks the rank to end."""

    def ended(self, rank: int, departure: Departure) -> None:
        """The rank's program has ended."""


class MpiRankRegistry:
    """Serves `rank_wrapper` on the Unix socket `path`, which only this user can reach."""

    def __init__(self, path: Path, main: MpiAgentMainThread, host: MpiRankHost) -> None:
        self._main = main
        self._host = host
        self._listener = MpiSocketListener(path, self._serve, "ringtrain-rank")

    def close(self) -> None:
        """Take no more ranks."""
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
                log.error("rank %d was not taken: %s", arrival.rank, exc)
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
        send_message(connection, {})  # noted: now mpirun may know


def _mpi_departure(message: Mapping[str, Any]) -> Departure:
    return Departure(
        int(message["code"]),
        message["world"],
        str(message["library"]),
        asked=bool(message["asked"]),
        exec_errno=int(message["execErrno"]),
    )
