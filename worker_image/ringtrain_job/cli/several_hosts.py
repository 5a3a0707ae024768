"""A run over several hosts: the launcher here, an agent on each host, and TLS between them."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.address import host_port
from ringtrain.shared.ports import HeldPorts
from ringtrain.shared.run_folder import run_folder
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.cli.certificates import SECRET_FILES, write_secrets
from ringtrain_job.cli.ending import say
from ringtrain_job.cli.hosts import Host
from ringtrain_job.cli.live_page import say_link, without_token
from ringtrain_job.cli.remote_agent import Greeting, Order, first_address
from ringtrain_job.cli.run_processes import (
    AGENT_S,
    forward_signals,
    inherited,
    level_of,
    lost_lines,
    start,
    undo_when_asked,
    wait_for,
    with_lost_lines,
)
from ringtrain_job.cli.ssh import HostDeadlines, RemoteAgent, SrunOptions, SshOptions, connect, portable
from ringtrain_job.launcher.config import LauncherConfig

# Set anew on each host: where its secrets are, and its own address.
_OF_AN_AGENT: Final = (contract.ENV_SECRET_DIR, contract.ENV_POD_IP)


@dataclass(frozen=True)
class _Run:
    """What all agents of a run have in common. `secrets`: directory with one of each role."""

    hosts: Sequence[Host]
    environment: Mapping[str, str]
    secrets: Path
    port: int
    interfaces: Sequence[str]
    level: str
    command: Sequence[str]

    def agent_environment(self, index: int, run_address: str) -> dict[str, str]:
        """Of the agent on host `index`, which reaches this machine at `run_address`."""
        host = self.hosts[index]
        return {
            **{name: value for name, value in self.environment.items() if name not in _OF_AN_AGENT},
            contract.ENV_WORKER_INDEX: str(index),
            contract.ENV_POD_NAME: f"{self.environment[contract.ENV_JOB_NAME]}-worker-{index}",
            contract.ENV_NODE_NAME: host.name,
            contract.ENV_LAUNCHER_ADDRESS: host_port(run_address, self.port),
        }

    def order(self, environment: Mapping[str, str]) -> Order:
        """What an agent on another host is told."""
        directory = self.secrets / contract.ROLE_WORKER
        return Order(
            secrets={file: (directory / file).read_text() for file in SECRET_FILES},
            environment=portable(environment),
            directory=os.getcwd(),
            interfaces=tuple(self.interfaces),
            level=self.level,
            command=tuple(self.command),
        )


def run_on_hosts(
    hosts: Sequence[Host],
    options: SshOptions | SrunOptions,
    settings: Mapping[str, str],
    command: Sequence[str],
    verbose: bool,
) -> int:
    """Run `command` on all `hosts`, with the launcher in this process's care; returns the run's exit code.

    Raises ConfigurationError, which names the host that cannot be had, before any rank is started.
    """
    with ExitStack() as stack:
        undo_when_asked(stack)
        secrets = stack.enter_context(run_folder())
        write_secrets(secrets, settings[contract.ENV_JOB_UID])
        held = HeldPorts()
        stack.callback(held.release)
        control_port, status_port = held.take(0, 2)
        environment = {
            **inherited(os.environ, settings),
            contract.ENV_NUM_WORKERS: str(len(hosts)),
            contract.ENV_SLOTS_PER_WORKER: str(hosts[0].slots),
            contract.ENV_SECRET_DIR: str(secrets / contract.ROLE_LAUNCHER),
            contract.ENV_RUN_FOLDER: str(secrets),
            contract.ENV_LAUNCHER_PORT: str(control_port),
            contract.ENV_STATUS_PORT: str(status_port),
            contract.ENV_LAUNCHER_ADDRESS: f"127.0.0.1:{control_port}",
        }
        held.share()
        level = level_of(environment, verbose)
        LauncherConfig.from_env(environment)  # of what it refuses, agents would hear by waiting for it
        config = AgentConfig.from_env(environment)
        others = [host for host in hosts if not host.is_here]
        deadlines = HostDeadlines(config.start_timeout_s, config.timeout_s, config.save_s + AGENT_S)
        reached = connect(stack, others, options, deadlines)
        run = _Run(hosts, without_token(environment), secrets, control_port, options.interfaces, level, command)
        launcher_words = ["launcher", "--log-level", level]
        launcher = start(
            stack, contract.ROLE_LAUNCHER, {**environment, contract.ENV_PORTS_HELD: "1"}, launcher_words
        )
        say_link(environment)
        agents = _start_agents(stack, run, reached)
        start_end = time.monotonic() + config.start_timeout_s
        for agent, _ in reached:
            agent.started(start_end)
        ranks = f"{config.world_size} ranks on {len(hosts)} hosts"
        signals = forward_signals(stack, lambda: launcher.send_signal(signal.SIGTERM), ranks, config.save_s)
        # An agent that was lost is missed after a quarter of the timeout; then the others are stopped.
        code = wait_for(launcher, agents, 2 * config.timeout_s + AGENT_S)
        _say_lost([agent for agent, _ in reached])
        lost = lost_lines(_ended(run)) + sum(agent.lost_lines() for agent, _ in reached)
        code = with_lost_lines(code, lost, environment[contract.ENV_LOG_DIR])
        return 128 + signals[0] if signals else code


def _start_agents(
    stack: ExitStack, run: _Run, reached: Sequence[tuple[RemoteAgent, Greeting]]
) -> "list[subprocess.Popen[bytes]]":
    others = iter(reached)
    agents = []
    for index, host in enumerate(run.hosts):
        if host.is_here:
            agents.append(_start_here(stack, run, index, _run_address(run, reached[0])))
        else:
            remote = next(others)
            remote[0].start(run.order(run.agent_environment(index, _run_address(run, remote))))
            agents.append(remote[0].process)
    return agents


def _start_here(stack: ExitStack, run: _Run, index: int, run_address: str) -> "subprocess.Popen[bytes]":
    environment = {
        **run.agent_environment(index, "127.0.0.1"),
        contract.ENV_SECRET_DIR: str(run.secrets / contract.ROLE_WORKER),
        contract.ENV_POD_IP: run_address,
        contract.ENV_TERMINATION_MESSAGE_PATH: str(_ended(run)),
    }
    return start(stack, contract.ROLE_WORKER, environment, ["agent", "--log-level", run.level, "--", *run.command])


def _ended(run: _Run) -> Path:
    """What the agent of this machine leaves when it ends."""
    return run.secrets / "ended.json"


def _run_address(run: _Run, reached: tuple[RemoteAgent, Greeting]) -> str:
    """This machine's address as another host sees it."""
    if run.interfaces:
        return first_address(run.interfaces)
    agent, greeting = reached
    if not greeting.run_address:
        raise ConfigurationError(
            f"host {agent.host.name} does not know from which address it is reached (SSH_CONNECTION is not set "
            "there); say with --network-interfaces which interface all hosts have"
        )
    return greeting.run_address


def _say_lost(agents: Sequence[RemoteAgent]) -> None:
    for agent in agents:
        code = agent.process.poll()
        if code not in (None, 0, contract.EXIT_GANG_STOPPED):
            say(f"host {agent.host.name}: its agent ended with {code}: {agent.last_words()}")
