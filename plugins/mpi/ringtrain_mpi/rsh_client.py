"""`ringtrain rsh`, which mpirun runs instead of ssh: sends host, command and its streams to the launcher.

It runs once per worker, all at the same time, while the job starts. Therefore it imports only a few modules of the
standard library, and mpirun gets a `shim` that calls `main` without the rest of the `ringtrain` command (importing gRPC
takes ten times as long). The launcher, which has open channels to all agents, does the work: see `broker`.

Exit code: the daemon's own, 128 + n if signal n ended it, 255 if there is none (like ssh).
"""

import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType

from ringtrain.shared.framing import receive_message, send_message

SOCKET = "RINGTRAIN_RSH_SOCKET"
# Set for an mpirun whose programs run in the rank wrapper; only the launcher and its shims start it so.
WRAPPED = "RINGTRAIN_MPI_WRAPPED"
FAILED = 255

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

# Options of ssh and rsh with a value that mpirun or users pass.
_WITH_VALUE = frozenset("bcDEeFIiJLlmOopQRSWw")


class Usage(Exception):
    """Error in the arguments of `ringtrain rsh`: no host or no command."""


def parse_rsh_arguments(arguments: list[str]) -> tuple[str, str]:
    """Return (host, command) from arguments in ssh's form; ssh's options are ignored.

    The command's words are joined with blanks and meant for a shell, as with ssh. Raises Usage.
    """
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        if option[1:] in _WITH_VALUE and rest:
            rest.pop(0)
    if len(rest) < 2:
        raise Usage("usage: ringtrain rsh [ssh options] HOST COMMAND...")
    # Words may have blanks around them (Open MPI writes " orted"); ssh joins them unchanged.
    return rest[0].rpartition("@")[2], " ".join(rest[1:])


class NotStarted(Exception):
    """The launcher does not know the host, or the worker's agent did not start the command or was lost."""


def main(arguments: list[str]) -> int:
    """Run a command on a worker, as `ringtrain rsh` does; return its exit code. Errors are printed."""
    try:
        return run_rsh(arguments, is_daemon=True)
    except (Usage, NotStarted) as exc:
        print(f"ringtrain rsh: {exc}", file=sys.stderr)
        return FAILED


def run_rsh(arguments: list[str], is_daemon: bool) -> int:
    """Run a command on a worker; return the command's exit code. `is_daemon`: whether mpirun calls this; then the job
    fails if the command fails. Raises Usage for invalid arguments, NotStarted if the worker does not start the command.
    """
    path = os.environ.get(SOCKET)
    if not path:
        print(
            f"ringtrain rsh: {SOCKET} is not set; only mpirun in the launcher of an mpi job may run this command",
            file=sys.stderr,
        )
        return FAILED
    host, command = parse_rsh_arguments(arguments)
    try:
        order = {"host": host, "command": command, "is_daemon": is_daemon, "wrapped": WRAPPED in os.environ}
        return _run_rsh_order(path, order)
    except OSError as exc:
        print(f"ringtrain rsh: the launcher at {path} does not answer: {exc}", file=sys.stderr)
    return FAILED


def _run_rsh_order(path: str, order: dict[str, object]) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)

        def forward(number: int, _: FrameType | None) -> None:
            with suppress(OSError):  # the daemon has ended, and the launcher has reported it
                send_message(connection, {"signal": number})

        # Block signals until they can be forwarded: one may arrive before the handlers are installed.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        send_message(connection, order, (0, 1, 2))
        for number in _FORWARDED:
            signal.signal(number, forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        answer = receive_message(connection)
    if answer is None:
        print(f"ringtrain rsh: the launcher ended before the daemon on {order['host']} did", file=sys.stderr)
        return FAILED
    message = answer[0]
    if message.get("error"):
        raise NotStarted(f"{order['host']}: {message['error']}")
    return int(message["exit_code"])
