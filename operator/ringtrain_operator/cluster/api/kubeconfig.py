"""Kubeconfigs, read and merged by the rules of kubectl (client-go's clientcmd), and the selected context."""

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from .errors import ApiError

T = TypeVar("T")


class Cluster(msgspec.Struct, rename="kebab"):
    """A kubeconfig's cluster: address of an API server, and checks of its certificate. Empty fields are not set."""

    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""


class ExecVariable(msgspec.Struct):
    """An environment variable that a kubeconfig sets for an exec plugin."""

    name: str
    value: str = ""


class ExecConfig(msgspec.Struct, rename="camel"):
    """A program that prints credentials."""

    command: str = ""
    api_version: str = ""
    args: list[str] = []
    env: list[ExecVariable] = []
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class AuthProvider(msgspec.Struct):
    """Plugin type of old kubeconfigs, before exec plugins. Only `oidc` is supported."""

    name: str = ""
    config: dict[str, str] = {}


class User(msgspec.Struct, rename="kebab"):
    """A kubeconfig's user: credentials. Empty fields are not set."""

    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    impersonate: str = msgspec.field(default="", name="as")
    impersonate_uid: str = msgspec.field(default="", name="as-uid")
    impersonate_groups: list[str] = msgspec.field(default=[], name="as-groups")
    impersonate_extra: dict[str, list[str]] = msgspec.field(default={}, name="as-user-extra")
    exec: ExecConfig | None = None
    auth_provider: AuthProvider | None = None


class Context(msgspec.Struct):
    """A kubeconfig's context: the names of a cluster, a user and a namespace."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: Cluster = msgspec.field(default_factory=Cluster)


class _NamedUser(msgspec.Struct):
    name: str
    user: User = msgspec.field(default_factory=User)


class _NamedContext(msgspec.Struct):
    name: str
    context: Context = msgspec.field(default_factory=Context)


class _File(msgspec.Struct, rename="kebab"):
    kind: str = "Config"
    api_version: str = msgspec.field(default="v1", name="apiVersion")
    current_context: str = ""
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []


@dataclass(frozen=True)
class ChosenContext:
    """Cluster, user and namespace of the selected context. `where`: names of the files, for messages. `is_read`:
    whether any of them exists."""

    where: str
    cluster: Cluster
    user: User
    namespace: str
    is_read: bool


def kubeconfig_paths(env: Mapping[str, str], explicit: str) -> tuple[list[Path], bool]:
    """Return the kubeconfig files in order of precedence, as in kubectl, and whether they must exist."""
    if explicit:
        return [Path(explicit)], True
    if listed := env.get("KUBECONFIG"):
        return [Path(name) for name in dict.fromkeys(listed.split(os.pathsep)) if name], False
    return [Path(env.get("HOME") or "~").expanduser() / ".kube" / "config"], False


def choose_context(env: Mapping[str, str], explicit: str, context: str) -> ChosenContext:
    """Return the context named `context`; if that is empty, the files' current context. Raises ApiError if no file has
    it, or if a file is invalid."""
    paths, required = kubeconfig_paths(env, explicit)
    files = [_read_file(path) for path in paths if required or path.exists()]
    where = ", ".join(map(str, paths))
    clusters = _first_of_each({one.name: one.cluster for one in file.clusters} for file in files)
    users = _first_of_each({one.name: one.user for one in file.users} for file in files)
    contexts = _first_of_each({one.name: one.context for one in file.contexts} for file in files)
    name = context or next((file.current_context for file in files if file.current_context), "")
    if name and name not in contexts:
        raise ApiError(
            f"kubeconfig {where} has no context {name!r}; expected one of {', '.join(sorted(contexts)) or 'none'}"
        )
    chosen = contexts.get(name, Context())
    # kubectl treats a missing cluster or user as one without fields.
    cluster, user = clusters.get(chosen.cluster, Cluster()), users.get(chosen.user, User())
    return ChosenContext(where, cluster, user, chosen.namespace, bool(files))


def data_or_file(data: str, path: str, field: str) -> str:
    """Return PEM from base64 `data` or from the file `path`; empty if neither is set."""
    try:
        if data:
            return base64.b64decode("".join(data.split()), validate=True).decode()
        return Path(path).read_text() if path else ""
    except OSError as exc:
        raise ApiError(f"kubeconfig: {field}: {path} cannot be read: {exc.strerror}") from exc
    except (binascii.Error, UnicodeDecodeError) as exc:
        raise ApiError(f"kubeconfig: {field}{'-data' if data else ''} is not PEM in base64") from exc


def _first_of_each(files: Any) -> dict[str, Any]:
    """Merge the named entries of several files. The first file that has a name provides the whole entry."""
    merged: dict[str, Any] = {}
    for entries in files:
        merged = {**entries, **merged}
    return merged


def _read_file(path: Path) -> _File:
    """Read a kubeconfig, with its relative paths made absolute. Raises ApiError if it cannot be read or is invalid."""
    try:
        read = yaml.load(path.read_bytes(), Loader=yaml.SafeLoader)
    except OSError as exc:
        raise ApiError(f"kubeconfig {path} cannot be read: {exc.strerror}") from exc
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        raise ApiError(f"kubeconfig {path}: is not valid YAML" + (f", line {mark.line + 1}" if mark else "")) from exc
    try:
        file = msgspec.convert(_without_null(read or {}), _File)
    except msgspec.ValidationError as exc:
        found, _, at = str(exc).partition(" - at ")
        raise ApiError(f"kubeconfig {path}: {at.strip('`$.')}: {found.replace('`', '')}") from exc
    if (file.kind, file.api_version) != ("Config", "v1"):
        raise ApiError(
            f"kubeconfig {path}: kind is {file.kind} and apiVersion is {file.api_version}; "
            "expected kind Config and apiVersion v1"
        )
    for kind, named in (("clusters", file.clusters), ("users", file.users), ("contexts", file.contexts)):
        names = [one.name for one in named]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ApiError(f"kubeconfig {path}: {kind} has two entries called {twice[0]!r}; remove one")
    for one in file.clusters:
        _make_absolute(one.cluster, path, ("certificate_authority",))
    for user in file.users:
        _make_absolute(user.user, path, ("client_certificate", "client_key", "token_file"))
        if user.user.exec is not None and os.sep in user.user.exec.command:
            _make_absolute(user.user.exec, path, ("command",))
    return file


def _make_absolute(entry: Any, file: Path, fields: Sequence[str]) -> None:
    for name in fields:
        if value := getattr(entry, name):
            setattr(entry, name, str(file.absolute().parent / value))


def _without_null(value: Any) -> Any:
    """Return `value` without null fields, which count as not set."""
    if isinstance(value, dict):
        return {str(key): _without_null(inner) for key, inner in value.items() if inner is not None}
    return [_without_null(inner) for inner in value] if isinstance(value, list) else value
