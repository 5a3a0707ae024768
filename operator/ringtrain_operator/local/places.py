"""Where a local job's things are: what is kept under the run directory, what is gone when the job is over."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..spec.reserved import VOLUME_LOGS
from .errors import LocalUnsupported
from .runner import Secrets

_PORTS = (15_000, 32_000)
_PORT_TRIES = 1000


@dataclass(frozen=True)
class Ports:
    """Ports of one attempt's launcher; everything else registers the port it got."""

    control: int
    status: int


@dataclass(frozen=True)
class Places:
    """Directories of one `dtj local`: `run_dir` is kept, `scratch` is not; claims outlive both."""

    run_dir: Path
    claims_dir: Path
    scratch: Path
    ports: dict[int, Ports] = field(default_factory=dict)

    @property
    def logs_dir(self) -> Path:
        """Root of the launcher's log store."""
        return self.run_dir / "logs"

    def pod_log(self, pod: str, attempt: str) -> Path:
        """What a pod itself writes, one file an attempt."""
        return self.run_dir / "pods" / f"{pod}.{attempt}.log"

    def ports_of(self, attempt: int) -> Ports:
        """The launcher's ports in `attempt`, chosen free when first asked for."""
        if attempt not in self.ports:
            self.ports[attempt] = _free_ports()
        return self.ports[attempt]


def volume_directory(volume: dict[str, Any], places: Places, pod_dir: Path, secrets: Secrets) -> Path:
    """A directory that is `volume`. Raises LocalUnsupported for what needs a cluster."""
    name = str(volume.get("name"))
    if name == VOLUME_LOGS:
        directory = places.logs_dir
    elif "persistentVolumeClaim" in volume:
        directory = places.claims_dir / str(volume["persistentVolumeClaim"]["claimName"])
    elif "emptyDir" in volume:
        directory = pod_dir / "volumes" / name
    elif "hostPath" in volume:
        return Path(volume["hostPath"]["path"])
    elif "secret" in volume:
        return _secret_directory(volume["secret"], pod_dir / "volumes" / name, secrets)
    else:
        kind = next((key for key in volume if key != "name"), "nothing")
        raise LocalUnsupported(f"volume {name!r}: a {kind} cannot be had without a cluster")
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


def _secret_directory(source: dict[str, Any], directory: Path, secrets: Secrets) -> Path:
    """The Secret's keys as files that only this user reads."""
    name = str(source.get("secretName"))
    if name not in secrets:
        raise LocalUnsupported(f"Secret {name!r} is not the job's own and cannot be had without a cluster")
    data = secrets[name]
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    directory.mkdir(parents=True, mode=0o700)
    for item in items:
        handle = os.open(directory / item["path"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data[item["key"]])
    return directory


def _free_ports() -> Ports:
    """Two ports that are free now, held together while choosing so that they differ."""
    with _listening() as one, _listening() as two:
        return Ports(control=one.getsockname()[1], status=two.getsockname()[1])


def _listening() -> socket.socket:
    """A server on a port below those that kernels give to connections: none takes it before it is used."""
    for _ in range(_PORT_TRIES):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", random.randrange(*_PORTS)))
    raise LocalUnsupported(f"no free port was found in {_PORTS[0]}..{_PORTS[1] - 1}")
