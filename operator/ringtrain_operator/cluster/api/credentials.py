"""HTTP headers with credentials, from a kubeconfig's user or from a pod's token file."""

import base64
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from multidict import CIMultiDict

from .errors import ApiError
from .exec_plugin import ExecPlugin
from .kubeconfig import Cluster, User, data_or_file
from .tls import ApiTls

Headers = Callable[[], Mapping[str, str]]
_TOKEN_MAX_AGE_S = 60.0  # the kubelet replaces a bound token long before it expires


class TokenFile:
    """Source of an Authorization header: a token file whose content changes while the process runs."""

    def __init__(self, path: Path, otherwise: str = "") -> None:
        self._path = path
        self._otherwise = otherwise
        self._read_at = float("-inf")
        self._header: Mapping[str, str] = {}

    def __call__(self) -> Mapping[str, str]:
        if time.monotonic() - self._read_at > _TOKEN_MAX_AGE_S:
            self._header = _bearer(self._read())
            self._read_at = time.monotonic()
        return self._header

    def _read(self) -> str:
        try:
            return self._path.read_text().strip()
        except OSError as exc:
            if self._otherwise:
                return self._otherwise
            raise ApiError(f"token file {self._path} cannot be read: {exc.strerror}") from exc


def headers_of_user(user: User, cluster: Cluster, tls: ApiTls) -> Headers:
    """Return a function that makes a user's HTTP headers. Load client certificates into `tls`. Raises ApiError if
    credentials are missing or invalid."""
    _check_methods(user)
    certificate = data_or_file(user.client_certificate_data, user.client_certificate, "client-certificate")
    key = data_or_file(user.client_key_data, user.client_key, "client-key")
    if bool(certificate) != bool(key):
        raise ApiError("kubeconfig: user has only one of client-certificate and client-key; set both fields")
    if certificate:
        _load(tls, certificate, key, "kubeconfig: user")
    impersonated = _impersonation(user)
    credentials = _credentials(user, cluster, tls)
    if credentials is None and not certificate:  # kubectl would prompt for a name and a password
        raise ApiError(
            "kubeconfig: no credentials for the context's user (the user may not exist); name a user with credentials"
        )
    return lambda: CIMultiDict([*impersonated.items(), *(credentials().items() if credentials else ())])


def _check_methods(user: User) -> None:
    if (user.token or user.token_file) and (user.username or user.password):
        raise ApiError("kubeconfig: user has a token and also a username or password; remove one of them")
    provider = user.auth_provider
    if provider is not None and user.exec is not None:
        raise ApiError("kubeconfig: user has auth-provider and exec; remove one of them")
    if provider is not None and provider.name != "oidc":
        raise ApiError(
            f"kubeconfig: user.auth-provider is {provider.name!r}; expected oidc, the only one that kubectl still "
            "supports; use an exec plugin"
        )


def _credentials(user: User, cluster: Cluster, tls: ApiTls) -> Headers | None:
    """Return a function that makes the Authorization header; None if the user has no credentials for this header.

    As in kubectl, a token or password is preferred to a plugin.
    """
    plugin = ExecPlugin(user.exec, cluster) if user.exec is not None else None
    if user.token_file:
        return TokenFile(Path(user.token_file), user.token)
    if user.token:
        return lambda: _bearer(user.token)
    if user.username or user.password:
        basic = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        return lambda: {"Authorization": f"Basic {basic}"}
    if plugin is not None:
        return _plugin_headers(plugin, tls)
    if user.auth_provider is not None and (token := user.auth_provider.config.get("id-token")):
        return lambda: _bearer(token)
    return None


def _plugin_headers(plugin: ExecPlugin, tls: ApiTls) -> Headers:
    def headers() -> Mapping[str, str]:
        credential, is_new = plugin.renewed()
        if is_new and credential.certificate:
            _load(tls, credential.certificate, credential.key, "kubeconfig: user.exec")
        return _bearer(credential.token) if credential.token else {}

    return headers


def _impersonation(user: User) -> CIMultiDict[str]:
    named = {"Impersonate-User": user.impersonate, "Impersonate-Uid": user.impersonate_uid}
    groups, extra = user.impersonate_groups, user.impersonate_extra
    found = CIMultiDict((name, value) for name, value in named.items() if value)
    if (user.impersonate_uid or groups or extra) and not user.impersonate:
        raise ApiError(
            "kubeconfig: user has as-uid, as-groups or as-user-extra, but not the field as; set "
            "as to the name of the user to act as"
        )
    found.extend(("Impersonate-Group", group) for group in groups)
    for key, values in extra.items():
        found.extend((f"Impersonate-Extra-{quote(key.lower(), safe='')}", value) for value in values)
    return found


def _bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _load(tls: ApiTls, certificate: str, key: str, whose: str) -> None:
    try:
        tls.load_pem(certificate, key)
    except (ssl.SSLError, OSError) as exc:
        raise ApiError(f"{whose}: the client certificate and its key cannot be used: {exc}") from exc
