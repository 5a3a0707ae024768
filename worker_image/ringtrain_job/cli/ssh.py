"""Agents on other hosts, which the system's ssh starts and keeps, or srun on the nodes of SLURM's job; and what
the agents of a run over several hosts are told.
"""

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

import click

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.address import host_port
from ringtrain.shared.hosts import Host
from ringtrain.shared.processes import end_child, start_child
from ringtrain_job.cli.certificates import SECRET_FILES
from ringtrain_job.cli.remote_agent import (
    GREETING,
    LOST,
    STARTED,
    RemoteAgentGreeting,
    RemoteAgentOrder,
    first_address,
)

# For TCP and the handshake; ssh's own default is the kernel's, minutes.
_CONNECT_S: Final = 30
_POLL_S: Final = 0.1
_LINES_KEPT: Final = 20
_EXIT_SSH: Final = 255
_EXITS_SHELL: Final = (126, 127)
_AGENT: Final = (sys.executable, "-m", "ringtrain", "remote-agent")
# What belongs to a host or to a login, and must not be taken to another one.
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
    """How nodes of SLURM's job are reached. `interfaces`: which of a node's networks ranks use."""

    interfaces: Sequence[str] = ()

    def command(self, host: str, deadlines: "HostDeadlines") -> list[str]:
        """srun on the node, beside what the job has there; it runs the Python that runs here."""
        place = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", f"--nodelist={host}", "--overlap", "--mem=0"]
        words = ["srun", *place, "--mpi=none", "--cpu-bind=none", "--export=ALL", "--quiet", "--unbuffered"]
        return [*words, *_AGENT]


@dataclass(frozen=True)
class SshOptions:
    """How other hosts are reached. `interfaces`: which of a host's networks ranks use."""

    port: int | None = None
    identity_file: str | None = None
    interfaces: Sequence[str] = ()

    def command(self, host: str, deadlines: "HostDeadlines") -> list[str]:
        """ssh that asks nothing, up to the command for `host`, which runs the Python that runs here."""
        limits = {
            "BatchMode": "yes",
            "ConnectTimeout": max(1, round(min(deadlines.connect_s, deadlines.start_s))),
            # three times without an answer, and ssh ends
            "ServerAliveInterval": max(1, round(deadlines.silence_s / 4)),
        }
        options = [word for name, value in limits.items() for word in ("-o", f"{name}={value}")]
        options += ["-p", str(self.port)] if self.port else []
        options += ["-i", self.identity_file] if self.identity_file else []
        return ["ssh", "-T", *options, "--", host, f"exec {shlex.join(_AGENT)}"]


@dataclass(frozen=True)
class HereOptions:
    """This machine, which needs no ssh."""

    interfaces: Sequence[str] = ()

    def command(self, host: str, deadlines: "HostDeadlines") -> list[str]:
        """What others start by ssh."""
        return list(_AGENT)


@dataclass(frozen=True)
class HostDeadlines:
    """Seconds: until a host has answered, that it may be silent, and that its agent may take to end; and for the
    connection alone."""

    start_s: float
    silence_s: float
    end_s: float
    connect_s: float = _CONNECT_S


