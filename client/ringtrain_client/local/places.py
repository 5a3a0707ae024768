"""Directories and ports of a local job: which files stay after a run, and which are removed at its end."""

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
_LOOPBACK_S = 5.0
_PORTS = (15_000, 32_000)
_PORT_TRIES = 1000
# Names of volumes and claims become directory names: one level, no "..".
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]*")


@dataclass(frozen=True)
class LocalPorts:
    """Ports of a local job's launcher, reserved by open sockets.

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
    """Directories that stay after a local run: the run's own directory, and the directory of claims, which later runs
    use again."""

    run_dir: Path
    claims_dir: Path

    def pod_log(self, pod: str, attempt: str = "") -> Path:
        """Return the path of the file with a pod's output: one per attempt, or a single one if `attempt` is empty."""
        return self.run_dir / "pods" / (f"{pod}.{attempt}.log" if attempt else f"{pod}.log")

    @cached_property
    def ports(self) -> LocalPorts:
        """Reserve two free ports for the launcher, at the first access.

        All attempts use the same ports, as a launcher keeps its name on a cluster. So data workers that outlive an
        attempt find the next attempt's launcher.
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
        raise LocalUnsupported(
            f"volume {name!r} has the source {shown(source)}, which needs a cluster; dtj local cannot provide it"
        )
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


def _written_volume(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Write files that only this user can read into a new directory of a volume and return the directory."""
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    for path, content in files.items():
        target = directory.joinpath(*(_directory_name(part, "the path of a key") for part in str(path).split("/")))
        target.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    return directory


def _directory_name(value: object, subject: str) -> str:
    """Return `value` if it is a plain file name. Otherwise raise LocalUnsupported, which names `subject`."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > 253:
        raise LocalUnsupported(f"{subject} is {shown(value)}; expected letters, digits, '-', '_' and '.'")
    return value


def check_loopback() -> None:
    """Raise LocalUnsupported if processes of this machine cannot reach each other at 127.0.0.1."""
    try:
        with socket.create_server((_LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), _LOOPBACK_S).close()
    except OSError as exc:
        why = os.strerror(exc.errno) if exc.errno else exc  # create_server adds words to strerror
        raise LocalUnsupported(
            f"processes of this machine cannot reach each other at {_LOOPBACK} ({why}); start the loopback interface "
            "as root: ip link set lo up && ip address replace 127.0.0.1/8 dev lo"
        ) from exc


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
