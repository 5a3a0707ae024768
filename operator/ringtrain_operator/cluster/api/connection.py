"""How the API server is reached: in a pod by its ServiceAccount, elsewhere by a kubeconfig."""

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ApiError

SERVICE_ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_MAX_AGE_S = 60.0  # the kubelet replaces a bound token long before it expires


@dataclass(frozen=True)
class ApiConnection:
    """Server URL, TLS, and the headers that prove who asks. `headers()` is asked before every request."""

    server: str
    namespace: str = "default"
    tls: ssl.SSLContext | None = None
    headers: Callable[[], Mapping[str, str]] = dict

    @classmethod
    def from_env(
        cls, env: Mapping[str, str], kubeconfig: str | None = None, context: str | None = None
    ) -> "ApiConnection":
        """The connection of this process: `kubeconfig` if given, else the pod's account, else kubectl's default.

        Raises ApiError that says where was looked.
        """
        in_cluster = env.get("KUBERNETES_SERVICE_HOST")
        if in_cluster and not kubeconfig and not env.get("KUBECONFIG"):
            return cls.of_service_account(
                Path(env.get("RINGTRAIN_SERVICE_ACCOUNT_DIR") or SERVICE_ACCOUNT_DIR),
                in_cluster,
                env.get("KUBERNETES_SERVICE_PORT", "443"),
            )
        return cls.of_kubeconfig(kubeconfig or env.get("KUBECONFIG") or None, context)

    @classmethod
    def of_service_account(cls, folder: Path, host: str, port: str) -> "ApiConnection":
        """The connection of a pod: the token file in `folder` is read again as it is rotated."""
        try:
            tls = _tls_trusting(str(folder / "ca.crt"))
            namespace = (folder / "namespace").read_text().strip()
        except OSError as exc:
            raise ApiError(f"no usable ServiceAccount in {folder}: {exc}; is automountServiceAccountToken on?") from exc
        bracketed = f"[{host}]" if ":" in host else host
        return cls(f"https://{bracketed}:{port}", namespace, tls, _ApiTokenFile(folder / "token"))

    @classmethod
    def of_kubeconfig(cls, path: str | None, context: str | None = None) -> "ApiConnection":
        """The connection that kubectl would use, exec plugins included."""
        try:
            from kubernetes import client, config  # costs 0.2 s, and a pod never needs it
        except ImportError as exc:
            raise ApiError(
                "a kubeconfig is read by the Python package kubernetes, which is not here (nor in the operator's "
                "image): in a pod leave KUBECONFIG unset, elsewhere pip install kubernetes"
            ) from exc

        settings: Any = client.Configuration()
        try:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                path, context=context, client_configuration=settings
            )
            contexts, active = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
        except config.ConfigException as exc:
            raise ApiError(f"no usable kubeconfig in {path or '~/.kube/config'}: {exc}; set KUBECONFIG") from exc
        chosen = next((c for c in contexts if c["name"] == context), None) if context else active
        namespace = str((chosen or {}).get("context", {}).get("namespace") or "default")

        def headers() -> Mapping[str, str]:
            found = settings.auth_settings()  # renewed by a hook of the settings
            return {a["key"]: a["value"] for a in found.values() if a["in"] == "header" and a["value"]}

        return cls(settings.host.rstrip("/"), namespace, _api_tls_of(settings), headers)


class _ApiTokenFile:
    """Authorization header from a file that is replaced while we run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at = float("-inf")
        self._header: Mapping[str, str] = {}

    def __call__(self) -> Mapping[str, str]:
        if time.monotonic() - self._read_at > _TOKEN_MAX_AGE_S:
            self._header = {"Authorization": f"Bearer {self._path.read_text().strip()}"}
            self._read_at = time.monotonic()
        return self._header


def _tls_trusting(ca_file: str) -> ssl.SSLContext:
    """A context that trusts the cluster's own CA, and nobody else, for the name of the server.

    Without VERIFY_X509_STRICT, which Python sets from 3.13 on: CAs of many clusters (MicroK8s, older EKS) lack the
    key usage extension that RFC 5280 asks of a CA, and kubectl and kubelets accept them.
    """
    tls = ssl.create_default_context(cafile=ca_file)
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def _api_tls_of(settings: Any) -> ssl.SSLContext | None:
    """TLS as a `kubernetes.client.Configuration` wants it."""
    if not settings.host.startswith("https"):
        return None
    tls = _tls_trusting(settings.ssl_ca_cert) if settings.ssl_ca_cert else ssl.create_default_context()
    if settings.cert_file:
        tls.load_cert_chain(settings.cert_file, settings.key_file)
    if not settings.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls
