"""The processes of a run: how they are started, stopped and waited for, and the link to the page of one."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.address import host_port, loopback_address
from ringtrain.shared.horovod_variables import log_level, with_counterparts
from ringtrain.shared.ports import HeldPorts
from ringtrain.shared.processes import end_child, run_folder, signal_handler, start_child
from ringtrain_job.cli.ending import say_ending_line
from ringtrain_job.launcher.config import LauncherConfig

# Functions of a plugin that take the environment of a run's launcher and return lines to print.
_STARTED: Final = "ringtrain.run.started"
_POLL_S: Final = 0.2
# The launcher is gone: its agents have their own deadlines, and this long beyond a rank's grace to keep them.
AGENT_S: Final = 30.0
EXIT_LINES_LOST: Final = 74  # EX_IOERR of sysexits.h
# How long an agent that the launcher has released takes to end.
_RELEASED_S: Final = 3.0
# What this process must not hand on when it is itself a rank of a run, elastic or over sites.
_OF_ANOTHER_RUN: Final = frozenset(
    {
        *(contract.ENV_ELASTIC, contract.ENV_HOST_DISCOVERY_SCRIPT, contract.ENV_AGENT_SOCKET),
        *(contract.ENV_FORMATION, contract.ENV_SLOT, contract.ENV_WORKER_SITES),
    }
)


def prepare_run(stack: ExitStack, settings: Mapping[str, str], write_secrets: Callable[[Path], Path]) -> dict[str, str]:
    """The environment of a run's launcher, whose folder and ports are held until `stack` ends.

    `write_secrets`: puts the run's secrets into that folder, and returns where the launcher's are. Raises
    ConfigurationError.
    """
    _undo_when_asked(stack)
    folder = stack.enter_context(run_folder())
    held = HeldPorts()
    stack.callback(held.release)
    control_port, status_port = held.take(0, 2)
    environment = {
        **run_environment_inherited(os.environ, settings),
        contract.ENV_SECRET_DIR: str(write_secrets(folder)),
        contract.ENV_RUN_FOLDER: str(folder),
        contract.ENV_LAUNCHER_PORT: str(control_port),
        contract.ENV_STATUS_PORT: str(status_port),
        contract.ENV_LAUNCHER_ADDRESS: host_port(loopback_address(), control_port),
    }
    held.share()
    LauncherConfig.from_env(environment)  # of what it refuses, agents would hear by waiting for it
    return environment


def run_environment_inherited(environment: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """What launcher and agents get: this process's `environment`, Horovod's names translated, and `settings`.

    Raises ConfigurationError.
    """
    merged = with_counterparts({**environment, **settings})
    others = _OF_ANOTHER_RUN | ({contract.ENV_SITES} if contract.ENV_RANK in environment else set())
    return {name: value for name, value in merged.items() if name in settings or name not in others}


def level_of(environment: Mapping[str, str], verbose: bool) -> str:
    """From which level on launcher and agents say what they do; `verbose`: "info" at the least.

    Raises ConfigurationError.
    """
    level = log_level(contract.ENV_LOG_LEVEL, environment.get(contract.ENV_LOG_LEVEL) or "warning")
    return "info" if verbose and level != "debug" else level


def start_run_process(
    stack: ExitStack, role: str, environment: dict[str, str], words: list[str]
) -> "subprocess.Popen[bytes]":
    """A `ringtrain` process that ends when this one does. In a session of its own: Ctrl-C is ours to pass on."""
    # -P: a file such as html.py in this directory is the program's, and no module of ours.
    command = [sys.executable, "-P", "-m", "ringtrain", *words]
    process = start_child(command, {**environment, contract.ENV_ROLE: role})
    stack.callback(end_child, process)
    return process


def start_launcher(
    stack: ExitStack, environment: Mapping[str, str], level: str, words: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """The launcher, with further `words` of its command line; what plugins say of a run that starts is printed."""
    told = {**environment, contract.ENV_PORTS_HELD: "1"}
    launcher = start_run_process(stack, contract.ROLE_LAUNCHER, told, ["launcher", "--log-level", level, *words])
    for point in entry_points(group=_STARTED):
        for line in point.load()(environment):
            say_ending_line(line)
    return launcher


def _undo_when_asked(stack: ExitStack) -> None:
    """Until `forward_run_signals` is called a signal that asks this run to end undoes what is on `stack`."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    stack.enter_context(signal_handler(leave, *_stop_requests()))


