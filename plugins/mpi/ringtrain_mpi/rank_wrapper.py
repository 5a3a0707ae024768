"""Program that mpirun starts in place of each rank: it runs the rank's program and reports start and end to the agent.

In this way the ranks themselves confirm the size of the world, their output is logged by rank without mpirun, and a
program that never calls MPI_Init is detected. Like `rsh_client` this module imports little, so that it starts fast.

MPI_Init is detected as follows:

* Open MPI: with its parameter mpi_show_mca_params_file, rank 0 writes a file in MPI_Init. If the user sets that
  parameter, the call is not detected.
* MPICH, Intel MPI: MPI_Init first contacts the process manager on PMI_FD, which this wrapper relays.
* `ringtrain.init()` writes the same file if it takes its world from MPI's environment.
"""

import contextlib
import errno
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ringtrain.shared.framing import receive_message, send_message

REGISTRY = "RINGTRAIN_MPI_REGISTRY"
CHECK_IN = "RINGTRAIN_MPI_CHECK_IN"
REPORT_FD = "RINGTRAIN_REPORT_FD"
# Set by agent/worker.py. The second is the value to which LD_PRELOAD is reset for the rank's program.
NODE_NAME, OWN_PRELOAD = "RINGTRAIN_MPI_NODE_NAME", "RINGTRAIN_MPI_OWN_PRELOAD"

# Marks processes that the agent ends with the daemon. The rank's program is stopped like other ranks instead.
DAEMON = "RINGTRAIN_MPI_DAEMON"

# Parameter of Open MPI with which MPI_Init is detected.
_SHOW_PARAMETERS = "OMPI_MCA_mpi_show_mca_params"
_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_TOTAL = re.compile(rb"ringtrain: world of (\d+)")
_LIBRARY = re.compile(rb"libmpi(?:ch)?\.so\.\d+")
_OF_MPICH = re.compile(r"libmpich|libmpi\.so\.12$")
_ABORT = re.compile(rb"cmd=abort exitcode=(-?\d+)")
_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 5.0
_EXEC_FAILED, _NOT_EXECUTABLE = 127, 126  # same codes as a shell


@dataclass(frozen=True)
class RankAssignment:
    """Answer of the agent to a rank's wrapper: pipes for log lines and reports, the rank's variables, and the path
    of its check-in file."""

    log_fd: int
    report_fd: int
    variables: Mapping[str, str]
    check_in: str


def main(program: list[str]) -> int:
    """Run `program` as the rank that MPI's variables name; return its exit code."""
    rank, size = _first_mpi_variable(_RANK), _first_mpi_variable(_SIZE)
    registry = os.environ.get(REGISTRY)
    if rank is None or size is None or not registry or not program:
        print(
            "ringtrain mpi-rank: only mpirun, in a worker of an mpi job, may start this program",
            file=sys.stderr,
        )
        return _EXEC_FAILED
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(registry)
        send_message(connection, {"rank": rank, "size": size, "starter": _mpi_rank_starter()})
        assigned = _receive_assignment(connection)
        if assigned is None:
            return _EXEC_FAILED
        child = _MpiRankProgram(program, rank, assigned)
        send_message(connection, {"pid": child.pid})
        code = child.wait(lambda: send_message(connection, {"stop": True}))
        ended = {
            "code": code,
            "world": child.world(size),
            "library": child.library,
            "asked": child.is_stop_requested(code),
            "execErrno": child.exec_errno(),
        }
        send_message(connection, ended)
        receive_message(connection)  # the agent has recorded the end: mpirun may learn of it now
    if code < 0:
        _die_like_mpi_rank(-code)
    return code if code >= 0 else 128 - code


def _first_mpi_variable(names: tuple[str, ...]) -> int | None:
    for name in names:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return None


def _mpi_rank_starter() -> str:
    """Return the implementation of the mpirun that started this process, as a value of `spec.mpi.implementation`."""
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        return "OpenMPI"
    return "Intel" if "I_MPI_INFO_NP" in os.environ else "MPICH"


