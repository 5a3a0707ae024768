"""Launcher and agent processes of a `ringtrain run`: start them, stop them, wait for them."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from ringtrain.errors import ConfigurationError, counted
from ringtrain.shared import contract
from ringtrain.shared.address import host_port, loopback_address
from ringtrain.shared.horovod_variables import log_level, with_counterparts
from ringtrain.shared.plugins import entry_points_of
from ringtrain.shared.ports import HeldPorts
from ringtrain.shared.processes import end_child, run_folder, signal_handler, start_child
from ringtrain.shared.rank_settings import check_rank_settings
from ringtrain_job.cli.ending import print_line
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.open_files import allowed_open_files, open_log_limit

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


class RunStopped(BaseException):
    """A signal has stopped this run outside of `forward_run_signals`. Not an Exception: the run cleans up and exits."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number


def prepare_run(stack: ExitStack, settings: Mapping[str, str], write_secrets: Callable[[Path], Path]) -> dict[str, str]:
    """Return the environment of a run's launcher. Reserve its folder and ports until `stack` is closed.

    `write_secrets`: writes the run's secrets into that folder, and returns the path of the launcher's secrets. Raises
    ConfigurationError.
    """
    _raise_on_signals(stack)
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
    # Check it now: agents would wait for a launcher that refuses it.
    config = LauncherConfig.from_env({**environment, contract.ENV_PORTS_HELD: "1"})
    open_log_limit(config, allowed_open_files(config.open_files))
    check_rank_settings(environment)  # else each rank would end with a traceback
    return environment


def run_environment(environment: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of launcher and agents: `environment` with Horovod's variables translated, and `settings`.

    Raises ConfigurationError.
    """
    merged = with_counterparts({**environment, **settings})
    others = _OF_ANOTHER_RUN | ({contract.ENV_SITES} if contract.ENV_RANK in environment else set())
    return {name: value for name, value in merged.items() if name in settings or name not in others}


def level_of(environment: Mapping[str, str], verbose: bool) -> str:
    """Return the log level of launcher and agents. `verbose`: whether to log messages of level info too.

    Raises ConfigurationError for an unknown level.
    """
    level = log_level(contract.ENV_LOG_LEVEL, environment.get(contract.ENV_LOG_LEVEL) or "warning")
    return "info" if verbose and level != "debug" else level


def start_run_process(
    stack: ExitStack, role: str, environment: dict[str, str], words: list[str]
) -> "subprocess.Popen[bytes]":
    """Start and return a `ringtrain` process that ends with this one, in a separate session: it gets no Ctrl-C
    itself."""
    # -P: do not import a file such as html.py of the working directory.
    command = [sys.executable, "-P", "-m", "ringtrain", *words]
    process = start_child(command, {**environment, contract.ENV_ROLE: role})
    stack.callback(end_child, process)
    return process


def start_launcher(
    stack: ExitStack, environment: Mapping[str, str], level: str, words: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """Start and return the launcher, with arguments `words`, and print lines of plugins, such as the page's link."""
    launcher_environment = {**environment, contract.ENV_PORTS_HELD: "1"}
    launcher_environment.pop(contract.ENV_POD_NAME, None)  # it names the pod of the agent
    # The launcher receives a Ctrl-C only once it can stop the run (run_launcher): before, it would just end.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        launcher = start_run_process(
            stack, contract.ROLE_LAUNCHER, launcher_environment, ["launcher", "--log-level", level, *words]
        )
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for point in entry_points_of(_STARTED):
        for line in point.load()(environment):
            print_line(line)
    return launcher


def _raise_on_signals(stack: ExitStack) -> None:
    """Raise RunStopped on SIGINT, SIGTERM or SIGHUP, until `forward_run_signals` is called. `stack` cleans up."""

    def leave(number: int, _: object) -> None:
        raise RunStopped(number)

    stack.enter_context(signal_handler(leave, *_stop_signals()))


def _stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run. SIGHUP, sent when a terminal closes, is included unless nohup ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))


