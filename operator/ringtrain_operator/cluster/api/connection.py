"""Connection to the API server: from a kubeconfig as in kubectl, or else from the pod's ServiceAccount. Proxies follow
the rules of Go's net/http, as in kubectl."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .credentials import Headers, TokenFile, headers_of_user
from .errors import ApiError, NoCluster
from .kubeconfig import ChosenContext, Cluster, choose_context, data_or_file
from .tls import ApiTls

if TYPE_CHECKING:
    import aiohttp

SERVICE_ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True)
class ApiConnection:
    """Parameters of a connection: server, TLS, proxy and credentials. `headers()` is called before every request."""

    server: str
    namespace: str = "default"
    tls: ssl.SSLContext | None = None
    headers: Headers = dict
    proxy: str = ""

    def session(self, **options: Any) -> aiohttp.ClientSession:
        """Open an aiohttp session with this TLS and proxy, and without a limit of connections."""
        import aiohttp  # here, as it takes 0.2 s, and much of what imports this module never connects

        tls = self.tls or True
        if self.proxy.startswith("socks5"):
            from aiohttp_socks import ProxyConnector

            over_socks = ProxyConnector.from_url(self.proxy.replace("socks5h:", "socks5:"), ssl=tls, limit=0)
            return aiohttp.ClientSession(connector=over_socks, **options)
        connector = aiohttp.TCPConnector(limit=0, ssl=tls)
        return aiohttp.ClientSession(connector=connector, proxy=self.proxy or None, **options)

    @classmethod
    def from_env(cls, env: Mapping[str, str], kubeconfig: str = "", context: str = "") -> ApiConnection:
        """Return the connection that kubectl would use.

        The order is: the file `kubeconfig`, $KUBECONFIG, ~/.kube/config, and then the pod's ServiceAccount. Raises
        ApiError with the files that were read.
        """
        chosen = choose_context(env, kubeconfig, context)
        folder = Path(env.get("RINGTRAIN_SERVICE_ACCOUNT_DIR") or SERVICE_ACCOUNT_DIR)
        host = env.get("KUBERNETES_SERVICE_HOST") if (folder / "token").exists() else ""
        # As in kubectl: in a pod, a context without a namespace uses the pod's.
        namespace = chosen.namespace or (_pod_namespace(env, folder) if host else "default")
        if chosen.cluster != Cluster():
            return replace(cls.of_context(chosen, env), namespace=namespace)
        if not host:
            raise NoCluster(
                f"the kubeconfig {chosen.where} "
                f"{'names no cluster in its current context' if chosen.is_read else 'does not exist'}; set KUBECONFIG, "
                "or use --kubeconfig or --context"
            )
        found = cls.of_service_account(folder, host, env.get("KUBERNETES_SERVICE_PORT", "443"))
        return replace(found, namespace=namespace, proxy=proxy_of_environment(found.server, env))

    @classmethod
    def of_service_account(cls, folder: Path, host: str, port: str) -> ApiConnection:
        """Return the connection of a program in a pod. Its token file in `folder` is read again when it is rotated."""
        try:
            authority = (folder / "ca.crt").read_text()
            namespace = (folder / "namespace").read_text().strip()
        except OSError as exc:
            raise ApiError(
                f"no usable ServiceAccount in {folder}: {exc}; set automountServiceAccountToken: true"
            ) from exc
        bracketed = f"[{host}]" if ":" in host else host
        tls = _tls_of(authority, Cluster())
        return cls(f"https://{bracketed}:{port}", namespace, tls, TokenFile(folder / "token"))

    @classmethod
    def of_context(cls, chosen: ChosenContext, env: Mapping[str, str]) -> ApiConnection:
        """Return the connection to the cluster of a kubeconfig's context. Raises ApiError if a setting is invalid."""
        cluster = chosen.cluster
        if not cluster.server:
            raise ApiError(
                f"kubeconfig {chosen.where}: the cluster of the current context has no server; set the field server"
            )
        authority = data_or_file(
            cluster.certificate_authority_data, cluster.certificate_authority, "certificate-authority"
        )
        server = cluster.server.rstrip("/")
        if "://" not in server:
            server = f"http://{server}"
        proxy = (
            checked_proxy(cluster.proxy_url, f"kubeconfig {chosen.where}: proxy-url")
            if cluster.proxy_url
            else proxy_of_environment(server, env)
        )
        if not server.startswith("https://"):  # as in kubectl: no credentials without TLS
            return cls(server, proxy=proxy)
        if authority and cluster.insecure_skip_tls_verify:
            raise ApiError("kubeconfig: cluster has insecure-skip-tls-verify and a certificate authority; remove one")
        tls = _tls_of(authority, cluster)
        return cls(server, tls=tls, headers=headers_of_user(chosen.user, cluster, tls), proxy=proxy)


