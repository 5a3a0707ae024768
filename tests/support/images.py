"""Runs container images with the strictest settings of a cluster."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.commands import completed
from support.deadlines import patient

Json = dict[str, Any]
USER = "65532:65532"
RUN_WITHIN_S = 300.0


def find_engine() -> str:
    """Return the program of IMAGE_ENGINE, else docker or podman, whichever works; empty if none does."""
    for name in (os.environ.get("IMAGE_ENGINE"), "docker", "podman"):
        if not name or not shutil.which(name):
            continue
        answer = subprocess.run([name, "images", "--quiet"], capture_output=True, timeout=patient(60), check=False)
        if answer.returncode == 0:
            return name
    return ""


@dataclass(frozen=True)
class Engine:
    """A container engine with docker's command line: docker or podman."""

    program: str

    def inspect(self, image: str) -> Json:
        """Return the engine's data of an image. Raises LookupError if it does not exist."""
        done = completed([self.program, "image", "inspect", image])
        if done.returncode:
            raise LookupError(f"{self.program} has no image {image}: `make images` builds it ({done.stderr.strip()})")
        return json.loads(done.stdout)[0]

    def command(
        self,
        image: str,
        *options: str,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        user: str = USER,
    ) -> list[str]:
        """Return the words that run `argv` (default: the image's own) in a container that is removed at its end.

        Its root is read-only, and it has no capability and no way to get one. The host's network is its network.
        `options`: more of the engine's, for example writable places.
        """
        own = ["--read-only-tmpfs=false"] if "podman" in Path(self.program).name else []
        bounds = ["--read-only", *own, "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--user={user}"]
        words = [self.program, "run", "--rm", "--pull=never", "--network=host", "--log-driver=none", *bounds]
        variables = [f"--env={name}={value}" for name, value in (env or {}).items()]
        return [*words, *variables, *options, image, *argv]

    def run(
        self, image: str, *options: str, argv: Sequence[str] = (), stdin: str = "", user: str = USER
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` to its end and return the result, with stdout and stderr together in stdout."""
        command = self.command(image, *options, "--interactive", argv=argv, user=user)
        return subprocess.run(
            command,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_WITHIN_S,
            check=False,
        )

    def kill(self, name: str) -> None:
        """Send SIGKILL to a container by its name, if it exists."""
        subprocess.run([self.program, "kill", name], capture_output=True, timeout=patient(60), check=False)
