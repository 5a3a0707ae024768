"""A real control plane on loopback: etcd, kube-apiserver and kube-controller-manager, with RBAC on.

The binaries come from KUBEBUILDER_ASSETS (default /usr/local/kubebuilder/bin), as envtest has it. The CRD is
installed before the controller manager starts: its garbage collector looks for new kinds only every 30 s.
"""

import asyncio
import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection
from support.guard import GUARD
from support.installation import install_rights, manifests
from support.objects import CUSTOM_RESOURCE_DEFINITIONS, kubeconfig
from support.ports import free_ports

BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager")
HOW_TO_GET = (
    "needs {missing} in {folder}: run `setup-envtest use` (sigs.k8s.io/controller-runtime/tools/setup-envtest) "
    "for etcd and kube-apiserver, take kube-controller-manager from dl.k8s.io, and set KUBEBUILDER_ASSETS to it"
)
ADMIN_TOKEN = "admin-token"
KCM_TOKEN = "kcm-token"
SCHEDULER_TOKEN = "scheduler-token"
READY_WITHIN_S = 120.0
CONTROLLERS = (
    "garbage-collector-controller,namespace-controller,serviceaccount-controller,"
    "root-ca-certificate-publisher-controller,resourcequota-controller,clusterrole-aggregation-controller"
)


def assets_folder() -> Path:
    """Return the folder that is searched for the control plane's binaries."""
    return Path(os.environ.get("KUBEBUILDER_ASSETS") or "/usr/local/kubebuilder/bin")


def why_unavailable(*more: str) -> str:
    """The reason for a skip, with the way out; empty if all binaries are there, and `more` of them."""
    folder = assets_folder()
    missing = [b for b in (*BINARIES, *more) if not (folder / b).exists()]
    return HOW_TO_GET.format(missing=", ".join(missing), folder=folder) if missing else ""


