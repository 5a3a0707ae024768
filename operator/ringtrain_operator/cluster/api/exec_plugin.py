"""Exec plugins of kubeconfigs: programs that print credentials (client.authentication.k8s.io/v1, v1beta1)."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .errors import ApiError
from .kubeconfig import Cluster, ExecConfig

_GROUP = "client.authentication.k8s.io"
_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")


@dataclass(frozen=True)
class ExecCredential:
    """Credential that a plugin printed. `certificate` and `key`: PEM; empty if not printed."""

    token: str
    certificate: str
    key: str
    expires: datetime | None

    def is_valid(self, now: datetime) -> bool:
        """Return whether the credential has not expired."""
        return self.expires is None or now < self.expires


class ExecPlugin:
    """An exec plugin of a kubeconfig. The credential that it prints is cached until it expires."""

    def __init__(self, config: ExecConfig, cluster: Cluster) -> None:
        if not config.command or config.api_version not in _VERSIONS:
            raise ApiError(
                f"kubeconfig: user.exec has command {config.command!r} and apiVersion {config.api_version!r}; expected "
                f"a program as command, and as apiVersion one of {', '.join(_VERSIONS)}"
            )
        if config.api_version == _VERSIONS[0] and not config.interactive_mode:
            raise ApiError("kubeconfig: user.exec.interactiveMode is missing; expected Never, IfAvailable or Always")
        self._config = config
        self._cluster = cluster
        self._credential: ExecCredential | None = None

    def renewed(self) -> tuple[ExecCredential, bool]:
        """Return the credential, and whether the plugin was run for it now. Raises ApiError if the plugin fails."""
        if self._credential is not None and self._credential.is_valid(datetime.now(UTC)):
            return self._credential, False
        self._credential = self._run()
        return self._credential, True

    def _run(self) -> ExecCredential:
        config, terminal = self._config, sys.stdin is not None and sys.stdin.isatty()
        if config.interactive_mode == "Always" and not terminal:
            raise ApiError(
                f"exec plugin {config.command}: needs a terminal (interactiveMode: Always); run this "
                "command in a terminal"
            )
        interactive = terminal and config.interactive_mode != "Never"
        try:
            done = subprocess.run(
                [config.command, *config.args],
                env={
                    **os.environ,
                    **{variable.name: variable.value for variable in config.env},
                    "KUBERNETES_EXEC_INFO": json.dumps(self._request(interactive)),
                },
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                check=False,
            )
        except OSError as exc:
            hint = f". {config.install_hint.strip()}" if config.install_hint else ""
            raise ApiError(f"exec plugin {config.command}: cannot be run: {exc.strerror}{hint}") from exc
        if done.returncode:
            raise ApiError(f"exec plugin {config.command}: ended with exit code {done.returncode}")
        return self._read(done.stdout)

    def _request(self, interactive: bool) -> dict[str, Any]:
        spec: dict[str, Any] = {"interactive": interactive}
        if self._config.provide_cluster_info:
            one = self._cluster
            fields = {
                "server": one.server,
                "tls-server-name": one.tls_server_name,
                "insecure-skip-tls-verify": one.insecure_skip_tls_verify,
                "certificate-authority-data": one.certificate_authority_data,
                "proxy-url": one.proxy_url,
            }
            spec["cluster"] = {name: value for name, value in fields.items() if value}
        return {"apiVersion": self._config.api_version, "kind": "ExecCredential", "spec": spec}

    def _read(self, printed: bytes) -> ExecCredential:
        try:
            answer = json.loads(printed)
            status = answer["status"]
            expires = status.get("expirationTimestamp")
            found = ExecCredential(
                status.get("token") or "",
                status.get("clientCertificateData") or "",
                status.get("clientKeyData") or "",
                datetime.fromisoformat(expires) if expires else None,
            )
            version = answer.get("apiVersion")
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ApiError(f"exec plugin {self._config.command}: printed no ExecCredential with a status") from exc
        if version != self._config.api_version:
            raise ApiError(
                f"exec plugin {self._config.command}: printed apiVersion {version}; expected {self._config.api_version}"
            )
        if not found.token and not (found.certificate and found.key):
            raise ApiError(
                f"exec plugin {self._config.command}: printed neither a token nor a certificate with its key"
            )
        return found
