"""Pods in containers of their own images, as the strictest settings run them."""

import asyncio
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.images import USER, Engine
from support.kubelet.environment import Sandbox
from support.kubelet.runtimes import ProcessContainer, ProcessRuntime


class ImageRuntime:
    """Runs a pod's first container from its image, on the host's network, with a root that nobody can write to.

    Writable are /tmp, a /dev/shm of its own, and the pod's volumes, which belong to the user as `fsGroup` has it.
    """

    needs_sandbox = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def start(self, sandbox: Sandbox) -> "ImageContainer":
        env = dict(sandbox.env)
        if env.get("RINGTRAIN_ROLE") == "worker":
            env.update(dict.fromkeys(ProcessRuntime.FREE_PORTS, "0"))
        _give_to_user(sandbox.folder)
        pod = sandbox.pod
        for init in pod["spec"].get("initContainers") or ():
            await self._run_first(sandbox, init)
        name = f"{pod['metadata']['name']}-{secrets.token_hex(4)}"
        command = self._engine.command(
            pod["spec"]["containers"][0]["image"],
            f"--name={name}",
            "--entrypoint=",  # as a pod's command takes the place of it
            f"--hostname={pod['metadata']['name']}",
            "--tmpfs=/tmp:rw,mode=1777",
            "--shm-size=512m",
            f"--volume={sandbox.folder}:{sandbox.folder}",
            *(f"--volume={path}:{path}" for path in _claims(sandbox)),
            argv=sandbox.command,
            env=env,
        )
        with sandbox.log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        return ImageContainer(process, sandbox, self._engine, name)

    async def _run_first(self, sandbox: Sandbox, init: dict[str, Any]) -> None:
        """Run an init container to its end. Raises OSError if it fails."""
        mounts = init.get("volumeMounts") or ()
        volumes = [f"--volume={sandbox.folder / 'volumes' / m['name']}:{m['mountPath']}" for m in mounts]
        command = self._engine.command(init["image"], *volumes, "--entrypoint=", argv=init["command"])
        with sandbox.log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out)
        if code := await process.wait():
            raise OSError(f"init container {init['name']} ended with {code}: {sandbox.log.read_text()}")


@dataclass(frozen=True)
class ImageContainer(ProcessContainer):
    """The engine's process, which passes signals on and ends as its container ends."""

    engine: Engine
    name: str

    def clear(self) -> None:
        pass

    def kill(self) -> None:
        if self.process.returncode is None:
            self.engine.kill(self.name)


def _claims(sandbox: Sandbox) -> list[Path]:
    """Folders of claims lie beside the pod's own."""
    volumes = sandbox.pod["spec"].get("volumes") or []
    names = [(v.get("persistentVolumeClaim") or {}).get("claimName") for v in volumes]
    paths = [sandbox.folder.parent / "claims" / name for name in names if name]
    for path in paths:
        _give_to_user(path)
    return paths


def _give_to_user(folder: Path) -> None:
    uid, gid = (int(part) for part in USER.split(":"))
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, gid)
