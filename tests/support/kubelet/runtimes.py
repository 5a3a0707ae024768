"""Runtimes of a pod's container: a local process, or a script of the test."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ringtrain_operator.build.agent import PROGRAM, PYTHON
from ringtrain_operator.contract import AGENT_DIR
from ringtrain_operator.spec.reserved import VOLUME_AGENT as AGENT_VOLUME
from support.guard import GUARD
from support.kubelet.environment import Sandbox

# As pkg/kubelet/container/runtime.go has them.
MESSAGE_BYTES, LOG_MESSAGE_BYTES, LOG_MESSAGE_LINES = 4096, 2048, 80


@dataclass(frozen=True)
class Exit:
    """Exit of a container; `reason` in the kubelet's words."""

    code: int
    message: str = ""
    reason: str = ""


class Container(Protocol):
    """A container that was started."""

    async def wait(self) -> Exit:
        """Return when it has ended."""

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Runtime(Protocol):
    """Starts containers."""

    needs_sandbox: bool

    async def start(self, sandbox: Sandbox) -> Container:
        """Start the first container of the sandbox's pod. Raises OSError with the reason if it cannot run."""

    async def start_beside(self, sandbox: Sandbox, command: Sequence[str]) -> asyncio.subprocess.Process | None:
        """Start another command as if in that container; None if there is nothing to run it in."""


class ProcessRuntime:
    """Containers as local processes: the working directory is `folder`, of the image only the name matters.

    `entrypoints`: what a container without a command runs, by the last part of its image's repository. Ports that
    pods would have each for themselves are made free ports (0) where the contract allows it, or ports of the pod's
    own address.
    """

    needs_sandbox = True
    FREE_PORTS = (
        "RINGTRAIN_AGENT_PORT",
        "RINGTRAIN_RING_PORT_BASE",
        "RINGTRAIN_MASTER_PORT",
        "RINGTRAIN_TF_PORT_BASE",
    )

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str] | None = None,
        entrypoints: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._folder = folder
        self._env = {**os.environ, **(env or {})}
        self._entrypoints = entrypoints or {}

    async def start(self, sandbox: Sandbox) -> "ProcessContainer":
        env = {**self._env, **sandbox.env}
        if env.get("RINGTRAIN_ROLE") == "worker":
            env.update(dict.fromkeys(self.FREE_PORTS, "0"))
        self._bring_agent(sandbox, env)
        command = self._command(sandbox)
        program = shutil.which(command[0], path=env.get("PATH")) if command else None
        if program is None:
            raise OSError(f'exec: "{" ".join(command[:1])}": executable file not found in $PATH')
        with sandbox.log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                program,
                *command[1:],
                env=env,
                cwd=self._folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        GUARD.begun(process.pid)
        return ProcessContainer(process, sandbox)

    async def start_beside(self, sandbox: Sandbox, command: Sequence[str]) -> asyncio.subprocess.Process:
        env = {**self._env, **sandbox.env}
        command = self._of_agent(sandbox, command)
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, env=env, cwd=self._folder, stdout=pipe, stderr=pipe)

    def _bring_agent(self, sandbox: Sandbox, env: Mapping[str, str]) -> None:
        """Have the volume with the operator's agent lead to this environment's `ringtrain`."""
        volume = sandbox.folder / "volumes" / AGENT_VOLUME
        program = shutil.which("ringtrain", path=env.get("PATH"))
        if volume.exists() and program and not (volume / "bin").exists():
            (volume / "bin").mkdir()
            (volume / "bin" / "ringtrain").symlink_to(program)

    def _of_agent(self, sandbox: Sandbox, command: Sequence[str]) -> Sequence[str]:
        """The command, with this environment's programs in the place of those that the agent's image has."""
        volume = sandbox.folder / "volumes" / AGENT_VOLUME
        here = {
            f"{AGENT_DIR}/bin/ringtrain": f"{volume}/bin/ringtrain",
            PROGRAM: "ringtrain",
            PYTHON: sys.executable,
        }
        return [here.get(command[0], command[0]), *command[1:]] if command else command

    def _command(self, sandbox: Sandbox) -> list[str]:
        container = sandbox.pod["spec"]["containers"][0]
        repository = str(container["image"]).partition("@")[0].rpartition("/")[2].partition(":")[0]
        entrypoint = () if container.get("command") else self._entrypoints.get(repository, ())
        words = [*entrypoint, *self._of_agent(sandbox, sandbox.command)]
        return [w.replace("--listen=:", f"--listen={sandbox.address}:", 1) for w in words]


@dataclass(frozen=True)
class ProcessContainer:
    """A process in a session of its own, which ends as a whole."""

    process: asyncio.subprocess.Process
    sandbox: Sandbox

    async def wait(self) -> Exit:
        code = await self.process.wait()
        self.clear()
        message = _last_bytes(self.message_file(), MESSAGE_BYTES)
        policy = self.sandbox.pod["spec"]["containers"][0].get("terminationMessagePolicy")
        if not message and code and policy == "FallbackToLogsOnError":
            lines = _last_bytes(self.sandbox.log, LOG_MESSAGE_BYTES).splitlines(keepends=True)
            message = "".join(lines[-LOG_MESSAGE_LINES:])
        return Exit(code if code >= 0 else 128 - code, message)

    def clear(self) -> None:
        """Kill the container's remaining processes after its first process has ended."""
        self.signal(signal.SIGKILL)
        GUARD.ended(self.process.pid)

    def message_file(self) -> Path:
        return self.sandbox.termination_message

    def ask_to_stop(self) -> None:
        with suppress(ProcessLookupError):
            self.process.terminate()  # like a kubelet: PID 1 of the container, not its children

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _last_bytes(file: Path, size: int) -> str:
    return file.read_bytes()[-size:].decode(errors="replace") if file.exists() else ""


@dataclass
class ScriptedContainer:
    """A container that ends when the test says so, and when it is asked to stop (unless it is `stubborn`)."""

    ended: asyncio.Future[Exit]
    stubborn: bool = False

    async def wait(self) -> Exit:
        return await asyncio.shield(self.ended)

    def ask_to_stop(self) -> None:
        if not self.stubborn:
            self.finish(Exit(143))

    def kill(self) -> None:
        self.finish(Exit(137))

    def finish(self, how: Exit) -> None:
        """End it, once."""
        if not self.ended.done():
            self.ended.set_result(how)


Script = Callable[[Sandbox], Exit | None]


@dataclass
class ScriptedRuntime:
    """No processes. `script(sandbox)`: how a container ends at once, or None: it runs until the test ends it."""

    script: Script = lambda _sandbox: None
    needs_sandbox: bool = False
    containers: dict[str, ScriptedContainer] = field(default_factory=dict)

    async def start(self, sandbox: Sandbox) -> ScriptedContainer:
        container = ScriptedContainer(asyncio.get_running_loop().create_future())
        self.containers[sandbox.pod["metadata"]["name"]] = container
        how = self.script(sandbox)
        if how is not None:
            container.finish(how)
        return container

    async def start_beside(self, sandbox: Sandbox, command: Sequence[str]) -> None:
        return None

    def finish(self, pod: str, code: int = 0, message: str = "") -> None:
        """End the container of the pod `pod`."""
        self.containers[pod].finish(Exit(code, message))
