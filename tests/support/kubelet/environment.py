"""Environment and command of a container, resolved to values and folders of this machine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ringtrain_operator.cluster.api.client import ApiClient
from support.kubelet.volumes import Missing, make_volume, read_data

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


async def _from_objects(api: ApiClient, pod: Json, container: Json) -> dict[str, str]:
    """Return the keys of the Secrets and ConfigMaps that `envFrom` names. Raises Missing."""
    found: dict[str, bytes] = {}
    for source in container.get("envFrom") or []:
        kind = "secret" if "secretRef" in source else "configMap"
        found |= await read_data(api, pod["metadata"]["namespace"], source[f"{kind}Ref"], kind)
    return {name: value.decode() for name, value in found.items()}


async def _value_of(api: ApiClient, pod: Json, entry: Json, address: str) -> str | None:
    """Return a variable's value before expansion; None if its key is optional and absent. Raises Missing."""
    source = entry.get("valueFrom") or {}
    for kind in ("secret", "configMap"):
        if chosen := source.get(f"{kind}KeyRef"):
            data = await read_data(api, pod["metadata"]["namespace"], chosen, kind)
            if chosen["key"] in data:
                return data[chosen["key"]].decode()
            if chosen.get("optional"):
                return None
            where = f"{kind[0].upper()}{kind[1:]} {pod['metadata']['namespace']}/{chosen['name']}"
            raise Missing(f"couldn't find key {chosen['key']} in {where}")
    return _from_field(pod, source, address) if source else str(entry.get("value", ""))


async def prepare(api: ApiClient, pod: Json, address: str, folder: Path) -> Sandbox:
    """Make the first container's volumes under `folder` and resolve its environment.

    A path of the container (a mount, the termination message) inside a value becomes the folder's own, because
    there is no mount namespace. Raises Missing for a Secret or ConfigMap that is not there.
    """
    container = pod["spec"]["containers"][0]
    folder.mkdir(parents=True, exist_ok=True)
    volumes = {v["name"]: await make_volume(api, pod, v, folder) for v in pod["spec"].get("volumes") or []}
    paths = {"/dev/termination-log": folder / "termination-log"}
    for mount in container.get("volumeMounts") or []:
        if mount["name"] in volumes:
            paths[mount["mountPath"].rstrip("/")] = volumes[mount["name"]] / mount.get("subPath", "")
    env = {**_of_account(api, paths), **await _from_objects(api, pod, container)}
    for entry in container.get("env") or []:
        value = await _value_of(api, pod, entry, address)
        if value is not None:
            env[entry["name"]] = _relocate(_expand(value, env), paths)
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    command = tuple(_relocate(_expand(w, env), paths) for w in words)
    env["RINGTRAIN_TERMINATION_MESSAGE_PATH"] = str(folder / "termination-log")
    return Sandbox(pod, address, folder, command, env)


def _of_account(api: ApiClient, paths: Mapping[str, Path]) -> dict[str, str]:
    """Return the variables with which a pod finds the API server, and the folder where our programs find the token."""
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
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.podIP": address,
        "status.hostIP": "127.0.0.1",
        **{f"metadata.labels['{key}']": value for key, value in (pod["metadata"].get("labels") or {}).items()},
    }
    return str(known.get(path, ""))


def _expand(value: str, env: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda m: env.get(m.group(1), m.group(0)) if m.group(1) else "$", value)


def _relocate(value: str, paths: Mapping[str, Path]) -> str:
    for inside, outside in sorted(paths.items(), key=lambda item: -len(item[0])):
        if value == inside or value.startswith(inside + "/"):
            return str(outside) + value[len(inside) :]
    return value
