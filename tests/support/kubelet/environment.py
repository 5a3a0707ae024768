"""What a container sees: environment and command, resolved to values and folders of this machine."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import SECRETS
from support.kubelet.volumes import make_volume

Json = dict[str, Any]
ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
_REFERENCE = re.compile(r"\$(?:\$|\(([A-Za-z_][A-Za-z0-9_]*)\))")


@dataclass(frozen=True)
class Sandbox:
    """A container ready to run: `folder` is its own, `env` complete, `command` with its references expanded."""

    pod: Json
    address: str
    folder: Path
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.folder / "container.log"

    @property
    def termination_message(self) -> Path:
        return self.folder / "termination-log"


async def _from_secrets(api: ApiClient, pod: Json, container: Json) -> dict[str, str]:
    """The keys of the Secrets that `envFrom` names."""
    found: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        secret = await api.get(SECRETS, pod["metadata"]["namespace"], source["secretRef"]["name"])
        found |= {name: base64.b64decode(value).decode() for name, value in (secret.get("data") or {}).items()}
    return found


async def prepare(api: ApiClient, pod: Json, address: str, folder: Path) -> Sandbox:
    """Make the first container's volumes under `folder` and resolve its environment.

    A path of the container (a mount, the termination message) inside a value becomes the folder's own, because
    there is no mount namespace. Raises NotFound for a Secret that is not there.
    """
    container = pod["spec"]["containers"][0]
    folder.mkdir(parents=True, exist_ok=True)
    volumes = {v["name"]: await make_volume(api, pod, v, folder) for v in pod["spec"].get("volumes") or []}
    paths = {"/dev/termination-log": folder / "termination-log"}
    for mount in container.get("volumeMounts") or []:
        if mount["name"] in volumes:
            paths[mount["mountPath"].rstrip("/")] = volumes[mount["name"]] / mount.get("subPath", "")
    env = {**_of_account(api, paths), **await _from_secrets(api, pod, container)}
    for entry in container.get("env") or []:
        value = str(entry["value"]) if "value" in entry else _from_field(pod, entry.get("valueFrom") or {}, address)
        env[entry["name"]] = _relocate(_expand(value, env), paths)
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    command = tuple(_relocate(_expand(w, env), paths) for w in words)
    env["RINGTRAIN_TERMINATION_MESSAGE_PATH"] = str(folder / "termination-log")
    return Sandbox(pod, address, folder, command, env)


def _of_account(api: ApiClient, paths: Mapping[str, Path]) -> dict[str, str]:
    """How a pod with a token finds the API server; our programs look for the token where the variable says."""
    if ACCOUNT_DIR not in paths:
        return {}
    server = urlsplit(api.connection.server)
    return {
        "KUBERNETES_SERVICE_HOST": str(server.hostname),
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "RINGTRAIN_SERVICE_ACCOUNT_DIR": str(paths[ACCOUNT_DIR]),
    }


def _from_field(pod: Json, source: Json, address: str) -> str:
    path = (source.get("fieldRef") or {}).get("fieldPath", "")
    known = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "status.podIP": address,
        "status.hostIP": "127.0.0.1",
    }
    return str(known.get(path, ""))


def _expand(value: str, env: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda m: env.get(m.group(1), m.group(0)) if m.group(1) else "$", value)


def _relocate(value: str, paths: Mapping[str, Path]) -> str:
    for inside, outside in sorted(paths.items(), key=lambda item: -len(item[0])):
        if value == inside or value.startswith(inside + "/"):
            return str(outside) + value[len(inside) :]
    return value
