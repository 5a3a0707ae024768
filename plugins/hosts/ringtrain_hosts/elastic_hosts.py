"""Agents of an elastic run on its hosts: the launcher starts one when a host joins and ends the agent when the host
leaves."""

import json
import logging
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.address import loopback_address
from ringtrain.shared.hosts import LOCAL, Host
from ringtrain_hosts.discovery import DiscoveredHosts
from ringtrain_hosts.several_hosts import prepare_hosts
from ringtrain_hosts.ssh import HereOptions, HostDeadlines, SshAgentOrders, SshOptions, SshRemoteAgent
from ringtrain_hosts.table import AgentEnd, HostControl, HostCoolDown
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.cli.run_processes import (
    AGENT_S,
    environment_without_token,
    forward_run_signals,
    level_of,
    read_lost_lines,
    run_exit_code,
    start_launcher,
    wait_for_run_processes,
)

log = logging.getLogger(__name__)

# Time of a host to load Python and ringtrain, perhaps from a file server.
_ANSWER_S: Final = 60.0
# Short, because the other hosts wait for one that does not answer.
_CONNECT_S: Final = 10.0
# Time to wait for another host to report the address at which it reaches this machine.
_ADDRESS_S: Final = 10.0
_POLL_S: Final = 0.1
# Time of an agent that the launcher has released to end.
_RELEASED_S: Final = 3.0
_LOST_FILE: Final = "ended.json"


@dataclass(frozen=True)
class ChangingHosts:
    """Settings for an elastic run whose hosts may change.

    `workers`: maximum number of hosts, each with `slots` for ranks. `cooldown`: backoff for failed hosts. `sites`:
    names by host, if any.
    """

    workers: int
    slots: int
    ssh: SshOptions
    cooldown: HostCoolDown
    sites: Mapping[str, str] = field(default_factory=dict)


def run_on_changing_hosts(
    hosts: ChangingHosts, settings: Mapping[str, str], command: Sequence[str], verbose: bool, words: Sequence[str]
) -> int:
    """Run `command` as an elastic run on the hosts that its discovery script lists; return its exit code.

    `settings`: environment variables of launcher and agents. `verbose`: whether to log messages of level info too.
    `words`: additional arguments of the launcher. Raises ConfigurationError before any rank is started.
    """
    if shutil.which("ssh") is None:
        raise ConfigurationError(
            "the run uses other hosts and needs ssh on this machine; install it (apt install openssh-client)"
        )
    with ExitStack() as stack:
        environment = prepare_hosts(stack, settings, hosts.workers, hosts.slots)
        level = level_of(environment, verbose)
        folder = Path(environment[contract.ENV_RUN_FOLDER])
        plan = {
            "ssh": asdict(hosts.ssh),
            "cooldown": asdict(hosts.cooldown),
            "sites": dict(hosts.sites),
            "level": level,
            "command": [*command],
        }
        (folder / "hosts.json").write_text(json.dumps(plan))
        launcher = start_launcher(stack, environment, level, ["--hosts", f"{folder / 'hosts.json'}", *words])
        grace_s = AgentConfig.from_env(environment).save_s
        signals = forward_run_signals(stack, launcher, "ranks on all hosts", grace_s)
        code = wait_for_run_processes(launcher, [], AGENT_S)
        return run_exit_code(code, read_lost_lines(folder / _LOST_FILE), environment[contract.ENV_LOG_DIR], signals)


@contextmanager
def open_run_hosts(path: str | None, environment: Mapping[str, str], slots_per_host: int) -> Iterator[DiscoveredHosts]:
    """Open the hosts of an elastic run for its launcher; end the agents on other hosts at the end.

    `path`: file with the settings for other hosts; None if the run uses this machine only. `environment`: variables of
    the launcher. `slots_per_host`: slots of a host that is listed without a number.
    """
    if path is None:
        yield DiscoveredHosts(HostControl(slots_per_host=slots_per_host))
        return
    plan = read_hosts_plan(path)
    agents = SshHostAgents(plan, environment)
    try:
        yield DiscoveredHosts(HostControl(agents, slots_per_host, plan["sites"]))
    finally:
        agents.close()


