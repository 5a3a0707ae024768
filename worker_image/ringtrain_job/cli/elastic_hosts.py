"""Hosts of an elastic run that come and go: its launcher starts an agent on each over ssh, and lets it go."""

import json
import logging
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.address import loopback_address
from ringtrain.shared.hosts import LOCAL, Host
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.cli.run_processes import (
    AGENT_S,
    environment_without_token,
    forward_run_signals,
    level_of,
    run_exit_code,
    run_lost_lines,
    start_launcher,
    wait_for_run_processes,
)
from ringtrain_job.cli.several_hosts import prepare_hosts
from ringtrain_job.cli.ssh import HereOptions, HostDeadlines, SshAgentOrders, SshOptions, SshRemoteAgent
from ringtrain_job.launcher.hosts import AgentEnd, HostCoolDown

log = logging.getLogger(__name__)

# A host that is asked has Python and ringtrain to load, maybe from a file server.
_ANSWER_S: Final = 60.0
# The others wait for a host that is silent at the start.
_CONNECT_S: Final = 10.0
# How long this machine's agent waits to hear from another host at which address that one sees this machine.
_ADDRESS_S: Final = 10.0
_POLL_S: Final = 0.1
# As long as an agent that the launcher has released takes to end by itself.
_RELEASED_S: Final = 3.0
_LOST_FILE: Final = "ended.json"


@dataclass(frozen=True)
class ChangingHosts:
    """How the launcher reaches hosts, and what it does with those that fail. `workers`: places for hosts, each
    with `slots` for ranks. `sites`: names by host, if any."""

    workers: int
    slots: int
    ssh: SshOptions
    cooldown: HostCoolDown
    sites: Mapping[str, str] = field(default_factory=dict)


def run_on_changing_hosts(
    hosts: ChangingHosts, settings: Mapping[str, str], command: Sequence[str], verbose: bool, words: Sequence[str]
) -> int:
    """Run `command` on the hosts that the run's discovery script lists; returns the run's exit code.

    `words`: further ones for the launcher. Raises ConfigurationError before any rank is started.
    """
    if shutil.which("ssh") is None:
        raise ConfigurationError(
            "the run is to go to other hosts, which needs ssh here; install it (apt install openssh-client)"
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
        return run_exit_code(code, run_lost_lines(folder / _LOST_FILE), environment[contract.ENV_LOG_DIR], signals)


class SshHostAgents:
    """Agents on hosts, one thread each, in the launcher's process."""

    def __init__(self, plan: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """`environment`: the launcher's; `plan`: what `run_on_changing_hosts` has written."""
        config = AgentConfig.from_env(environment)
        self.cooldown = HostCoolDown(**plan["cooldown"])
        self._ssh = SshOptions(**plan["ssh"])
        self._folder = Path(environment[contract.ENV_RUN_FOLDER])
        port = int(environment[contract.ENV_LAUNCHER_PORT])
        told = {
            name: value
            for name, value in environment_without_token(environment).items()
            if name != contract.ENV_PORTS_HELD
        }
        self._orders = SshAgentOrders(
            told, self._folder, port, self._ssh.interfaces, plan["level"], tuple(plan["command"])
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
        """Begin to start the agent of `worker` on `host`; `others`: further hosts of the run."""
        agent = _SshHostAgent(self, worker, host, others)
        with self._changed:
            self._agents[worker] = agent
        agent.start()

    def dismiss(self, worker: int) -> None:
        """Ask the agent of `worker` to end."""
        with self._changed:
            if (agent := self._agents.get(worker)) is not None:
                agent.going.set()

    def running(self) -> frozenset[int]:
        """Workers whose agents have not ended, or not been started yet."""
        with self._changed:
            return frozenset(self._agents)

    def ended(self) -> list[AgentEnd]:
        """Agents that have ended since this was asked last."""
        with self._changed:
            found, self._ends = self._ends, []
            return found

    def close(self) -> None:
        """Let all hosts go, at the end of the run; say how many log lines their agents had to print."""
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

    def reach(self, host: str) -> SshRemoteAgent:
        """Begin to reach a host. Raises ConfigurationError."""
        options = HereOptions() if host == LOCAL else self._ssh
        return SshRemoteAgent(Host(host, 0), options, self._deadlines)

    def tell(self, remote: SshRemoteAgent, worker: int, others: Sequence[str], deadline: float) -> None:
        """Have an agent started by `deadline` where `remote` leads. Raises ConfigurationError."""
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

    def note(self, agent: "_SshHostAgent", end: AgentEnd, lost_lines: int) -> None:
        """An agent has ended."""
        with self._changed:
            if self._agents.get(agent.worker) is agent:
                del self._agents[agent.worker]
            self._ends.append(end)
            self._lost += lost_lines
            self._changed.notify_all()

    def _own_address(self, others: Sequence[str], deadline: float) -> str:
        """Where other hosts reach this one. Raises ConfigurationError."""
        if self._orders.interfaces:
            return self._orders.run_address(LOCAL, "")
        with self._changed:
            until = min(_ADDRESS_S, deadline - time.monotonic())
            self._changed.wait_for(lambda: self._address or not others, until)
            if self._address:
                return self._address
        for host in others:  # none of them can be reached now
            if found := _address_towards(self._ssh.command(host, self._deadlines)):
                return found
        raise ConfigurationError(
            f"host {LOCAL} does not know at which address other hosts reach it; say with --network-interfaces "
            "which interface all hosts have"
        )


class _SshHostAgent(threading.Thread):
    """From ssh's start to its end; `going`: it is asked to end."""

    def __init__(self, hosts: SshHostAgents, worker: int, host: str, others: Sequence[str]) -> None:
        super().__init__(name=f"ringtrain-host-{worker}", daemon=True)
        self._hosts, self._host, self._others = hosts, host, others
        self.worker, self.going = worker, threading.Event()

    def run(self) -> None:
        """Children of this thread end with it."""
        reached, why, lost = False, "", 0
        try:
            remote = self._hosts.reach(self._host)
            try:
                self._hosts.tell(remote, self.worker, self._others, time.monotonic() + remote.deadlines.start_s)
                reached = True
                while remote.process.poll() is None and not self.going.wait(_POLL_S):
                    pass
            finally:
                code = remote.process.poll()
                remote.end()
                lost = remote.lost_lines()
            why = f"host {self._host}: its agent ended with {code}: {remote.last_words()}"
        except (ConfigurationError, OSError) as exc:
            why = str(exc)
        self._hosts.note(self, AgentEnd(self.worker, why, reached, self.going.is_set()), lost)


def _address_towards(ssh: Sequence[str]) -> str:
    """The address of this machine on the way to the host that the command `ssh` leads to; empty: unknown."""
    host = ssh[ssh.index("--") + 1]
    with suppress(OSError, subprocess.SubprocessError, StopIteration):
        said = subprocess.run(
            ["ssh", "-G", "--", host], capture_output=True, text=True, timeout=_ADDRESS_S, stdin=subprocess.DEVNULL
        ).stdout
        name = next(line.split()[1] for line in said.splitlines() if line.startswith("hostname "))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((name, 22))  # sends nothing
            return str(probe.getsockname()[0])
    return ""


def read_hosts_plan(path: str) -> dict[str, Any]:
    """What `run_on_changing_hosts` has written for its launcher."""
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found
