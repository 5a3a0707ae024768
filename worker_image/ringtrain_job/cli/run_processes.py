"""Processes of a run: start, stop and wait for them."""

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
from ringtrain_job.cli.ending import print_line
from ringtrain_job.launcher.config import LauncherConfig

# Functions of a plugin that take the environment of a run's launcher and return lines to print.
_STARTED: Final = "ringtrain.run.started"
_POLL_S: Final = 0.2
# Time of agents to end after a lost launcher, in addition to the grace period of ranks.
AGENT_S: Final = 30.0
EXIT_LINES_LOST: Final = 74  # EX_IOERR of sysexits.h
# Time of an agent that the launcher has released to end.
_RELEASED_S: Final = 3.0
# Variables of an outer run, elastic or over sites, that this run must not inherit.
_OF_ANOTHER_RUN: Final = frozenset(
    {
        *(contract.ENV_ELASTIC, contract.ENV_HOST_DISCOVERY_SCRIPT, contract.ENV_AGENT_SOCKET),
        *(contract.ENV_FORMATION, contract.ENV_SLOT, contract.ENV_WORKER_SITES),
    }
)


def prepare_run(stack: ExitStack, settings: Mapping[str, str], write_secrets: Callable[[Path], Path]) -> dict[str, str]:
    """Return the environment of a run's launcher. Its folder and ports are reserved until `stack` ends.

    `write_secrets`: writes the run's secrets into that folder and returns the path of the launcher's. Raises
    ConfigurationError.
    """
    _exit_on_signals(stack)
    folder = stack.enter_context(run_folder())
    held = HeldPorts()
    stack.callback(held.release)
    control_port, status_port = held.take(0, 2)
    environment = {
        **run_environment(os.environ, settings),
        contract.ENV_SECRET_DIR: str(write_secrets(folder)),
        contract.ENV_RUN_FOLDER: str(folder),
        contract.ENV_LAUNCHER_PORT: str(control_port),
        contract.ENV_STATUS_PORT: str(status_port),
        contract.ENV_LAUNCHER_ADDRESS: host_port(loopback_address(), control_port),
    }
    held.share()
    LauncherConfig.from_env(environment)  # check it now: agents would wait for a launcher that refuses it
    return environment


