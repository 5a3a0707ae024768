"""Configuration of an operator process, and its log format: one JSON object per line, or plain text."""

import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from ..build import BuildSettings


@dataclass(frozen=True)
class OperatorConfig:
    """Configuration of one operator process. `namespaces`: empty for the whole cluster.

    `stuck_after_s`: longest time of one reconcile, or of one round of the watch loop, before /healthz fails. The
    requests of a reconcile have shorter timeouts. `kueue`: whether Kueue's Workloads may be written. `gangs`: permitted
    gang schedulers, each with its schedulerName. `provisioning`: whether nodes may be requested from cluster
    autoscalers. `objects`: settings for the jobs' objects; their namespace is derived from `lease_namespace`.
    """

    namespaces: tuple[str, ...] = ()
    workers: int = 16
    connections: int = 24
    resync_s: float = 600.0
    listen: str = ":8080"
    leader_election: bool = True
    lease_namespace: str = ""
    lease_name: str = "ringtrain-operator"
    identity: str = ""
    log_format: Literal["json", "text"] = "json"
    log_level: str = "info"
    grace_s: float = 20.0
    stuck_after_s: float = 300.0
    kueue: bool = False
    gangs: Mapping[str, str] = field(default_factory=dict)
    provisioning: bool = False
    objects: BuildSettings = field(default_factory=BuildSettings)

    def address(self) -> tuple[str | None, int]:
        """Host (None for all) and port in `listen`. Raises ValueError with the expected format."""
        host, _, port = self.listen.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"--listen is {self.listen!r}; expected host:port or :port, for example :8080")
        return host.strip("[]") or None, int(port)


def default_identity(env: Mapping[str, str]) -> str:
    """Return a name that no other replica has: the pod's name, or host name and process id outside of a pod."""
    return env.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Log formatter for JSON lines: time, level, logger, message, the fields of `extra`, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD and not k.startswith("k8s")})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_logging(style: Literal["json", "text"], level: str) -> None:
    """Log to stderr in `style`, from `level` on. The library kopf logs warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if style == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
