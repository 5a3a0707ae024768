"""Pods in root file systems of their own, as containers of their images: namespaces, read-only root, any user."""

import asyncio
import os
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.commands import completed
from support.deadlines import patient
from support.guard import GUARD
from support.kubelet.environment import Sandbox
from support.kubelet.runtimes import ProcessContainer, ProcessRuntime

Json = dict[str, Any]
# A user that no image and no machine knows.
USER = 54321
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEVICES = ("null", "zero", "random", "urandom")
_COPIES_WITHIN_S = 60.0


def why_no_roots() -> str:
    """Return the reason that a process cannot have another root here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root, to give processes another root"
    command = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        done = completed(command, timeout=patient(30))
    except OSError as exc:
        return f"needs unshare: {exc}"
    return f"needs mount namespaces: {done.stderr.strip()}" if done.returncode else ""


@dataclass(frozen=True)
class Image:
    """An image as it lies unpacked in `root`, and the variables that it sets.

    `parts`: folders of this machine that it has, too, by their paths in the image, so that nobody need copy them.
    """

    root: Path
    env: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Path] = field(default_factory=dict)


class RootRuntime:
    """Runs a pod's init containers and its first container, each in the root of its image.

    Nobody can write to a root; a container that may has a /tmp. Volumes belong to the user, and are where the pod
    mounts them. The network is this machine's.
    """

    needs_sandbox = True

    def __init__(self, images: Mapping[str, Image], user: int = USER) -> None:
        self._images = images
        self._user = user
        self._running: dict[str, int] = {}

    async def start(self, sandbox: Sandbox) -> "RootContainer":
        spec = sandbox.pod["spec"]
        for path in (sandbox.folder, *sandbox.folder.rglob("*")):
            os.chown(path, self._user, self._user)
        with sandbox.log.open("ab") as out:
            for init in spec.get("initContainers") or ():
                words = self._words(sandbox, init, init["command"], {})
                process = await asyncio.create_subprocess_exec(*words, env={}, stdout=out, stderr=out)
                async with asyncio.timeout(_COPIES_WITHIN_S):
                    code = await process.wait()
                if code:
                    raise OSError(f"init container {init['name']} ended with {code}: {sandbox.log.read_text()}")
            env = dict(sandbox.env)
            if env.get("RINGTRAIN_ROLE") == "worker":
                env.update(dict.fromkeys(ProcessRuntime.FREE_PORTS, "0"))
            words = self._words(sandbox, spec["containers"][0], sandbox.command, env)
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        GUARD.begun(process.pid)
        self._running[sandbox.pod["metadata"]["uid"]] = process.pid
        return RootContainer(process, sandbox)

    async def start_beside(self, sandbox: Sandbox, command: Sequence[str]) -> asyncio.subprocess.Process:
        first = str(_children(self._running[sandbox.pod["metadata"]["uid"]])[0])
        inside = [f"--target={first}", "--mount", "--pid", "--root", "--wd"]
        user = [f"--setuid={self._user}", f"--setgid={self._user}"]
        image = self._images[sandbox.pod["spec"]["containers"][0]["image"]]
        env = {"PATH": PATH, **image.env, **sandbox.env}
        pipe = asyncio.subprocess.PIPE
        nsenter = shutil.which("nsenter") or "nsenter"
        words = [nsenter, *inside, *user, "--", *command]
        return await asyncio.create_subprocess_exec(*words, env=env, stdout=pipe, stderr=pipe)

    def _words(self, sandbox: Sandbox, container: Json, command: Sequence[str], env: Mapping[str, str]) -> list[str]:
        """Return a command line that runs `command` as PID 1 of namespaces in which its image is the root."""
        image = self._images[container["image"]]
        root, lines = image.root, ["set -e", "mount --make-rprivate /"]

        def bind(source: Path, target: str, *, read_only: bool) -> None:
            place = shlex.quote(f"{root}/{target.lstrip('/')}")
            lines.append(f"mkdir -p {place} && mount --rbind {shlex.quote(str(source))} {place}")
            if read_only:
                lines.append(f"mount -o remount,bind,ro {place}")

        for name in ("proc", "dev", "sys"):
            (root / name).mkdir(exist_ok=True)
        declared = sandbox.pod["spec"]["volumes"]
        volumes = {volume["name"]: self._volume(sandbox, volume) for volume in declared}
        lines.append(f"mount --rbind {root} {root}")
        for target, source in image.parts.items():
            bind(source, target, read_only=True)
        if not (container.get("securityContext") or {}).get("readOnlyRootFilesystem"):
            scratch = sandbox.folder / "tmp"
            scratch.mkdir(exist_ok=True)
            scratch.chmod(0o1777)
            bind(scratch, "/tmp", read_only=False)
        # What lies in another mount comes after it: the pod's folder may be in its /tmp.
        for mount in sorted(container.get("volumeMounts") or (), key=lambda one: str(one["mountPath"])):
            read_only = bool(mount.get("readOnly"))
            bind(volumes[mount["name"]], mount["mountPath"], read_only=read_only)
        if container is sandbox.pod["spec"]["containers"][0]:  # its words have the folder's paths
            for mount in container.get("volumeMounts") or ():
                path = _made(sandbox, next(v for v in declared if v["name"] == mount["name"]))
                bind(volumes[mount["name"]], str(path), read_only=bool(mount.get("readOnly")))
        own = sandbox.folder / "own"
        own.mkdir(exist_ok=True)
        os.chown(own, self._user, self._user)
        bind(own, str(own), read_only=False)
        lines += [
            f"mount -o remount,bind,ro {root}",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /sys {root}/sys",
            *_devices(root),
        ]
        lines.append(f"mount --rbind /sys {root}/sys")
        variables = {"PATH": PATH, **image.env, **env}
        if "RINGTRAIN_TERMINATION_MESSAGE_PATH" in variables:
            variables["RINGTRAIN_TERMINATION_MESSAGE_PATH"] = str(sandbox.folder / "own" / "termination-log")
        clean = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in variables.items())])
        user = f"--userspec={self._user}:{self._user}"
        chroot = shutil.which("chroot", path=f"{os.environ['PATH']}:/usr/sbin")  # which not every PATH has
        lines.append(f"exec {clean} {chroot} {user} --groups= {root} {shlex.join(command)}")
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", "\n".join(lines)]

    def _volume(self, sandbox: Sandbox, volume: Json) -> Path:
        if "image" in volume:
            return self._images[volume["image"]["reference"]].root
        path = _made(sandbox, volume)
        os.chown(path, self._user, self._user)
        return path


def _made(sandbox: Sandbox, volume: Json) -> Path:
    """Return the path at which `prepare` made the volume."""
    claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
    return sandbox.folder.parent / "claims" / claim if claim else sandbox.folder / "volumes" / volume["name"]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _devices(root: Path) -> list[str]:
    dev = f"{root}/dev"
    made = [f"touch {dev}/{name} && mount --bind /dev/{name} {dev}/{name}" for name in _DEVICES]
    shared = [f"mkdir -p -m 1777 {dev}/shm", f"chmod 1777 {dev}/shm"]
    # /dev/shm of the pod is mounted before; it is this tmpfs here.
    return [f"mount -t tmpfs -o mode=755 none {dev}", *made, *shared, f"ln -s /proc/self/fd {dev}/fd"]


class RootContainer(ProcessContainer):
    """`unshare`, whose child is the container's first process; all of it ends with that."""

    def clear(self) -> None:
        GUARD.ended(self.process.pid)

    def message_file(self) -> Path:
        return self.sandbox.folder / "own" / "termination-log"

    def ask_to_stop(self) -> None:
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        with suppress(OSError):
            for child in _children(self.process.pid):
                os.kill(child, number)
