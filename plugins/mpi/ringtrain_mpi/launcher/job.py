"""The mpirun of an MPI job's launcher: prepare the command, run it, record its exit."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import grpc

from ringtrain.errors import ConfigurationError, counted
from ringtrain.shared import contract
from ringtrain.shared.address import host_port, own_address
from ringtrain.shared.authentication import MpiDaemonClaim
from ringtrain.shared.processes import NO_PROGRAM, end_child, signal_group, start_child
from ringtrain.shared.rpc import RpcPeer, dial
from ringtrain_job.control.model import Registration
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_mpi.agent.worker import registry_variables
from ringtrain_mpi.implementation import find_mpirun
from ringtrain_mpi.launcher.broker import MpiDaemonBroker
from ringtrain_mpi.launcher.command_line import MpirunLine, is_mpirun, parse_mpirun_arguments, refuse_mpirun_sizes
from ringtrain_mpi.launcher.hosts import (
    MpirunPaths,
    mpirun_daemon_command,
    mpirun_environment,
    mpirun_host_names,
    mpirun_hostfile,
)
from ringtrain_mpi.launcher.mpirun_shim import (
    mpirun_by_shim,
    mpirun_login_path,
    named_mpirun,
    write_mpirun_shims,
)
from ringtrain_mpi.launcher.remote import DaemonNotStarted, MpirunRemoteDaemon
from ringtrain_mpi.launcher.verdict import CommandEnd, DaemonEnd
from ringtrain_mpi.rsh_client import WRAPPED
from ringtrain_mpi.settings import MpiSettings
from ringtrain_mpi.shim import write_shim

log = logging.getLogger(__name__)

_TAIL_LINES = 20
# Seconds that a process outside the command's process group may hold its output open after its end.
_LAST_OUTPUT_S = 1.0


class MpirunJob:
    """The launcher's command, which runs mpirun. Call `start` when all agents have registered; `end` shows its exit.

    In an elastic job each generation has its own command: call `halt` before the next `start`.
    """

    def __init__(self, config: LauncherConfig, settings: MpiSettings, command: Sequence[str]) -> None:
        """Check and prepare the command. Raises ConfigurationError (CannotRun) for errors that show before workers
        exist."""
        if not command:
            raise ConfigurationError("the launcher of an mpi job needs a command: mpirun and a program")
        self._config = config
        self._settings = settings
        self._command = list(command)
        named = command[0] if is_mpirun(command[0]) else named_mpirun(command)
        self._mpirun = find_mpirun(settings.implementation, named, mpirun_login_path(command))
        if self._calls_mpirun:
            self._line("", config.world_size).words(command[1:])  # for its errors; the address is not known yet
            if config.elastic is not None:
                refuse_mpirun_sizes(
                    parse_mpirun_arguments([*settings.options, *command[1:]], self._mpirun.implementation)
                )
        self._stack = ExitStack()
        self._directory = Path(tempfile.mkdtemp(prefix="ringtrain-mpi-"))
        self._stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
        self._own_agent = self._start_own_agent() if settings.launcher_as_worker else None
        self._agent_peer = RpcPeer(contract.ROLE_WORKER, config.job.uid)
        self._channels: dict[str, grpc.Channel] = {}
        self._run = self._stack.enter_context(ExitStack())
        self._own_address = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.end: CommandEnd | None = None
        self.failed_daemon: DaemonEnd | None = None

    @property
    def needs_init(self) -> bool | None:
        """Whether ranks that succeed without MPI_Init are a failure. None: the launcher only logs a warning."""
        return self._settings.needs_init

    def start(self, workers: Sequence[Registration], slots: Mapping[int, int] | None = None) -> None:
        """Run the command. The hostfile lists `workers` in the given order, by the addresses that they registered.

        `slots`: slots to use, by worker index; default: all slots of each worker.
        """
        count = {worker.worker_index: (slots or {}).get(worker.worker_index, worker.slots) for worker in workers}
        ranks = sum(count.values())
        other = workers[-1]
        address = self._settings.own_address or own_address(host_port(other.address, other.agent_port))
        names = self._names(workers, address)
        hosts = {name: count[worker.worker_index] for name, worker in names.items()}
        paths = self._write_files(hosts)
        for name, worker in names.items():
            channel = dial(host_port(worker.address, worker.agent_port), self._config.secrets, self._agent_peer)
            self._channels[name] = self._run.enter_context(channel)
        self._run.callback(MpiDaemonBroker(paths.socket, self._daemon, self._note_daemon).close)
        environment = mpirun_environment(self._mpirun, paths, hosts, os.environ)
        environment |= self._own_agent.variables() if self._own_agent else {}
        self._own_address = address
        line = replace(self._line(address, ranks), hostfile=str(paths.hostfile))
        if self._calls_mpirun:
            words, program = line.words(self._command[1:], variables=environment), self._mpirun.path
            environment[WRAPPED] = "1"
        else:  # a script: the shims replace the mpirun that it calls
            shims = self._directory / "bin"
            environment |= write_mpirun_shims(shims, line)
            words, program = mpirun_by_shim(self._command, self._mpirun.path, shims), self._command[0]
        log.info("%s starts %s on %s", self._mpirun, counted(ranks, "rank"), counted(len(workers), "worker"))
        try:
            self._process = start_child(
                words,
                environment,
                executable=shutil.which(program, path=environment.get("PATH")),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as exc:
            if exc.errno not in NO_PROGRAM:
                raise
            code = 127 if isinstance(exc, FileNotFoundError) else 126
            problem = f"the launcher's command {program} cannot be executed: {exc.strerror}"
            self.end = CommandEnd(code, time.monotonic(), not_started=problem)
            return
        threading.Thread(target=self._follow, args=(self._process,), name="ringtrain-mpirun", daemon=True).start()

    def halt(self, grace_s: float) -> None:
        """End the running command, if any, and its daemons. Call `start` to run the next one."""
        self._end_process(grace_s)
        self._run.close()
        self._process, self.end, self.failed_daemon = None, None, None
        self._channels.clear()
        self._tail.clear()

    @property
    def running(self) -> bool:
        """Whether the command is running."""
        return self._process is not None and self.end is None

    def stop(self) -> None:
        """Send SIGTERM to the command, which then stops its ranks; send SIGKILL if it runs too long."""
        self._signal(signal.SIGTERM)
        # An mpirun that waits for a host that has disappeared would wait for minutes.
        impatience = threading.Timer(self._config.settle_s, self._signal, [signal.SIGKILL])
        impatience.start()
        self._stack.callback(impatience.cancel)

    def close(self, grace_s: float) -> None:
        """End the command, stop its threads and delete its files."""
        self._end_process(grace_s)
        self._stack.close()

    def _end_process(self, grace_s: float) -> None:
        self._signal(signal.SIGTERM)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self._signal(signal.SIGKILL)

    def _start_own_agent(self) -> "MpirunLauncherAgent":
        agent = MpirunLauncherAgent(self._directory / "agent", self._config.workers - 1, self._config.port, os.environ)
        self._stack.callback(agent.close, self._config.settle_s)
        return agent

    @property
    def _calls_mpirun(self) -> bool:
        return is_mpirun(self._command[0])

    def _line(self, own_address: str, ranks: int) -> MpirunLine:
        return MpirunLine(self._mpirun, self._settings.options, ranks, own_address)

    def _names(self, workers: Sequence[Registration], address: str) -> dict[str, Registration]:
        """Return the workers in rank order, by the names that mpirun uses for them."""
        if not self._own_agent:
            return dict(zip(mpirun_host_names(workers, address), workers, strict=True))
        # mpirun starts the ranks of the host with this pod's address itself.
        own, others = workers[0], workers[1:]
        return {own.address: own, **dict(zip(mpirun_host_names(others, address), others, strict=True))}

    def _write_files(self, hosts: dict[str, int]) -> MpirunPaths:
        file = self._settings.hostfile or self._directory / "hosts"
        paths = MpirunPaths(file, self._directory / "rsh", self._directory / "rsh.socket")
        paths.hostfile.write_text(mpirun_hostfile(hosts, self._settings.implementation))
        paths.socket.unlink(missing_ok=True)  # left by the previous command of an elastic job
        write_shim(paths.rsh, "ringtrain_mpi.rsh_client")
        return paths

    def _daemon(self, host: str, command: str) -> MpirunRemoteDaemon:
        """Return a client that can start `command` on `host`, a name in the hostfile. Raises DaemonNotStarted if no
        worker has that name."""
        channel = self._channels.get(host)
        if channel is None:
            raise DaemonNotStarted(
                f"no worker of this job has the address {host}; expected one of {', '.join(self._channels)}"
            )
        config = self._config
        claim = MpiDaemonClaim(config.job.uid, config.job.attempt, mpirun_daemon_command(command, self._own_address))
        return MpirunRemoteDaemon(channel, config.secrets.token, claim, config.timeout_s)

    def _note_daemon(self, host: str, code: int, said: str) -> None:
        if self.failed_daemon is None:
            self.failed_daemon = DaemonEnd(host, code, said, time.monotonic())

    def _follow(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for the command, record its exit code, and kill processes that a script has left in the background."""
        reader = threading.Thread(
            target=self._copy_output, args=(process,), name="ringtrain-mpirun-output", daemon=True
        )
        reader.start()
        code = process.wait()
        signal_group(process.pid, signal.SIGKILL)
        reader.join(_LAST_OUTPUT_S)
        end = CommandEnd(code, time.monotonic(), tuple(self._tail))
        if process is self._process:  # otherwise it was halted
            self.end = end
            log.info("the launcher's command exited with %d", end.code)

    def _copy_output(self, process: "subprocess.Popen[bytes]") -> None:
        """Copy the command's output to this process's stderr, and store its last lines."""
        assert process.stdout is not None
        for line in process.stdout:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            self._tail.append(line.decode("utf-8", "replace").rstrip())

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            signal_group(self._process.pid, number)


class MpirunLauncherAgent:
    """Agent process in the launcher's pod, for jobs whose launcher also runs ranks. It has the last worker index.

    `directory`: directory of its registry, in which an mpirun in the same pod finds it.
    """

    def __init__(self, directory: Path, index: int, port: int, inherited: Mapping[str, str]) -> None:
        self._directory = directory
        own = {
            contract.ENV_ROLE: contract.ROLE_WORKER,
            contract.ENV_WORKER_INDEX: str(index),
            contract.ENV_LAUNCHER_ADDRESS: host_port(inherited.get(contract.ENV_POD_IP) or "127.0.0.1", port),
            contract.ENV_MPI_REGISTRY_DIRECTORY: str(directory),
            contract.ENV_TERMINATION_MESSAGE_PATH: os.devnull,  # the launcher writes the pod's termination message
        }
        self._process = start_child([sys.executable, "-m", "ringtrain", "agent"], {**inherited, **own})

    def variables(self) -> dict[str, str]:
        """Return variables with which ranks in the launcher's pod find the registry of this agent."""
        return registry_variables(self._directory)

    def close(self, grace_s: float) -> None:
        """Wait at most `grace_s` for the agent, which the launcher has already released; then kill it."""
        end_child(self._process, grace_s)
