"""Registry of ranks: a Unix socket in the agent to which each `rank_wrapper` connects."""

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
    """A rank that mpirun has started, as described by MPI's environment. `starter`: implementation of the mpirun
    that starts the ranks."""

    rank: int
    size: int
    starter: str


@dataclass(frozen=True)
class Departure:
    """End of a rank. `code`: negative for a signal. `world`: size of the world that it joined, None if it joined none.

    `library`: file name of its MPI library, if it was detected. `told`: reported by the rank's wrapper; otherwise
    mpirun has killed the wrapper, which it does to all ranks when one has failed. `asked`: mpirun sent the signal that
    ended the rank. `exec_errno`: error number if the program could not be executed, else 0.
    """

    code: int
    world: int | None = None
    library: str = ""
    told: bool = True
    asked: bool = False
    exec_errno: int = 0


class MpiRankHost(Protocol):
    """Interface of the agent for the registry. All methods except `await_begun` run on the main thread."""

    def await_begun(self) -> None:
        """Wait (not on the main thread) until ranks may start. Raises ConfigurationError after a deadline."""

    def assign(self, arrival: Arrival) -> RankAssignment:
        """Accept a rank. Raises ConfigurationError if it does not belong to this job."""

    def started(self, rank: int, pid: int) -> None:
        """Record that the rank's program runs, as a session leader."""

    def stop(self, rank: int) -> None:
        """Stop the rank at mpirun's request."""

    def ended(self, rank: int, departure: Departure) -> None:
        """Record the end of the rank's program."""


class MpiRankRegistry:
    """Server for `rank_wrapper` on the Unix socket `path`, which only this user can open."""

    def __init__(self, path: Path, main: MpiAgentMainThread, host: MpiRankHost) -> None:
        self._main = main
        self._host = host
        self._listener = MpiSocketListener(path, self._serve, "ringtrain-rank")

    def close(self) -> None:
        """Accept no more ranks."""
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
