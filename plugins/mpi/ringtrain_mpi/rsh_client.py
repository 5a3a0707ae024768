"""`ringtrain rsh`, which mpirun runs in the place of ssh: hand host, command and streams to the launcher.

It runs once per worker, all at the same time, while the job starts: so it imports a few modules of the standard
library only, and mpirun is given a `shim` that calls `main` without the rest of the `ringtrain` command (a Python
that imports gRPC takes ten times as long to start). The launcher, which has its channels to all agents open, does
the work: see `broker`.

Exit code: the daemon's own, 128 + n when signal n ended it, 255 when there is none (as ssh has it).
"""

import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType

from ringtrain.shared.framing import receive_message, send_message

SOCKET = "RINGTRAIN_RSH_SOCKET"
# Set for an mpirun whose programs are behind the rank wrapper, as only the launcher and its shims start it.
WRAPPED = "RINGTRAIN_MPI_WRAPPED"
FAILED = 255

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

# Of ssh's and rsh's options: those with a value, and those without, that mpirun or its users are known to pass.
_WITH_VALUE = frozenset("bcDEeFIiJLlmOopQRSWw")


class Usage(Exception):
    """The arguments name no host or no command."""


def parse_rsh_arguments(arguments: list[str]) -> tuple[str, str]:
    """(host, command) from ssh's arguments; its options are for ssh and mean nothing here.

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
    # Every word may come with blanks around it (Open MPI writes " orted"): ssh joins them as they are.
    return rest[0].rpartition("@")[2], " ".join(rest[1:])


class NotStarted(Exception):
    """The launcher has no such worker, or its agent did not start the command."""


def main(arguments: list[str]) -> int:
    """Run the command on the host; see the module's text."""
    try:
        return run_rsh(arguments, is_daemon=True)
    except (Usage, NotStarted) as exc:
        print(f"ringtrain rsh: {exc}", file=sys.stderr)
        return FAILED


def run_rsh(arguments: list[str], is_daemon: bool) -> int:
    """`main`, which raises Usage and NotStarted instead of telling them. `is_daemon`: the command is mpirun's, and
    its failure the job's."""
    path = os.environ.get(SOCKET)
    if not path:
        print(
            f"ringtrain rsh: {SOCKET} is not set: mpirun runs this inside a launcher of an mpi job",
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
            with suppress(OSError):  # the daemon has ended, and the launcher has said so
                send_message(connection, {"signal": number})

        # Held back until they can be passed on: the daemon may say something before the next line is reached.
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