def forward_run_signals(stack: ExitStack, launcher: "subprocess.Popen[bytes]", ranks: str, grace_s: float) -> list[int]:
    """Stop the run through `launcher` when this process receives a signal that stops it; return a list to which
    received signals are appended."""
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        if received and number != signal.SIGINT:  # only a second Ctrl-C is forwarded, which a person has pressed
            return
        received.append(number)
        with suppress(OSError):  # the terminal was closed
            if len(received) == 1:
                again = "; press Ctrl-C again to kill them" if number == signal.SIGINT else ""
                print_line(f"stopping {ranks} ({grace_s:.0f} s{again})")
            else:
                print_line(f"killing {ranks}")
        launcher.send_signal(signal.SIGINT)  # not SIGTERM, by which a launcher assumes that its pod is deleted

    stack.enter_context(signal_handler(forward, *_stop_signals()))
    return received


def wait_for_run_processes(
    launcher: "subprocess.Popen[bytes]", agents: "Sequence[subprocess.Popen[bytes]]", patience_s: float
) -> int:
    """Wait until launcher and agents have ended; return the launcher's exit code.

    If an agent ends first, the launcher has `patience_s` seconds to end. If it does not, it is terminated, and the
    agent's exit code is returned.
    """
    while launcher.poll() is None:
        ended = next((agent for agent in agents if agent.poll() is not None), None)
        if ended is not None:
            return _launcher_exit_code(ended.returncode, launcher, patience_s)
        time.sleep(_POLL_S)
    _end_agents(agents)
    return _process_exit_code(launcher.returncode)


def _end_agents(agents: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Wait for the end of agents that the launcher has released; terminate all others."""
    if running := _running_after(agents, _RELEASED_S):
        for agent in running:
            agent.terminate()
        for agent in _running_after(running, AGENT_S):
            agent.kill()


def _running_after(agents: "Sequence[subprocess.Popen[bytes]]", within_s: float) -> "list[subprocess.Popen[bytes]]":
    """Wait up to `within_s` for agents to end; return those that are still running."""
    end = time.monotonic() + within_s
    while (running := [agent for agent in agents if agent.poll() is None]) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return running


def _launcher_exit_code(agent_code: int, launcher: "subprocess.Popen[bytes]", patience_s: float) -> int:
    """Return the exit code of a run whose agent has ended first: the launcher's code or, if the launcher does not end
    within `patience_s`, the agent's code.

    An agent that the launcher has released normally ends before the launcher. If any other agent ends first, the
    launcher reports the lost worker.
    """
    try:
        return _process_exit_code(launcher.wait(patience_s))
    except subprocess.TimeoutExpired:
        launcher.terminate()
        return _process_exit_code(agent_code)


def read_lost_lines(message: Path) -> int:
    """Return how many log lines only the agent has printed, from the agent's termination message."""
    try:
        return int(json.loads(message.read_bytes()).get("lostLogLines", 0))
    except (OSError, ValueError):
        return 0


def run_exit_code(code: int, lost: int, directory: str, signals: Sequence[int]) -> int:
    """Return the exit code of a run. Print a warning if `lost` log lines could not be stored.

    `code`: exit code of ranks and launcher. `signals`: signals that the run has received.
    """
    if lost:
        print_line(f"{counted(lost, 'log line')} could not be written to {directory}; see above", fg="red")
    return 128 + signals[0] if signals else code or (EXIT_LINES_LOST if lost else 0)


def _process_exit_code(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


def page_settings(wanted: bool) -> dict[str, str]:
    """Return environment variables that make the launcher serve the run's HTML page, namely a new random token.

    `wanted`: whether to serve the page; if False, return no variables. Raises ConfigurationError if no plugin serves
    pages.
    """
    if wanted and not entry_points_of(_STARTED):
        raise ConfigurationError("--ui needs the plugin that serves pages: pip install 'ringtrain[page]'")
    return {contract.ENV_STATUS_TOKEN: secrets.token_hex(32)} if wanted else {}


def environment_without_token(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without the page's token, so that the user's program does not see it."""
    return {name: value for name, value in environment.items() if name != contract.ENV_STATUS_TOKEN}