def _stop_requests() -> tuple[signal.Signals, ...]:
    """Signals that ask a run to end; SIGHUP, of a terminal that was closed, unless nohup has it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))


def forward_run_signals(stack: ExitStack, launcher: "subprocess.Popen[bytes]", ranks: str, grace_s: float) -> list[int]:
    """Have `launcher` stop the gang when this process gets a signal; return the list that collects signals."""
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        if received and number != signal.SIGINT:  # only a person asks again, by Ctrl-C
            return
        received.append(number)
        with suppress(OSError):  # the terminal was closed
            if len(received) == 1:
                say_ending_line(f"stopping {ranks} ({grace_s:.0f} s; press Ctrl-C again to kill them)")
            else:
                say_ending_line(f"killing {ranks}")
        launcher.send_signal(signal.SIGINT)  # SIGTERM tells a launcher that its pod goes

    stack.enter_context(signal_handler(forward, *_stop_requests()))
    return received


def wait_for_run_processes(
    launcher: "subprocess.Popen[bytes]", agents: "Sequence[subprocess.Popen[bytes]]", patience_s: float
) -> int:
    """Wait for all; the launcher's code counts, unless an agent ended before the launcher could know of it.

    `patience_s`: how long the launcher may take to end once an agent has.
    """
    while launcher.poll() is None:
        ended = next((agent for agent in agents if agent.poll() is not None), None)
        if ended is not None:
            return _wait_after(ended.returncode, launcher, patience_s)
        time.sleep(_POLL_S)
    _end_agents(agents)
    return _process_exit_code(launcher.returncode)


def _end_agents(agents: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Those that the launcher has released end by themselves. One that never reached it is told, as are the others
    of a launcher that was killed: none comes in its place."""
    if still := _not_ended(agents, _RELEASED_S):
        for agent in still:
            agent.terminate()
        for agent in _not_ended(still, AGENT_S):
            agent.kill()


def _not_ended(agents: "Sequence[subprocess.Popen[bytes]]", within_s: float) -> "list[subprocess.Popen[bytes]]":
    end = time.monotonic() + within_s
    while (still := [agent for agent in agents if agent.poll() is None]) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return still


def _wait_after(agent_code: int, launcher: "subprocess.Popen[bytes]", patience_s: float) -> int:
    """An agent has ended first. That is in order when it was released; else the launcher names what was lost."""
    try:
        return _process_exit_code(launcher.wait(patience_s))
    except subprocess.TimeoutExpired:
        launcher.terminate()
        return _process_exit_code(agent_code)


def run_lost_lines(message: Path) -> int:
    """How many lines an agent had to print itself, by what it left when it ended."""
    try:
        return int(json.loads(message.read_bytes()).get("lostLogLines", 0))
    except (OSError, ValueError):
        return 0


def run_exit_code(code: int, lost: int, directory: str, signals: Sequence[int]) -> int:
    """Say how many log lines are `lost`; return the exit code of a run whose ranks and launcher left `code`, and
    which got these `signals`."""
    if lost:
        say_ending_line(
            f"{lost} log lines are not in {directory}, which could not be written; they stand above", fg="red"
        )
    return 128 + signals[0] if signals else code or (EXIT_LINES_LOST if lost else 0)


def _process_exit_code(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


def page_settings(wanted: bool) -> dict[str, str]:
    """Return the launcher's variables for a run whose page is wanted: a token that nobody else has.

    Raises ConfigurationError if no plugin serves pages.
    """
    if wanted and not entry_points(group=_STARTED):
        raise ConfigurationError("--ui needs the plugin that serves pages: pip install 'ringtrain[page]'")
    return {contract.ENV_STATUS_TOKEN: secrets.token_hex(32)} if wanted else {}


def environment_without_token(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for an agent, whose ranks are the user's program."""
    return {name: value for name, value in environment.items() if name != contract.ENV_STATUS_TOKEN}