def _tls_of(authority: str, cluster: Cluster) -> ApiTls:
    try:
        tls = ApiTls(authority, cluster.tls_server_name)
    except ssl.SSLError as exc:
        raise ApiError(
            "the API server's certificate authority is not in PEM format; check certificate-authority or ca.crt"
        ) from exc
    if cluster.insecure_skip_tls_verify:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def _pod_namespace(env: Mapping[str, str], folder: Path) -> str:
    try:
        return env.get("POD_NAMESPACE") or (folder / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


_SCHEMES = ("http", "https", "socks5", "socks5h")
_PORTS = {"http": 80, "https": 443}


def checked_proxy(url: str, where: str) -> str:
    """Return `url` if it is the URL of a supported proxy. Otherwise raise ApiError, which names `where`."""
    scheme, host = urlsplit(url)[:2]
    if scheme not in _SCHEMES or not host:
        raise ApiError(f"{where} is {url!r}; expected a URL with one of the schemes {', '.join(_SCHEMES)} and a host")
    return url


def proxy_of_environment(server: str, env: Mapping[str, str]) -> str:
    """Return the proxy for `server` from HTTPS_PROXY or HTTP_PROXY; empty if none, or if NO_PROXY
    excludes the server.
    """
    parts = urlsplit(server)
    name = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    proxy = env.get(name) or env.get(name.lower()) or ""
    host = (parts.hostname or "").rstrip(".")
    exceptions = env.get("NO_PROXY") or env.get("no_proxy") or ""
    if not proxy or host == "localhost" or _is_excepted(host, parts.port or _PORTS[parts.scheme], exceptions):
        return ""
    return checked_proxy(proxy if "://" in proxy else f"http://{proxy}", name)


def _is_excepted(host: str, port: int, exceptions: str) -> bool:
    """Return whether the value of NO_PROXY (`exceptions`) excludes the host and port.

    Entries are `*`, an address, a range or a domain, each with or without a port. Loopback addresses are always
    excluded.
    """
    address = None
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
    if address is not None and address.is_loopback:
        return True
    for word in (one.strip().lower() for one in exceptions.split(",")):
        if word == "*":
            return True
        if "/" in word and address is not None:
            with suppress(ValueError):
                if address in ipaddress.ip_network(word, strict=False):
                    return True
        name, wanted = _host_and_port(word)
        if name and wanted in (None, port) and _matches(host, address, name):
            return True
    return False


def _host_and_port(word: str) -> tuple[str, int | None]:
    name, colon, port = word.rpartition(":")
    if not colon or not port.isdecimal() or (":" in name and not name.endswith("]")):
        return word.strip("[]"), None
    return name.strip("[]"), int(port)


def _matches(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, name: str) -> bool:
    if address is not None:
        with suppress(ValueError):
            return address == ipaddress.ip_address(name)
        return False
    domain = name.removeprefix("*")
    # A domain without a leading dot also matches itself.
    return host.endswith(f".{domain.lstrip('.')}") or (not domain.startswith(".") and host == domain)