class SshRemoteAgent:
    """An agent on another host. `process` is its ssh or srun, whose exit status is the agent's."""

    def __init__(self, host: Host, options: SshOptions | SrunOptions | HereOptions, deadlines: HostDeadlines) -> None:
        """Raises ConfigurationError if there is no ssh, or no srun."""
        self.host = host
        self.deadlines = deadlines
        self._greeting: RemoteAgentGreeting | None = None
        self._started = False
        self._lost = 0
        self._said: list[str] = []
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
                f"{host.name} is another host, which needs {words[0]} here: PATH has no program of this name"
                + ("; install it (apt install openssh-client)" if words[0] == "ssh" else "")
            ) from exc
        self._readers = [
            threading.Thread(target=read, args=(stream,), daemon=True)
            for read, stream in ((self._hear, self.process.stdout), (self._tell, self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def greeting(self, deadline: float) -> RemoteAgentGreeting:
        """What the host has said of itself by `deadline` (of time.monotonic). ConfigurationError names it."""
        self._await(lambda: self._greeting is not None, deadline)
        if self._greeting is None:
            raise ConfigurationError(self._why_not())
        if self._greeting.version != (here := version("ringtrain")):
            raise ConfigurationError(
                f"host {self.host.name} has ringtrain {self._greeting.version} and this machine {here}; install "
                "the same version on all hosts"
            )
        return self._greeting

    def start(self, order: RemoteAgentOrder) -> None:
        """Send the host its order, on ssh's stdin, where nobody else on either host can read it."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # ssh has ended: its exit status says why
            self.process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            self.process.stdin.flush()

    def started(self, deadline: float) -> None:
        """Return when the agent has been started. ConfigurationError names the host and what it said."""
        self._await(lambda: self._started, deadline)
        if not self._started:
            code = self.process.poll()
            how = "did not start its agent in time" if code is None else f"ended with {code}"
            raise ConfigurationError(f"host {self.host.name} {how}: {self.last_words()}")

    def _await(self, done: Callable[[], bool], deadline: float) -> None:
        while not done() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not done() and self.process.poll() is not None:
            self._join()  # what it said at last may not have been read

    def end(self) -> None:
        """Let the host go: its agent ends when stdin does. ssh is killed when that takes too long, or at once if
        the host has not answered."""
        assert self.process.stdin is not None
        if self._greeting is None:
            self.process.kill()
        with suppress(OSError):
            self.process.stdin.close()
        end_child(self.process, self.deadlines.end_s)
        self._join()

    def last_words(self) -> str:
        """The last line that ssh or the agent has written to stderr."""
        self._join()
        return self._said[-1] if self._said else "nothing was said"

    def lost_lines(self) -> int:
        """How many log lines of an agent that has ended are in no file of the launcher."""
        self._join()
        return self._lost

    def _join(self) -> None:
        for reader in self._readers:
            reader.join(_POLL_S * 10)

    def _hear(self, stream: IO[bytes]) -> None:
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

    def _tell(self, stream: IO[bytes]) -> None:
        for line in stream:
            text = line.decode(errors="replace").rstrip()
            if text:
                self._said = [*self._said, text][-_LINES_KEPT:]
            if text and self._started:  # before that, an error has the last line
                click.echo(f"{self.host.name}: {text}", err=True)

    def _why_not(self) -> str:
        host, code = self.host.name, self.process.poll()
        if code is None:
            return f"host {host} said nothing within {self.deadlines.start_s:g} s (--start-timeout)"
        said = " ".join(self._said)
        if code == _EXIT_SSH:
            return f"host {host} cannot be reached over ssh: {self.last_words().rstrip('.')}{_ssh_hint(host, said)}"
        if code in _EXITS_SHELL or "No module named ringtrain" in said:
            return (
                f"host {host} has no ringtrain where this machine has it ({sys.executable}): {self.last_words()}; "
                "install Python and ringtrain at the same path on all hosts"
            )
        return f"host {host}: ringtrain remote-agent ended with {code}: {self.last_words()}"


def _ssh_hint(host: str, said: str) -> str:
    hints = {
        "Permission denied": f"; ssh may not ask for a password here: set up a key (ssh-copy-id {host}), or name "
        "one with --ssh-identity-file",
        "Host key verification failed": f"; log in once by hand (ssh {host}) to accept the host's key",
        "Could not resolve": "; is this the name in -H?",
    }
    return next((hint for part, hint in hints.items() if part in said), "")


def connect_ssh_hosts(
    stack: ExitStack, hosts: Sequence[Host], options: SshOptions | SrunOptions, deadlines: HostDeadlines
) -> list[tuple[SshRemoteAgent, RemoteAgentGreeting]]:
    """Reach all `hosts` at once; `stack` lets them go.

    Raises ConfigurationError, which names the first host that cannot be had.
    """
    deadline = time.monotonic() + deadlines.start_s
    agents = []
    for host in hosts:
        agents.append(SshRemoteAgent(host, options, deadlines))
        stack.callback(agents[-1].end)
    return [(agent, agent.greeting(deadline)) for agent in agents]


def portable_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environment` that mean the same on another host."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _OF_A_HOST and not name.startswith(_OF_A_LOGIN)
    }


# Set anew on each host: where its secrets are, and its own address.
_OF_AN_AGENT: Final = (contract.ENV_SECRET_DIR, contract.ENV_POD_IP)


@dataclass(frozen=True)
class SshAgentOrders:
    """What all agents of a run have in common. `secrets`: directory with one of each role."""

    environment: Mapping[str, str]
    secrets: Path
    port: int
    interfaces: Sequence[str]
    level: str
    command: Sequence[str]

    def agent_environment(self, index: int, host: str, run_address: str) -> dict[str, str]:
        """Of the agent of worker `index` on `host`, which reaches this machine at `run_address`."""
        return {
            **{name: value for name, value in self.environment.items() if name not in _OF_AN_AGENT},
            contract.ENV_WORKER_INDEX: str(index),
            contract.ENV_POD_NAME: f"{self.environment[contract.ENV_JOB_NAME]}-worker-{index}",
            contract.ENV_NODE_NAME: host,
            contract.ENV_LAUNCHER_ADDRESS: host_port(run_address, self.port),
        }

    def order(self, environment: Mapping[str, str]) -> RemoteAgentOrder:
        """What an agent that `remote-agent` runs is told."""
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
        """This machine's address for `host`, which has `seen` this one; empty: none."""
        if self.interfaces:
            return first_address(self.interfaces)
        if not seen:
            raise ConfigurationError(
                f"host {host} does not know from which address it is reached (SSH_CONNECTION is not set there); "
                "say with --network-interfaces which interface all hosts have"
            )
        return seen
