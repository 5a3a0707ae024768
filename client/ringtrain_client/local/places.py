"""Where a local job's things are: what is kept under the run directory, what is gone when the job is over."""

import os
import random
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ringtrain_operator.errors import LocalUnsupported, shown
from ringtrain_operator.spec.reserved import VOLUME_LOGS

from .contents import Contents, files_of

Pod = dict[str, Any]

_LOOPBACK = "127.0.0.1"
# Volumes that are files, and what has them.
_FILES = {"configMap": "ConfigMap", "secret": "Secret"}
_PORTS = (15_000, 32_000)
_PORT_TRIES = 1000
# Names of volumes and claims are directories here: one level, and not a way out.
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]*")


@dataclass(frozen=True)
class LocalPorts:
    """Ports of the job's launcher, held by this process for it; everything else registers the port it got."""

    held: tuple[socket.socket, socket.socket]

    @property
    def control(self) -> int:
        """That of the control service."""
        return _held_local_port_number(self.held[0])

    @property
    def status(self) -> int:
        """That of `/status`."""
        return _held_local_port_number(self.held[1])


@dataclass(frozen=True)
class LocalPlaces:
    """Directories of one `dtj local` that are kept: its own, and that of claims, which outlive it."""

    run_dir: Path
    claims_dir: Path

    def pod_log(self, pod: str, attempt: str = "") -> Path:
        """What a pod itself writes, one file an attempt; a pod that outlives attempts has one file."""
        return self.run_dir / "pods" / (f"{pod}.{attempt}.log" if attempt else f"{pod}.log")

    @cached_property
    def ports(self) -> LocalPorts:
        """The launcher's ports, chosen free: the same in every attempt, as its name is on a cluster. Data workers
        that outlive one find the next one's launcher there."""
        return LocalPorts((_held_local_port(), _held_local_port()))

    def close(self) -> None:
        """Give the ports up."""
        for held in self.ports.held:
            held.close()


def volume_directory(volume: dict[str, Any], places: LocalPlaces, pod_dir: Path, contents: Contents) -> Path:
    """A directory that is `volume`. Raises LocalUnsupported for what needs a cluster."""
    name = str(volume.get("name"))
    if name == VOLUME_LOGS:
        directory = places.run_dir / "logs"
    elif "persistentVolumeClaim" in volume:
        claim = (volume["persistentVolumeClaim"] or {}).get("claimName")
        directory = places.claims_dir / _directory_name(claim, f"volume {name!r}: the claim's name")
    elif "emptyDir" in volume:
        directory = pod_dir / "volumes" / _directory_name(name, "the volume's name")
    elif "hostPath" in volume:
        return Path(str((volume["hostPath"] or {}).get("path") or "/"))
    elif kinds := [kind for kind in _FILES if kind in volume]:
        directory = pod_dir / "volumes" / _directory_name(name, "the volume's name")
        return _written_volume(directory, files_of(_FILES[kinds[0]], volume[kinds[0]] or {}, contents))
    else:
        source = {kind: given for kind, given in volume.items() if kind != "name"}
        raise LocalUnsupported(f"volume {name!r}: {shown(source)} cannot be had without a cluster")
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


def _written_volume(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Files that only this user reads."""
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    for path, content in files.items():
        target = directory.joinpath(*(_directory_name(part, "the path of a key") for part in str(path).split("/")))
        target.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    return directory


def _directory_name(value: object, what: str) -> str:
    """`value` as the name of something in one directory. Raises LocalUnsupported when it would lie elsewhere."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > 253:
        raise LocalUnsupported(f"{what} is {shown(value)}; expected letters, digits, '-', '_' and '.'")
    return value


def _held_local_port() -> socket.socket:
    """A socket bound to a port that only a process that asks for SO_REUSEPORT can take beside it: the launcher.

    The port is below those that kernels give to connections.
    """
    for _ in range(_PORT_TRIES):
        held = socket.socket()
        try:
            held.bind((_LOOPBACK, random.randrange(*_PORTS)))
        except OSError:
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return held
    raise LocalUnsupported(f"no free port was found in {_PORTS[0]}..{_PORTS[1] - 1}")


def _held_local_port_number(held: socket.socket) -> int:
    return int(held.getsockname()[1])