def _receive_assignment(connection: socket.socket) -> RankAssignment | None:
    answer = receive_message(connection)
    if answer is None:
        print("ringtrain mpi-rank: the worker's agent closed the connection", file=sys.stderr)
        return None
    message, files = answer
    if "error" in message:
        print(f"ringtrain mpi-rank: {message['error']}", file=sys.stderr)
        return None
    log_fd, report_fd = files
    os.set_inheritable(report_fd, True)
    variables = {**message["variables"], REPORT_FD: str(report_fd)}
    return RankAssignment(log_fd, report_fd, variables, message["check_in"])


class _MpiRankProgram:
    """The rank's program as a child process, and what the wrapper detects of it: MPI library, world, stop requests."""

    def __init__(self, program: list[str], rank: int, assigned: RankAssignment) -> None:
        self._program = program
        self._rank = rank
        self._check_in = assigned.check_in
        self._relay = _MpiPmiRelay.between_rank_and_manager()
        self._library = ""
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        environment = {**os.environ, **assigned.variables, **_watching_mpi_rank(assigned.check_in)}
        for own in (REGISTRY, DAEMON):
            environment.pop(own, None)
        # The program must see the real host name: undo the preload for mpirun's daemon.
        environment.pop(NODE_NAME, None)
        if OWN_PRELOAD in environment:
            environment["LD_PRELOAD"] = environment.pop(OWN_PRELOAD)  # an empty value has no effect
        if self._relay:
            environment["PMI_FD"] = str(self._relay.rank_end.fileno())
        self._exec_failure, exec_failed = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            _become_mpi_rank(program, environment, assigned, exec_failed)
        os.close(exec_failed)
        for file in (assigned.log_fd, assigned.report_fd):
            os.close(file)
        if self._relay:
            self._relay.rank_end.close()
        self._asked = self._passed_on = False
        for number in _STOPPING:
            signal.signal(number, lambda *_: self._note_request())
        for number in _FORWARDED:
            signal.signal(number, lambda number, _: _kill_mpi_rank(self.pid, number))

    def _note_request(self) -> None:
        self._asked = True

    def exec_errno(self) -> int:
        """Return the errno of exec if the program could not be executed, else 0."""
        return int(os.read(self._exec_failure, 16) or 0)

    def is_stop_requested(self, code: int) -> bool:
        """Return whether mpirun has sent a stop signal and `code` is an exit by such a signal."""
        return self._asked and -code in _STOPPING

    def wait(self, stop: Callable[[], None]) -> int:
        """Wait until the program ends; return its exit code, negative for a signal. Meanwhile, relay PMI messages and
        detect the MPI library that it loads.

        `stop`: called when mpirun requests the end of the rank; it makes the agent stop the rank.
        """
        patience = _FIRST_LOOK_S
        while True:
            if self._asked and not self._passed_on:
                self._passed_on = True
                with contextlib.suppress(OSError):  # the agent has ended, and this wrapper ends soon
                    stop()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            aborted = self._relay.aborted if self._relay else 0
            if pid:
                return aborted or os.waitstatus_to_exitcode(status)
            if aborted:
                _kill_mpi_rank(self.pid, signal.SIGKILL)
            sources: dict[int, Callable[[], None]] = {self._woken: lambda: _drain_pmi(self._woken)}
            if self._relay:
                sources.update(self._relay.sources())
            ready, _, _ = select.select(list(sources), [], [], None if self._library else patience)
            for file in ready:
                sources[file]()
            if not ready:
                self._library = _mapped_library(self.pid)
                patience = min(2 * patience, _LAST_LOOK_S)

    def world(self, size: int) -> int | None:
        """Return the size of the MPI world that the program joined, as far as detectable; None if it joined none.

        `size`: size of the world that mpirun has created.
        """
        with contextlib.suppress(OSError), open(self._check_in, "rb") as file:
            found = _TOTAL.match(file.read())
            if found:
                return int(found.group(1))
            # Written by Open MPI's rank 0 of a world. If another rank wrote it, that rank was alone in a world of one.
            return size if self._rank == 0 else 1
        # the user has set this parameter
        is_shown = _mpi_rank_starter() == "OpenMPI" and _SHOW_PARAMETERS in os.environ
        if is_shown and not _OF_MPICH.match(self.library):
            return size  # not detectable, so assume it
        return size if self._relay and self._relay.used else None

    @property
    def library(self) -> str:
        """File name of the MPI library that the program uses; empty if none was detected."""
        return self._library or _linked_library(self._program[0])