@dataclass
class ControlPlane:
    """One running control plane in `folder`; `stop()` ends its processes."""

    folder: Path
    crds: tuple[dict[str, Any], ...] = ()
    controllers: str = CONTROLLERS
    gates: str = ""
    alpha_apis: str = ""
    url: str = ""
    operator_token: str = ""
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _commands: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def start(
        cls,
        folder: Path,
        crds: tuple[dict[str, Any], ...] = (),
        more_controllers: str = "",
        *,
        scheduler: bool = False,
        gates: str = "",
        alpha_apis: str = "",
    ) -> "ControlPlane":
        """Start all three, wait until they answer; raises RuntimeError with the log of one that does not.

        `scheduler`: kube-scheduler, too. `gates`: feature gates of all of them; `alpha_apis`: groups and versions
        that the API server serves besides its own choice.

        With `crds` the operator's rights are installed, too; without, that is left to who installs the operator.
        """
        controllers = ",".join(filter(None, (CONTROLLERS, more_controllers)))
        plane = cls(folder, crds, controllers, gates, alpha_apis)
        try:
            plane._start_etcd()
            plane._start_apiserver()
            asyncio.run(plane._install_crds())
            plane._start_controller_manager()
            if scheduler:
                plane._start_scheduler()
            if crds:
                asyncio.run(plane._install_operator())
        except BaseException:
            plane.stop()
            raise
        return plane

    def connection(self, token: str = ADMIN_TOKEN) -> ApiConnection:
        """A connection as whoever `token` belongs to."""
        tls = ssl.create_default_context(cafile=str(self.ca_file))
        return ApiConnection(self.url, "default", tls, lambda: {"Authorization": f"Bearer {token}"})

    @property
    def ca_file(self) -> Path:
        return self.folder / "certs" / "apiserver.crt"

    def kubeconfig(self, token: str = ADMIN_TOKEN, name: str = "admin") -> Path:
        """A kubeconfig file for `token`."""
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig(cluster, {"token": token}, namespace="default")))
        return path

    def stop(self) -> None:
        """End the processes, the API server before its store."""
        for name in reversed(list(self._processes)):
            process = self._processes.pop(name)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            GUARD.ended(process.pid)

    async def outage(self, for_s: float) -> None:
        """Kill the API server, be without one for so long, start it again and wait until it answers."""
        await asyncio.to_thread(self.stop_apiserver)
        await asyncio.sleep(for_s)  # the outage itself
        await asyncio.to_thread(self.start_apiserver)

    def stop_apiserver(self) -> None:
        """Begin an outage: no new connection is answered, open watches break."""
        process = self._processes["kube-apiserver"]
        process.kill()
        process.wait()
        GUARD.ended(process.pid)

    def start_apiserver(self) -> None:
        """End the outage."""
        self._run("kube-apiserver", self._commands["kube-apiserver"])
        self._wait_ready("kube-apiserver", f"{self.url}/readyz")

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{free_ports(1)[0]}", f"http://127.0.0.1:{free_ports(1)[0]}"
        self._etcd = client
        flags = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        self._run("etcd", ["--unsafe-no-fsync", *_flags(flags)])
        self._wait_ready("etcd", f"{client}/health")

    def _start_apiserver(self) -> None:
        port = free_ports(1)[0]
        self.url = f"https://127.0.0.1:{port}"
        (self.folder / "tokens.csv").write_text(
            f'{ADMIN_TOKEN},admin,admin,"system:masters"\n{KCM_TOKEN},system:kube-controller-manager,kcm,\n'
            f"{SCHEDULER_TOKEN},system:kube-scheduler,scheduler,\n"
        )
        key = self._service_account_key()
        flags = {
            "etcd-servers": self._etcd,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": port,
            "cert-dir": self.folder / "certs",
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "service-account-issuer": self.url,
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-cluster-ip-range": "10.0.0.0/16",
            "endpoint-reconciler-type": "none",
            "kubelet-preferred-address-types": "InternalIP",
            "event-ttl": "30m",
            **self._gates(),
            **({"runtime-config": f"{self.alpha_apis}=true"} if self.alpha_apis else {}),
        }
        self._run("kube-apiserver", _flags(flags))
        self._wait_ready("kube-apiserver", f"{self.url}/readyz")

    def _start_controller_manager(self) -> None:
        config, port = self.kubeconfig(KCM_TOKEN, "kcm"), free_ports(1)[0]
        flags = {
            "kubeconfig": config,
            "authentication-kubeconfig": config,
            "authorization-kubeconfig": config,
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "cert-dir": self.folder / "certs-kcm",
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": self._service_account_key(),
            "root-ca-file": self.ca_file,
            "controllers": self.controllers,
            "concurrent-gc-syncs": 20,
            "kube-api-qps": 500,  # its default of 20 requests a second would be what a soak measures
            "kube-api-burst": 1000,
            **self._gates(),
        }
        self._run("kube-controller-manager", _flags(flags))
        self._wait_ready("kube-controller-manager", f"https://127.0.0.1:{port}/healthz")

    def _gates(self) -> dict[str, Any]:
        return {"feature-gates": self.gates} if self.gates else {}

    def _start_scheduler(self) -> None:
        config, port = self.kubeconfig(SCHEDULER_TOKEN, "scheduler"), free_ports(1)[0]
        flags = {
            "kubeconfig": config,
            "authentication-kubeconfig": config,
            "authorization-kubeconfig": config,
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "cert-dir": self.folder / "certs-scheduler",
            "leader-elect": "false",
            **self._gates(),
        }
        self._run("kube-scheduler", _flags(flags))
        self._wait_ready("kube-scheduler", f"https://127.0.0.1:{port}/healthz")

    async def _install_crds(self) -> None:
        async with ApiClient(self.connection()) as api:
            for crd in self.crds:
                await api.create(CUSTOM_RESOURCE_DEFINITIONS, None, crd)
            for crd in self.crds:
                await _established(api, crd["metadata"]["name"])

    async def _install_operator(self) -> None:
        async with ApiClient(self.connection()) as api:
            self.operator_token = await install_rights(api, manifests())

    def _service_account_key(self) -> Path:
        path = self.folder / "sa.key"
        if not path.exists():
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            pem = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
            path.write_bytes(key.private_bytes(*pem, serialization.NoEncryption()))
        return path

    def _run(self, name: str, arguments: list[str]) -> None:
        self._commands[name] = arguments
        with (self.folder / f"{name}.log").open("ab") as out:
            command = [str(assets_folder() / name), *arguments]
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        GUARD.begun(process.pid)
        self._processes[name] = process

    def _wait_ready(self, name: str, url: str) -> None:
        untrusted = ssl._create_unverified_context()  # the certificate is being made while we wait
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"} if name == "kube-apiserver" else {}

        def answers() -> bool:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=5, context=untrusted if "https" in url else None) as got:
                return bool(got.status == 200)

        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline and self._processes[name].poll() is None:
            if _quietly(answers):
                return
            time.sleep(0.05)  # a process outside this one: there is no event to wait on
        log = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{name} did not become ready:\n{log}")


def _quietly(answers: Callable[[], bool]) -> bool:
    try:
        return answers()
    except (urllib.error.URLError, OSError):
        return False


def _flags(values: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


async def install_crd(api: ApiClient, crd: dict[str, Any]) -> None:
    """Have the API server serve another kind."""
    await api.create(CUSTOM_RESOURCE_DEFINITIONS, None, crd)
    await _established(api, crd["metadata"]["name"])


async def _established(api: ApiClient, name: str) -> None:
    async with asyncio.timeout(READY_WITHIN_S):
        while True:
            crd = await api.get(CUSTOM_RESOURCE_DEFINITIONS, None, name)
            conditions = (crd.get("status") or {}).get("conditions") or []
            if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return
            await asyncio.sleep(0.05)
