"""The command `ringtrain remote-agent`, which `ringtrain run` starts on other hosts by ssh or srun.

It prints its version on stdout, reads its order from stdin, and runs an agent as long as stdin is open. When the ssh
connection or the run ends, the agent ends, and no process is left on this host.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Final

import click

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.address import interface_addresses
from ringtrain.shared.processes import (
    become_subreaper,
    end_child,
    kill_descendants,
    reap,
    run_folder,
    signal_handler,
    start_child,
)
from ringtrain_job.agent.config import LEAVE_S, AgentConfig
from ringtrain_job.cli.certificates import SECRET_FILES
from ringtrain_job.cli.run_processes import read_lost_lines

# Prefix of the greeting: a login shell may print other lines first.
GREETING: Final = "ringtrain-remote-agent "
STARTED: Final = "ringtrain-remote-agent-started"
LOST: Final = "ringtrain-remote-agent-lost "  # followed by the number of log lines that only the agent has printed
# Added to the time for ranks to end and for the agent to send their last lines.
_SPARE_S: Final = 5.0
_POLL_S: Final = 0.05
_POLL_MS: Final = 200
_MOST_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class RemoteAgentGreeting:
    """First message from another host. `run_address`: address at which that host reaches the run; "" if unknown."""

    version: str
    run_address: str


@dataclass(frozen=True)
class RemoteAgentOrder:
    """Settings of an agent on another host, sent to its stdin. `secrets`: contents by file name."""

    secrets: Mapping[str, str]
    environment: Mapping[str, str]
    directory: str
    interfaces: Sequence[str]
    level: str
    command: Sequence[str]


@click.command("remote-agent", hidden=True)
def remote_agent() -> None:
    """Read settings from stdin, and run one agent of a `ringtrain run` on this host."""
    # SLURM's variable first: a job submitted over ssh may have inherited SSH_CONNECTION.
    by_ssh = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    run_address = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or by_ssh
    print(GREETING + json.dumps(asdict(RemoteAgentGreeting(version("ringtrain"), run_address))), flush=True)
    line = sys.stdin.buffer.readline(_MOST_BYTES)
    order = RemoteAgentOrder(**json.loads(line)) if line.endswith(b"\n") else None
    if order is None:  # another host could not be reached, or the run has ended
        sys.exit(contract.EXIT_GANG_STOPPED)
    try:
        sys.exit(_run_order(order))
    except (ConfigurationError, OSError) as exc:
        click.echo(str(exc), err=True)
        sys.exit(contract.EXIT_BAD_CONFIGURATION)


def _run_order(order: RemoteAgentOrder) -> int:
    """Run an agent with the settings `order`; return its exit code. Raises ConfigurationError or OSError if it cannot
    start."""
    try:
        os.chdir(order.directory)
    except OSError as exc:
        raise ConfigurationError(
            f"cannot enter the run's working directory {order.directory} on this host "
            f"({exc.strerror}); the directory must exist on every host"
        ) from exc
    address = first_address(order.interfaces) if order.interfaces else ""
    become_subreaper()
    with run_folder() as directory:
        for name in SECRET_FILES:
            with open(os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(order.secrets[name])
        environment = {
            **os.environ,
            **order.environment,
            contract.ENV_ROLE: contract.ROLE_WORKER,
            contract.ENV_SECRET_DIR: str(directory),
            contract.ENV_RUN_FOLDER: str(directory),
            contract.ENV_TERMINATION_MESSAGE_PATH: str(directory / "ended.json"),
            **({contract.ENV_POD_IP: address} if address else {}),
        }
        grace_s = AgentConfig.from_env(environment).save_s
        words = [sys.executable, "-m", "ringtrain", "agent", "--log-level", order.level, "--", *order.command]
        # The run reads stdout, so the agent's messages go to stderr.
        agent = start_child(words, environment, stdout=sys.stderr)
        print(STARTED, flush=True)
        code = _wait_for_agent(agent, grace_s + LEAVE_S + _SPARE_S)
        print(f"{LOST}{read_lost_lines(directory / 'ended.json')}", flush=True)
        return code


def _wait_for_agent(agent: "subprocess.Popen[bytes]", patience_s: float) -> int:
    """Wait until the agent has ended; return its exit code. End it if stdin closes or a signal arrives."""
    asked, ask = os.pipe()

    def stop(_: int, __: Any) -> None:
        os.write(ask, b".")

    poll = select.poll()
    for descriptor in (asked, sys.stdin.fileno()):
        poll.register(descriptor, select.POLLIN)
    with signal_handler(stop, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        while agent.poll() is None:
            if any(descriptor == asked or not os.read(descriptor, 1 << 16) for descriptor, _ in poll.poll(_POLL_MS)):
                agent.terminate()
                end_child(agent, patience_s)
    while kill_descendants():  # processes that ranks have left to this subreaper
        reap()
        time.sleep(_POLL_S)
    return 128 - agent.returncode if agent.returncode < 0 else agent.returncode


def first_address(names: Sequence[str]) -> str:
    """Return the IPv4 address of the first network interface of `names` that has one. Raises ConfigurationError if none
    has."""
    here = interface_addresses()
    for name in names:
        if name in here:
            return here[name]
    existing = ", ".join(name for _, name in socket.if_nameindex())
    raise ConfigurationError(
        f"--network-interfaces {','.join(names)}: none of these interfaces has an IPv4 "
        f"address on this host, which has {existing}"
    )
