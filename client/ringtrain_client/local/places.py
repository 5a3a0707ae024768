"""Directories and ports of a local job: files that stay in the run directory, and files that are removed at the end."""

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
# Volumes of files, and the kind of object that has them.
_FILES = {"configMap": "ConfigMap", "secret": "Secret"}
_PORTS = (15_000, 32_000)
_PORT_TRIES = 1000
# Names of volumes and claims become directory names: one level, no "..".
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]*")


@dataclass(frozen=True)
class LocalPorts:
    """Ports of the job's launcher, reserved by open sockets.

    All other processes register their port with the launcher.
    """

    sockets: tuple[socket.socket, socket.socket]

    @property
    def control(self) -> int:
        """Port of the control service."""
        return _port_of(self.sockets[0])

    @property
    def status(self) -> int:
        """Port of `/status`."""
        return _port_of(self.sockets[1])


@dataclass(frozen=True)
class LocalPlaces:
    """Directories that one `dtj local` does not remove: the run's directory, and the directory of claims, which
    outlive the run."""

    run_dir: Path
    claims_dir: Path

    def pod_log(self, pod: str, attempt: str = "") -> Path:
        """Return the path of a pod's output: one file per attempt, or one for a pod that outlives attempts."""
        return self.run_dir / "pods" / (f"{pod}.{attempt}.log" if attempt else f"{pod}.log")

    @cached_property
    def ports(self) -> LocalPorts:
        """Free ports for the launcher.

        All attempts use the same ones, as a launcher's name on a cluster stays the same.
        Data workers that outlive an attempt find the next attempt's launcher there.
        """
        return LocalPorts((_bound_socket(), _bound_socket()))

    def close(self) -> None:
        """Release the ports."""
        for held in self.ports.sockets:
            held.close()


def volume_directory(volume: dict[str, Any], places: LocalPlaces, pod_dir: Path, contents: Contents) -> Path:
    """Return a directory for `volume`. Raises LocalUnsupported if it needs a cluster."""
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
        source = {kind: value for kind, value in volume.items() if kind != "name"}
        raise LocalUnsupported(f"volume {name!r}: {shown(source)} needs a cluster")
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


def _written_volume(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Write files that only this user can read, and return their directory."""
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    for path, content in files.items():
        target = directory.joinpath(*(_directory_name(part, "the path of a key") for part in str(path).split("/")))
        target.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    return directory


def _directory_name(value: object, subject: str) -> str:
    """Return `value` if it is a plain file name. Raises LocalUnsupported with `subject` otherwise."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > 253:
        raise LocalUnsupported(f"{subject} is {shown(value)}; expected letters, digits, '-', '_' and '.'")
    return value


def _bound_socket() -> socket.socket:
    """Return a socket that reserves a port. Only a process with SO_REUSEPORT, the launcher, can also bind it.

    The port is below the kernel's range for outgoing connections.
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


def _port_of(held: socket.socket) -> int:
    """Return the port of a bound socket."""
    return int(held.getsockname()[1])