def run_environment(environment: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of launcher and agents: `environment` with Horovod's names translated, and `settings`.

    Raises ConfigurationError.
    """
    merged = with_counterparts({**environment, **settings})
    others = _OF_ANOTHER_RUN | ({contract.ENV_SITES} if contract.ENV_RANK in environment else set())
    return {name: value for name, value in merged.items() if name in settings or name not in others}


def level_of(environment: Mapping[str, str], verbose: bool) -> str:
    """Return the level of messages of launcher and agents; `verbose`: whether to use at least the level "info".
    Raises ConfigurationError."""
    level = log_level(contract.ENV_LOG_LEVEL, environment.get(contract.ENV_LOG_LEVEL) or "warning")
    return "info" if verbose and level != "debug" else level


def start_run_process(
    stack: ExitStack, role: str, environment: dict[str, str], words: list[str]
) -> "subprocess.Popen[bytes]":
    """Start a `ringtrain` process that ends with this one. It has a separate session, so that it gets no Ctrl-C."""
    # -P: do not import a file such as html.py of the working directory.
    command = [sys.executable, "-P", "-m", "ringtrain", *words]
    process = start_child(command, {**environment, contract.ENV_ROLE: role})
    stack.callback(end_child, process)
    return process


def start_launcher(
    stack: ExitStack, environment: Mapping[str, str], level: str, words: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """Start the launcher with additional `words` of its command line, and print the lines of plugins."""
    launcher_environment = {**environment, contract.ENV_PORTS_HELD: "1"}
    launcher = start_run_process(
        stack, contract.ROLE_LAUNCHER, launcher_environment, ["launcher", "--log-level", level, *words]
    )
    for point in entry_points(group=_STARTED):
        for line in point.load()(environment):
            print_line(line)
    return launcher


def _exit_on_signals(stack: ExitStack) -> None:
    """Exit and clean up `stack` on a signal to stop, until `forward_run_signals` is called."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    stack.enter_context(signal_handler(leave, *_stop_signals()))


def _stop_signals() -> tuple[signal.Signals, ...]:
    """Return signals that ask a run to end. SIGHUP, for a closed terminal, is included unless nohup ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))


def forward_run_signals(stack: ExitStack, launcher: "subprocess.Popen[bytes]", ranks: str, grace_s: float) -> list[int]:
    """Stop the gang through `launcher` on a signal to this process; return the list of received signals."""
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        if received and number != signal.SIGINT:  # only a second Ctrl-C is forwarded, which a person has pressed
            return
        received.append(number)
        with suppress(OSError):  # the terminal was closed
            if len(received) == 1:
                print_line(f"stopping {ranks} ({grace_s:.0f} s; press Ctrl-C again to kill them)")
            else:
                print_line(f"killing {ranks}")
        launcher.send_signal(signal.SIGINT)  # not SIGTERM, by which a launcher assumes that its pod is deleted

    stack.enter_context(signal_handler(forward, *_stop_signals()))
    return received


def wait_for_run_processes(
    launcher: "subprocess.Popen[bytes]", agents: "Sequence[subprocess.Popen[bytes]]", patience_s: float
) -> int:
    """Wait for all processes and return the launcher's exit code.

    If an agent ends before it has reached the launcher, its code may be returned instead. `patience_s`: time of the
    launcher to end after an agent has ended.
    """
    while launcher.poll() is None:
        ended = next((agent for agent in agents if agent.poll() is not None), None)
        if ended is not None:
            return _launcher_exit_code(ended.returncode, launcher, patience_s)
        time.sleep(_POLL_S)
    _end_agents(agents)
    return _process_exit_code(launcher.returncode)


def _end_agents(agents: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Wait for released agents to end; terminate the others, which never reached the launcher or have lost it."""
    if running := _running_after(agents, _RELEASED_S):
        for agent in running:
            agent.terminate()
        for agent in _running_after(running, AGENT_S):
            agent.kill()


def _running_after(agents: "Sequence[subprocess.Popen[bytes]]", within_s: float) -> "list[subprocess.Popen[bytes]]":
    """Return the agents that still run after `within_s` seconds."""
    end = time.monotonic() + within_s
    while (running := [agent for agent in agents if agent.poll() is None]) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return running


def _launcher_exit_code(agent_code: int, launcher: "subprocess.Popen[bytes]", patience_s: float) -> int:
    """Return the launcher's exit code after an agent has ended first, or the agent's if the launcher does not end.

    That is normal for a released agent. Otherwise, the launcher reports the lost worker.
    """
    try:
        return _process_exit_code(launcher.wait(patience_s))
    except subprocess.TimeoutExpired:
        launcher.terminate()
        return _process_exit_code(agent_code)


def read_lost_lines(message: Path) -> int:
    """Return the number of log lines that only the agent has printed, from its termination message."""
    try:
        return int(json.loads(message.read_bytes()).get("lostLogLines", 0))
    except (OSError, ValueError):
        return 0


def run_exit_code(code: int, lost: int, directory: str, signals: Sequence[int]) -> int:
    """Return the exit code of a run; print the number of `lost` log lines.

    `code`: exit code of ranks and launcher. `signals`: signals that the run has received.
    """
    if lost:
        print_line(
            f"{lost} log lines are not in {directory}, which could not be written; they are printed above", fg="red"
        )
    return 128 + signals[0] if signals else code or (EXIT_LINES_LOST if lost else 0)


def _process_exit_code(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


def page_settings(wanted: bool) -> dict[str, str]:
    """Return the launcher's variables for a run with a page: a new random token.

    Raises ConfigurationError if no plugin serves pages.
    """
    if wanted and not entry_points(group=_STARTED):
        raise ConfigurationError("--ui needs the plugin that serves pages: pip install 'ringtrain[page]'")
    return {contract.ENV_STATUS_TOKEN: secrets.token_hex(32)} if wanted else {}


def environment_without_token(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without the page's token, for an agent, whose ranks run the user's program."""
    return {name: value for name, value in environment.items() if name != contract.ENV_STATUS_TOKEN}
