"""Translation of a pod to a command on this machine: environment, volumes and ports. Images are ignored."""

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringtrain_operator import contract
from ringtrain_operator.errors import LocalUnsupported, shown

from .contents import Contents, value_of, variables_from
from .places import LocalPlaces, Pod, volume_directory

_LOOPBACK = "127.0.0.1"
# Variables of the caller's job that a pod must not inherit: its ranks would join that job.
_FOREIGN = re.compile(r"^(RINGTRAIN_|OMPI_|PMI|PMIX_|SLURM_|TF_CONFIG$|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|GROUP_RANK$)")
# Characters allowed before and after a path in a word or script: `$HOME/data` and `/data-2` do not match `/data`.
_BEFORE, _AFTER = r"(^|[\s=:,;&|<>(\"'`\[])", r"(?=$|[^\w.-])"
_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")


@dataclass(frozen=True)
class LocalPodCommand:
    """A process to start for a pod."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    termination_path: Path
    log_path: Path


def command_of(pod: Pod, places: LocalPlaces, pod_dir: Path, contents: Contents) -> LocalPodCommand:
    """Return the command of `pod`'s main container. Raises LocalUnsupported if it needs a cluster."""
    spec, metadata = pod["spec"], pod["metadata"]
    main = spec["containers"][0]
    termination = pod_dir / "termination-log"
    paths = _mounts(spec, main, places, pod_dir, contents)
    paths[main["terminationMessagePath"]] = termination
    declared = _declared_variables(pod, main, contents)
    declared.update(_port_variables(declared, places))
    declared.update(_temporary_folder_variable(declared, pod_dir))
    env = {name: _with_local_paths(value, paths) for name, value in declared.items()}
    argv = [_with_local_paths(expand(part, env), paths) for part in [*main["command"], *main.get("args", [])]]
    attempt = metadata["labels"].get(contract.LABEL_ATTEMPT, "")
    # Also if the template defines PATH, for example as in its image.
    env["PATH"] = _search_path(env.get("PATH", os.environ.get("PATH", os.defpath)))
    return LocalPodCommand(
        argv=tuple(argv),
        env={**{name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}, **env},
        cwd=_working_directory(main),
        termination_path=termination,
        log_path=places.pod_log(metadata["name"], attempt),
    )


def expand(text: str, env: Mapping[str, str]) -> str:
    """Return `text` with `$(NAME)` replaced as a kubelet does: unknown names stay, `$$` becomes `$`."""

    def replacement(match: re.Match[str]) -> str:
        if match.group(1) == "$":
            return "$"
        return env.get(match.group(2), match.group(0))

    return _REFERENCE.sub(replacement, text)


def _declared_variables(pod: Pod, main: Mapping[str, Any], contents: Contents) -> dict[str, str]:
    """Return the variables of `envFrom` and `env`, in order. A value can refer to earlier variables."""
    env = variables_from(main.get("envFrom") or (), contents)
    for variable in main.get("env") or ():
        name, source = _env_name(variable), variable.get("valueFrom")
        value = (
            _sourced_variable(pod, name, source, contents) if source else expand(str(variable.get("value") or ""), env)
        )
        if value is not None:
            env[name] = value
    return env


def _env_name(variable: Mapping[str, Any]) -> str:
    name = variable.get("name")
    if not name or "=" in name:
        raise LocalUnsupported(f"env: a variable's name is {shown(name)}; expected a string without '='")
    return str(name)


def _sourced_variable(pod: Pod, name: str, source: Mapping[str, Any], contents: Contents) -> str | None:
    """Return the value of a variable with `valueFrom`; None if it is optional and absent."""
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if field in source:
            return value_of(kind, source[field] or {}, contents)
    return _field_value(pod, name, source)


def _field_value(pod: Pod, name: str, source: Mapping[str, Any]) -> str:
    """Return the value of the pod's field that a variable names (downward API). Raises LocalUnsupported for a field
    that needs a cluster."""
    path = str((source.get("fieldRef") or {}).get("fieldPath"))
    metadata = pod["metadata"]
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata.get("uid", ""),
        "spec.nodeName": socket.gethostname(),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.podIP": _LOOPBACK,
        "status.hostIP": _LOOPBACK,
    }
    for kind in ("labels", "annotations"):
        known.update({f"metadata.{kind}['{key}']": value for key, value in (metadata.get(kind) or {}).items()})
    if path not in known:
        raise LocalUnsupported(
            f"env {name!r} has the source {dict(source)}, which needs a cluster; dtj local cannot provide it"
        )
    return str(known[path])