class _MpiPmiRelay:
    """Relay between the rank and MPICH's process manager (PMI_FD). `used`: whether the rank has sent data.

    `aborted`: exit code that the rank passed to MPI_Abort. The relay does not forward it, because the manager would
    kill all wrappers before the agent learns which rank began. The wrapper ends the rank, and itself with that code.
    """

    def __init__(self, manager: socket.socket) -> None:
        self._manager = manager
        self._own, self.rank_end = socket.socketpair()
        os.set_inheritable(self.rank_end.fileno(), True)
        self._open = True
        self.used = False
        self.aborted = 0

    @classmethod
    def between_rank_and_manager(cls) -> "_MpiPmiRelay | None":
        """Return a relay for the file descriptor PMI_FD; None if the variable is not set, as with Open MPI."""
        number = os.environ.get("PMI_FD", "")
        if not number.isdecimal():
            return None
        os.set_inheritable(int(number), False)
        return cls(socket.socket(fileno=int(number)))

    def sources(self) -> dict[int, Callable[[], None]]:
        """Return the callbacks to run when a file descriptor becomes readable, by descriptor."""
        if not self._open:
            return {}
        return {self._own.fileno(): self._from_rank, self._manager.fileno(): self._from_manager}

    def _from_rank(self) -> None:
        self.used |= self._pass(self._own, self._manager)

    def _from_manager(self) -> None:
        self._pass(self._manager, self._own)

    def _pass(self, source: socket.socket, target: socket.socket) -> bool:
        try:
            data = source.recv(65536)
            abort = _ABORT.search(data) if source is self._own else None
            if abort:
                self.aborted = int(abort.group(1)) % 256 or 1
            target.sendall(data[: abort.start()] if abort else data)
        except OSError:
            data = b""
        if not data:
            # The rank learns that the manager has ended. The manager learns of the rank's end only from the end of this
            # process, after the agent: it then kills the other ranks, whose ends must not be reported first.
            self._open = False
            self._own.close()
        return bool(data)


def _watching_mpi_rank(check_in: str) -> dict[str, str]:
    """Return variables with which Open MPI's MPI_Init and `ringtrain.init()` write the file `check_in`."""
    variables = {CHECK_IN: check_in}
    if _mpi_rank_starter() == "OpenMPI" and _SHOW_PARAMETERS not in os.environ:
        # "enviro": only parameters set in the environment, so that little is written.
        variables[_SHOW_PARAMETERS] = "enviro"
        variables[f"{_SHOW_PARAMETERS}_file"] = check_in
    return variables


def _become_mpi_rank(
    program: list[str], environment: dict[str, str], assigned: RankAssignment, exec_failed: int
) -> None:
    """Execute the program in the forked child; if that fails, write errno to `exec_failed` and exit."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; the program must not inherit that
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    os.dup2(assigned.log_fd, 1)
    os.dup2(assigned.log_fd, 2)
    try:
        os.execvpe(program[0], program, environment)
    except OSError as exc:
        os.write(2, f"{program[0]}: {exc.strerror}\n".encode())
        os.write(exec_failed, str(exc.errno).encode())
        os._exit(_EXEC_FAILED if exc.errno == errno.ENOENT else _NOT_EXECUTABLE)


def _kill_mpi_rank(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _drain_pmi(file: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(file, 512):
            pass


def _mapped_library(pid: int) -> str:
    """Return the MPI library that process `pid` or a descendant has loaded; empty if none."""
    pids = [pid]
    for one in pids:
        with contextlib.suppress(OSError):
            with open(f"/proc/{one}/maps", "rb") as maps:
                found = _LIBRARY.search(maps.read())
            if found:
                return found.group().decode()
            with open(f"/proc/{one}/task/{one}/children") as children:
                pids.extend(int(child) for child in children.read().split())
    return ""


def _linked_library(program: str) -> str:
    """Return the MPI library named in the executable file `program`; empty for a script."""
    for folder in ("", *os.get_exec_path()):
        with contextlib.suppress(OSError), open(os.path.join(folder, program), "rb") as file:
            found = _LIBRARY.search(file.read())
            return found.group().decode() if found else ""
    return ""


def _die_like_mpi_rank(number: int) -> None:
    """End this process by the signal that ended the rank's program, so that mpirun reports that signal."""
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
