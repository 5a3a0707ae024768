"""Agents on other hosts: start them by ssh, or by srun in a SLURM job, and send them their settings."""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.address import host_port
from ringtrain.shared.hosts import Host
from ringtrain.shared.processes import end_child, start_child
from ringtrain_hosts.remote_agent import (
    GREETING,
    LOST,
    STARTED,
    RemoteAgentGreeting,
    RemoteAgentOrder,
    first_address,
)
from ringtrain_job.cli.certificates import SECRET_FILES
from ringtrain_job.cli.ending import print_line

# Limit of TCP and the handshake; ssh's default is the kernel's limit of minutes.
_CONNECT_S: Final = 30
_POLL_S: Final = 0.1
_LINES_KEPT: Final = 20
_EXIT_SSH: Final = 255
_EXITS_SHELL: Final = (126, 127)
_AGENT: Final = (sys.executable, "-m", "ringtrain", "remote-agent")
# Variables of a host or a login session that must not be copied to another host.
_OF_A_HOST: Final = frozenset(
    [
        "DBUS_SESSION_BUS_ADDRESS",
        "DISPLAY",
        "HOME",
        "HOSTNAME",
        "LOGNAME",
        "LS_COLORS",
        "MAIL",
        "OLDPWD",
        "PWD",
        "SHELL",
        "SHLVL",
        "SLURMD_NODENAME",
        "SLURM_GTIDS",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_PROCID",
        "SLURM_TASK_PID",
        "TERM",
        "TMPDIR",
        "USER",
        "_",
    ]
)
_OF_A_LOGIN: Final = ("SSH_", "XDG_", "BASH_FUNC_")


@dataclass(frozen=True)
class SrunOptions:
    """Start of agents on nodes of a SLURM job by srun. `interfaces`: network interfaces for ranks."""

    interfaces: Sequence[str] = ()

    def command(self, host: str, deadlines: "HostDeadlines") -> list[str]:
        """Return the srun command that starts an agent on the node `host` in addition to the job's tasks."""
        place = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", f"--nodelist={host}", "--overlap", "--mem=0"]
        words = ["srun", *place, "--mpi=none", "--cpu-bind=none", "--export=ALL", "--quiet", "--unbuffered"]
        return [*words, *_AGENT]


@dataclass(frozen=True)
class SshOptions:
    """Start of agents on other hosts by ssh. `interfaces`: network interfaces for ranks."""

    port: int | None = None
    identity_file: str | None = None
    interfaces: Sequence[str] = ()

    def command(self, host: str, deadlines: "HostDeadlines") -> list[str]:
        """Return the ssh command, without prompts, that starts an agent on `host` with this Python's path."""
        limits = {
            "BatchMode": "yes",
            "ConnectTimeout": max(1, round(min(deadlines.connect_s, deadlines.start_s))),
            # ssh ends after three unanswered messages
            "ServerAliveInterval": max(1, round(deadlines.silence_s / 4)),
        }
        options = [word for name, value in limits.items() for word in ("-o", f"{name}={value}")]
        options += ["-p", str(self.port)] if self.port else []
        options += ["-i", self.identity_file] if self.identity_file else []
        return ["ssh", "-T", *options, "--", host, f"exec {shlex.join(_AGENT)}"]


@dataclass(frozen=True)
class HereOptions:
    """Start of an agent on this machine, without ssh."""

    interfaces: Sequence[str] = ()

    def command(self, host: str, deadlines: "HostDeadlines") -> list[str]:
        """Return the command that starts an agent on this machine."""
        return list(_AGENT)


@dataclass(frozen=True)
class HostDeadlines:
    """Time limits of an agent on another host, in seconds.

    `start_s`: limit for the host's first message. `silence_s`: limit for its silence. `end_s`: limit for the end of the
    agent. `connect_s`: limit for ssh's connection.
    """

    start_s: float
    silence_s: float
    end_s: float
    connect_s: float = _CONNECT_S