def _port_variables(declared: Mapping[str, str], places: LocalPlaces) -> dict[str, str]:
    """Return the port variables of docs/contract.md, with ports that are free on this machine."""
    ports = places.ports
    local = {
        contract.ENV_LAUNCHER_PORT: str(ports.control),
        contract.ENV_STATUS_PORT: str(ports.status),
        contract.ENV_LAUNCHER_ADDRESS: f"{_LOOPBACK}:{ports.control}",
        # 0: any free port, registered with the launcher.
        contract.ENV_AGENT_PORT: "0",
        contract.ENV_RING_PORT_BASE: "0",
        contract.ENV_MASTER_PORT: "0",
        contract.ENV_TF_PORT_BASE: "0",
        contract.ENV_DATA_PORT: "0",
        contract.ENV_SITE_LABEL: "",  # one machine is one site, and has no labels
        contract.ENV_WORKER_IMAGE: "",  # programs of this machine run
    }
    rewritten = {name: value for name, value in local.items() if name in declared}
    return {**rewritten, contract.ENV_PORTS_HELD: "1"} if contract.ENV_LAUNCHER_PORT in declared else rewritten


def _temporary_folder_variable(declared: Mapping[str, str], pod_dir: Path) -> dict[str, str]:
    """Return TMPDIR with a new directory inside the pod's directory, which is removed together with the pod.

    Empty except for pods that may be killed while the job runs: those of an elastic job, and those that outlive
    attempts.
    """
    outlives_attempts = contract.ENV_ATTEMPT not in declared
    if not (outlives_attempts or contract.ENV_ELASTIC in declared) or "TMPDIR" in declared:
        return {}
    directory = pod_dir / "tmp"
    directory.mkdir(mode=0o700, exist_ok=True)
    return {"TMPDIR": str(directory)}


def _mounts(
    spec: Mapping[str, Any], main: Mapping[str, Any], places: LocalPlaces, pod_dir: Path, contents: Contents
) -> dict[str, Path]:
    """Return the directories of this machine that replace the container's mount paths, except for /dev/shm."""
    volumes = {volume.get("name"): volume for volume in spec.get("volumes") or ()}
    paths: dict[str, Path] = {}
    for mount in main.get("volumeMounts") or ():
        path = str(mount.get("mountPath") or "").rstrip("/")
        if not path.startswith("/"):
            raise LocalUnsupported(
                f"volumeMount {mount.get('name')!r} has the mountPath {path!r}; expected a full path"
            )
        if path == "/dev/shm":
            continue
        if mount.get("name") not in volumes:
            raise LocalUnsupported(f"volumeMount {mount.get('name')!r} names no volume")
        directory = volume_directory(volumes[mount["name"]], places, pod_dir, contents)
        paths[path] = directory / _sub_path(mount)
    return paths


def _sub_path(mount: Mapping[str, Any]) -> Path:
    path = Path(mount.get("subPath") or "")
    if path.is_absolute() or ".." in path.parts:
        raise LocalUnsupported(f"volumeMount {mount['name']!r}: subPath {str(path)!r} leaves the volume")
    return path


def _with_local_paths(text: str, paths: Mapping[str, Path]) -> str:
    """Return `text` with each container path in `paths` replaced by its local path, longer paths first."""
    for path in sorted(paths, key=len, reverse=True):
        here = str(paths[path]).replace("\\", r"\\")
        text = re.sub(rf"{_BEFORE}{re.escape(path)}{_AFTER}", rf"\g<1>{here}", text)
    return text


def _search_path(path: str) -> str:
    """Return the search path `path`, preceded by the directory of this interpreter's `python` and `ringtrain`."""
    return os.pathsep.join([str(Path(sys.executable).parent), path])


def _working_directory(main: Mapping[str, Any]) -> Path:
    """Return the container's working directory if it exists on this machine, otherwise the current directory."""
    wanted = main.get("workingDir")
    return Path(wanted) if wanted and Path(wanted).is_dir() else Path.cwd()
