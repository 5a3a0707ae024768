"""The process between mpirun and each rank: which processes notice a rank's end, and in which order."""

import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.deadlines import patient

from ringtrain.shared.framing import receive_message, send_message
from ringtrain_mpi.agent.children import MpiAgentMainThread
from ringtrain_mpi.agent.rank_registry import Arrival, Departure, MpiRankRegistry
from ringtrain_mpi.rank_wrapper import RankAssignment
from ringtrain_mpi.shim import write_shim

DEADLINE_S = patient(60.0)


class AgentAndManager:
    """The agent's end, by hand, and the process manager's end of PMI_FD."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(directory / "registry"))
        self._listener.listen()
        self.manager, self._rank_end = (stack.enter_context(end) for end in socket.socketpair())
        write_shim(directory / "rank", "ringtrain_mpi.rank_wrapper")

    def start(self, *program: str) -> socket.socket:
        """Return the connection of a wrapper that has received its assignment."""
        self._rank_end.set_inheritable(True)
        number = self._rank_end.fileno()
        pmi = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": str(number)}
        environment = {
            "PATH": os.environ["PATH"],
            "RINGTRAIN_MPI_REGISTRY": str(self._directory / "registry"),
            **pmi,
        }
        command = [str(self._directory / "rank"), *program]
        self.process = self._stack.enter_context(subprocess.Popen(command, env=environment, pass_fds=[number]))
        self._stack.callback(self.process.kill)
        self._rank_end.close()
        self._listener.settimeout(DEADLINE_S)
        connection = self._stack.enter_context(self._listener.accept()[0])
        connection.settimeout(DEADLINE_S)
        self.manager.settimeout(DEADLINE_S)
        hello = self.receive(connection)
        assert (hello["rank"], hello["size"], hello["starter"]) == (1, 2, "MPICH")
        with open(os.devnull, "wb") as nowhere:
            assignment = {"variables": {"ADDED": "by the agent"}, "check_in": str(self._directory / "check-in")}
            send_message(connection, assignment, [nowhere.fileno(), nowhere.fileno()])
        return connection

    def answer_init(self) -> None:
        """Answer like the process manager."""
        assert self.manager.recv(100) == b"init"
        self.manager.sendall(b".")

    @staticmethod
    def receive(connection: socket.socket) -> dict[str, Any]:
        frame = receive_message(connection)
        assert frame is not None, "the wrapper hung up"
        return frame[0]


@pytest.fixture
def registry(short_path: Path) -> Iterator[AgentAndManager]:
    with ExitStack() as stack:
        yield AgentAndManager(short_path, stack)


# What MPI_Init does, in short: say something to the manager, and wait for its answer.
INIT = "import os, signal; fd = int(os.environ['PMI_FD']); os.write(fd, b'init'); os.read(fd, 1); "


def test_the_agent_receives_a_death_before_mpirun_does(registry: AgentAndManager) -> None:
    """MPICH's manager takes a closed PMI_FD for a death and kills all ranks: it may see that only afterwards."""
    connection = registry.start(sys.executable, "-c", INIT + "os.kill(os.getpid(), signal.SIGKILL)")
    assert registry.receive(connection)["pid"] > 0
    registry.answer_init()
    ended = registry.receive(connection)
    assert (ended["code"], ended["world"]) == (-signal.SIGKILL, 2)
    registry.manager.setblocking(False)
    with pytest.raises(BlockingIOError):  # nothing yet, and not the end either
        registry.manager.recv(100)
    registry.manager.settimeout(DEADLINE_S)
    send_message(connection, {})
    assert registry.manager.recv(100) == b""
    assert registry.process.wait(DEADLINE_S) == -signal.SIGKILL


def test_an_abort_is_told_by_the_exit(registry: AgentAndManager) -> None:
    """MPI_Abort's message makes the manager kill all ranks, this one's wrapper too: it is not passed on.

    The program waits for that; the wrapper ends it, and exits with its code.
    """
    abort = "os.write(fd, b'cmd=abort exitcode=5\\n'); os.read(fd, 1)"
    connection = registry.start(sys.executable, "-c", INIT + abort)
    assert registry.receive(connection)["pid"] > 0
    registry.answer_init()
    assert registry.receive(connection)["code"] == 5
    send_message(connection, {})
    assert registry.manager.recv(100) == b""
    assert registry.process.wait(DEADLINE_S) == 5


def test_a_program_may_go_on_without_the_manager(registry: AgentAndManager) -> None:
    """Closing PMI_FD, as MPI_Finalize does, is not the end of the program."""
    connection = registry.start(sys.executable, "-c", INIT + "os.close(fd); os._exit(7)")
    assert registry.receive(connection)["pid"] > 0
    registry.answer_init()
    assert registry.receive(connection)["code"] == 7
    send_message(connection, {})
    assert registry.process.wait(DEADLINE_S) == 7


class RankHost:
    """An agent that remembers the end of its only rank."""

    def __init__(self) -> None:
        self.departed: queue.SimpleQueue[Departure] = queue.SimpleQueue()

    def await_begun(self) -> None:
        """Return at once."""

    def assign(self, arrival: Arrival) -> RankAssignment:
        files = [os.open(os.devnull, os.O_WRONLY) for _ in range(2)]
        return RankAssignment(*files, {}, "/no/check-in")

    def started(self, rank: int, pid: int) -> None:
        """Ignore the start."""

    def ended(self, rank: int, departure: Departure) -> None:
        self.departed.put(departure)


@pytest.mark.parametrize("told", [True, False], ids=["told", "killed"])
def test_a_wrapper_that_says_nothing_more_was_killed(told: bool, short_path: Path) -> None:
    """mpirun kills the wrappers of all ranks when one has failed; a wrapper whose program died reports it first."""
    host = RankHost()
    registry = MpiRankRegistry(short_path / "registry", MpiAgentMainThread(lambda work: work(), DEADLINE_S), host)
    with socket.socket(socket.AF_UNIX) as wrapper:
        wrapper.connect(str(short_path / "registry"))
        send_message(wrapper, {"rank": 0, "size": 1, "starter": "MPICH"})
        frame = receive_message(wrapper)
        for file in frame[1]:
            os.close(file)
        send_message(wrapper, {"pid": 1})
        if told:
            send_message(wrapper, {"code": -9, "world": None, "library": "", "asked": False, "execErrno": 0})
    assert host.departed.get(timeout=DEADLINE_S) == Departure(-9, told=told)
    registry.close()