class SshHostAgents:
    """Agents of an elastic run on its hosts, with one thread for each in the launcher's process."""

    def __init__(self, plan: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Prepare the settings that all agents share. No agent is started yet.

        `environment`: the launcher's. `plan`: the content of the file that `run_on_changing_hosts` has written.
        """
        config = AgentConfig.from_env(environment)
        self.cooldown = HostCoolDown(**plan["cooldown"])
        self._ssh = SshOptions(**plan["ssh"])
        self._folder = Path(environment[contract.ENV_RUN_FOLDER])
        port = int(environment[contract.ENV_LAUNCHER_PORT])
        inherited = {
            name: value
            for name, value in environment_without_token(environment).items()
            if name != contract.ENV_PORTS_HELD
        }
        self._orders = SshAgentOrders(
            inherited, self._folder, port, self._ssh.interfaces, plan["level"], tuple(plan["command"])
        )
        start_s = min(config.start_timeout_s, _ANSWER_S)
        end_s = config.notice_s + config.save_s + AGENT_S
        self._deadlines = HostDeadlines(start_s, config.timeout_s, end_s, _CONNECT_S)
        self._changed = threading.Condition()
        self._agents: dict[int, _SshHostAgent] = {}
        self._ends: list[AgentEnd] = []
        self._address = ""
        self._lost = 0

    def start(self, worker: int, host: str, others: Sequence[str]) -> None:
        """Start the agent of worker `worker` on `host` in the background. `others`: further hosts of the run."""
        agent = _SshHostAgent(self, worker, host, others)
        with self._changed:
            self._agents[worker] = agent
        agent.start()

    def dismiss(self, worker: int) -> None:
        """End the agent of worker `worker` in the background."""
        with self._changed:
            if (agent := self._agents.get(worker)) is not None:
                agent.going.set()

    def running(self) -> frozenset[int]:
        """Return the worker indexes whose agents are starting or running."""
        with self._changed:
            return frozenset(self._agents)

    def ended(self) -> list[AgentEnd]:
        """Return the agents that have ended since the last call."""
        with self._changed:
            found, self._ends = self._ends, []
            return found

    def close(self) -> None:
        """End all agents of the run.

        Write to a file how many log lines agents have printed that the launcher has not stored.
        """
        with self._changed:
            agents = list(self._agents.values())
            self._changed.wait_for(lambda: not self._agents, _RELEASED_S)
        for agent in agents:
            agent.going.set()
        end = time.monotonic() + self._deadlines.end_s + _RELEASED_S
        for agent in agents:
            agent.join(max(0.0, end - time.monotonic()))
        with self._changed:
            (self._folder / _LOST_FILE).write_text(json.dumps({"lostLogLines": self._lost}))

    def connect(self, host: str) -> SshRemoteAgent:
        """Start ssh to `host`, or a process on this machine, without waiting for an answer; return the agent. Raises
        ConfigurationError if ssh is missing."""
        options = HereOptions() if host == LOCAL else self._ssh
        return SshRemoteAgent(Host(host, 0), options, self._deadlines)

    def start_agent(self, remote: SshRemoteAgent, worker: int, others: Sequence[str], deadline: float) -> None:
        """Send an agent's settings to `remote`, and wait until `deadline` for its start. Raises ConfigurationError if
        it does not start."""
        host, greeting = remote.host.name, remote.greeting(deadline)
        if host == LOCAL:
            environment = self._orders.agent_environment(worker, socket.gethostname(), loopback_address())
            environment[contract.ENV_POD_IP] = self._own_address(others, deadline)
        else:
            address = self._orders.run_address(host, greeting.run_address)
            with self._changed:
                self._address = address
                self._changed.notify_all()
            environment = self._orders.agent_environment(worker, host, address)
        remote.start(self._orders.order(environment))
        remote.started(deadline)

    def record_end(self, agent: "_SshHostAgent", end: AgentEnd, lost_lines: int) -> None:
        """Record that an agent has ended. `lost_lines`: log lines that only it has printed."""
        with self._changed:
            if self._agents.get(agent.worker) is agent:
                del self._agents[agent.worker]
            self._ends.append(end)
            self._lost += lost_lines
            self._changed.notify_all()

    def _own_address(self, others: Sequence[str], deadline: float) -> str:
        """Return the address at which the hosts `others` reach this machine. Raises ConfigurationError if it is
        unknown."""
        if self._orders.interfaces:
            return self._orders.run_address(LOCAL, "")
        with self._changed:
            until = min(_ADDRESS_S, deadline - time.monotonic())
            self._changed.wait_for(lambda: self._address or not others, until)
            if self._address:
                return self._address
        for host in others:  # none of them has answered
            if found := _source_address(self._ssh.command(host, self._deadlines)):
                return found
        raise ConfigurationError(
            f"host {LOCAL} does not know at which address other hosts reach it; name an interface that all hosts "
            "have with --network-interfaces"
        )


class _SshHostAgent(threading.Thread):
    """Thread that starts one agent over ssh and waits for its end. Set `going` to end the agent."""

    def __init__(self, hosts: SshHostAgents, worker: int, host: str, others: Sequence[str]) -> None:
        super().__init__(name=f"ringtrain-host-{worker}", daemon=True)
        self._hosts, self._host, self._others = hosts, host, others
        self.worker, self.going = worker, threading.Event()

    def run(self) -> None:
        """Start the agent, wait until it has ended, and record its end."""
        reached, reason, lost = False, "", 0
        try:
            remote = self._hosts.connect(self._host)
            try:
                self._hosts.start_agent(remote, self.worker, self._others, time.monotonic() + remote.deadlines.start_s)
                reached = True
                while remote.process.poll() is None and not self.going.wait(_POLL_S):
                    pass
            finally:
                code = remote.process.poll()
                remote.end()
                lost = remote.lost_lines()
            reason = f"host {self._host}: its agent exited with {code}: {remote.last_line()}"
        except (ConfigurationError, OSError) as exc:
            reason = str(exc)
        self._hosts.record_end(self, AgentEnd(self.worker, reason, reached, self.going.is_set()), lost)


def _source_address(ssh: Sequence[str]) -> str:
    """Return the local address from which the command `ssh` reaches its host; empty if unknown."""
    host = ssh[ssh.index("--") + 1]
    with suppress(OSError, subprocess.SubprocessError, StopIteration):
        output = subprocess.run(
            ["ssh", "-G", "--", host], capture_output=True, text=True, timeout=_ADDRESS_S, stdin=subprocess.DEVNULL
        ).stdout
        name = next(line.split()[1] for line in output.splitlines() if line.startswith("hostname "))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((name, 22))  # UDP: sends no packet
            return str(probe.getsockname()[0])
    return ""


def read_hosts_plan(path: str) -> dict[str, Any]:
    """Return the settings in the file that `run_on_changing_hosts` has written for the launcher."""
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found