class SshRemoteAgent:
    """An agent on another host. `process`: the ssh or srun that starts it and has the agent's exit status."""

    def __init__(self, host: Host, options: SshOptions | SrunOptions | HereOptions, deadlines: HostDeadlines) -> None:
        """Start ssh or srun in the background. Raises ConfigurationError if the program is missing."""
        self.host = host
        self.deadlines = deadlines
        self._greeting: RemoteAgentGreeting | None = None
        self._started = False
        self._lost = 0
        self._stderr_lines: list[str] = []
        words = options.command(host.name, deadlines)
        try:
            self.process = start_child(
                words,
                {**os.environ, "LC_MESSAGES": "C"},  # messages that `_ssh_hint` knows
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError as exc:
            raise ConfigurationError(
                f"{host.name} is another host and needs {words[0]} on this machine, but PATH has no such program"
                + ("; install it (apt install openssh-client)" if words[0] == "ssh" else "")
            ) from exc
        self._readers = [
            threading.Thread(target=read, args=(stream,), daemon=True)
            for read, stream in ((self._read_stdout, self.process.stdout), (self._read_stderr, self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def greeting(self, deadline: float) -> RemoteAgentGreeting:
        """Wait for the host's first message until `deadline` (time.monotonic); return it. Raises ConfigurationError if
        none arrives or versions differ."""
        self._await(lambda: self._greeting is not None, deadline)
        if self._greeting is None:
            raise ConfigurationError(self._failure_text())
        if self._greeting.version != (here := version("ringtrain")):
            raise ConfigurationError(
                f"host {self.host.name} has ringtrain {self._greeting.version}, but this machine has "
                f"ringtrain {here}; install the same version on all hosts"
            )
        return self._greeting

    def start(self, order: RemoteAgentOrder) -> None:
        """Send the agent's settings over ssh's stdin, where no other user can read the secrets."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # ssh has ended; its exit status has the reason
            self.process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            self.process.stdin.flush()

    def started(self, deadline: float) -> None:
        """Wait until the agent has started. Raises ConfigurationError with the host and the last line of stderr."""
        self._await(lambda: self._started, deadline)
        if not self._started:
            code = self.process.poll()
            problem = "did not start its agent in time" if code is None else f"exited with {code}"
            raise ConfigurationError(f"host {self.host.name} {problem}: {self.last_line()}")

    def _await(self, done: Callable[[], bool], deadline: float) -> None:
        while not done() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not done() and self.process.poll() is not None:
            self._join()  # read its last output

    def end(self) -> None:
        """Close the agent's stdin, which makes it end, and wait for that.

        ssh is killed if that takes too long, or at once if the host has not answered.
        """
        assert self.process.stdin is not None
        if self._greeting is None:
            self.process.kill()
        with suppress(OSError):
            self.process.stdin.close()
        end_child(self.process, self.deadlines.end_s)
        self._join()

    def last_line(self) -> str:
        """Return the last line that ssh or the agent wrote to stderr."""
        self._join()
        return self._stderr_lines[-1] if self._stderr_lines else "no output"

    def lost_lines(self) -> int:
        """Return how many log lines of an ended agent the launcher has not stored."""
        self._join()
        return self._lost

    def _join(self) -> None:
        for reader in self._readers:
            reader.join(_POLL_S * 10)

    def _read_stdout(self, stream: IO[bytes]) -> None:
        """Read the messages that `remote-agent` writes to stdout."""
        for line in stream:
            text = line.decode(errors="replace")
            if text.startswith(STARTED):
                self._started = True
            elif text.startswith(LOST):
                with suppress(ValueError):
                    self._lost = int(text.removeprefix(LOST))
            elif text.startswith(GREETING):
                with suppress(ValueError, TypeError):
                    self._greeting = RemoteAgentGreeting(**json.loads(text.removeprefix(GREETING)))

    def _read_stderr(self, stream: IO[bytes]) -> None:
        """Store the last lines of stderr. Once the agent has started, also print them."""
        for line in stream:
            text = line.decode(errors="replace").rstrip()
            if text:
                self._stderr_lines = [*self._stderr_lines, text][-_LINES_KEPT:]
            if text and self._started:  # earlier lines are in the error message
                print_line(text, f"{self.host.name}: ")

    def _failure_text(self) -> str:
        """Return the reason why the host has not sent its first message."""
        host, code = self.host.name, self.process.poll()
        if code is None:
            return f"host {host} did not answer within {self.deadlines.start_s:g} s (--start-timeout)"
        output = " ".join(self._stderr_lines)
        if code == _EXIT_SSH:
            return f"cannot reach host {host} over ssh: {self.last_line().rstrip('.')}{_ssh_hint(host, output)}"
        if code in _EXITS_SHELL or "No module named ringtrain" in output:
            return (
                f"host {host} has no ringtrain at this machine's path ({sys.executable}): {self.last_line()}; "
                "install Python and ringtrain at the same path on all hosts"
            )
        return f"host {host}: ringtrain remote-agent exited with {code}: {self.last_line()}"


def _ssh_hint(host: str, output: str) -> str:
    hints = {
        "Permission denied": f"; ssh may not ask for a password here: set up a key (ssh-copy-id {host}), or name "
        "one with --ssh-identity-file",
        "Host key verification failed": f"; log in once by hand (ssh {host}) to accept the host's key",
        "Could not resolve": "; is this the name in -H?",
    }
    return next((hint for part, hint in hints.items() if part in output), "")


def connect_ssh_hosts(
    stack: ExitStack, hosts: Sequence[Host], options: SshOptions | SrunOptions, deadlines: HostDeadlines
) -> list[tuple[SshRemoteAgent, RemoteAgentGreeting]]:
    """Connect to all `hosts` in parallel; return their agents and first messages. Closing `stack` ends them.

    Raises ConfigurationError with the first host that cannot be used.
    """
    deadline = time.monotonic() + deadlines.start_s
    agents = []
    for host in hosts:
        agents.append(SshRemoteAgent(host, options, deadlines))
        stack.callback(agents[-1].end)
    return [(agent, agent.greeting(deadline)) for agent in agents]


def portable_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environment` that are also valid on another host."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _OF_A_HOST and not name.startswith(_OF_A_LOGIN)
    }


# Variables that differ on each host: the path of its secrets, and its address.
_OF_AN_AGENT: Final = (contract.ENV_SECRET_DIR, contract.ENV_POD_IP)


@dataclass(frozen=True)
class SshAgentOrders:
    """Settings that all agents of a run share. `secrets`: folder with a subfolder for each role."""

    environment: Mapping[str, str]
    secrets: Path
    port: int
    interfaces: Sequence[str]
    level: str
    command: Sequence[str]

    def agent_environment(self, index: int, host: str, run_address: str) -> dict[str, str]:
        """Return the environment of agent `index` on `host`, which reaches the launcher's host at `run_address`."""
        return {
            **{name: value for name, value in self.environment.items() if name not in _OF_AN_AGENT},
            contract.ENV_WORKER_INDEX: str(index),
            contract.ENV_POD_NAME: f"{self.environment[contract.ENV_JOB_NAME]}-worker-{index}",
            contract.ENV_NODE_NAME: host,
            contract.ENV_LAUNCHER_ADDRESS: host_port(run_address, self.port),
        }

    def order(self, environment: Mapping[str, str]) -> RemoteAgentOrder:
        """Return the settings for a `remote-agent` with this `environment`."""
        directory = self.secrets / contract.ROLE_WORKER
        return RemoteAgentOrder(
            secrets={file: (directory / file).read_text() for file in SECRET_FILES},
            environment=portable_environment(environment),
            directory=os.getcwd(),
            interfaces=tuple(self.interfaces),
            level=self.level,
            command=tuple(self.command),
        )

    def run_address(self, host: str, seen: str) -> str:
        """Return the address at which `host` reaches this machine. `seen`: as reported by the host; empty if unknown.

        Raises ConfigurationError.
        """
        if self.interfaces:
            return first_address(self.interfaces)
        if not seen:
            raise ConfigurationError(
                f"host {host} does not know from which address it is reached (SSH_CONNECTION is not "
                "set on that host); name an interface that all hosts have with --network-interfaces"
            )
        return seen
