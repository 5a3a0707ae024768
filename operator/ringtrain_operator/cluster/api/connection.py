"""Connection to the API server: from a kubeconfig as in kubectl, or else from the pod's ServiceAccount."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .credentials import Headers, TokenFile, headers_of_user
from .errors import ApiError, NoCluster
from .kubeconfig import ChosenContext, Cluster, choose_context, data_or_file
from .proxies import checked_proxy, proxy_of_environment
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
