"""The control plane and the operator's process that the benchmarks measure."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml
from support.apiserver import ADMIN_TOKEN, ControlPlane
from support.guard import GUARD
from support.ports import free_ports

ROOT = Path(__file__).parents[2]
_REQUESTS = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<count>\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# What the operator deals with; leases are left out, which are renewed whatever happens.
RESOURCES = (
    "distributedtrainingjobs",
    "events",
    "networkpolicies",
    "pods",
    "secrets",
    "serviceaccounts",
    "services",
    "workloads",
)
WRITES = ("POST", "PUT", "PATCH", "DELETE", "APPLY", "DELETECOLLECTION")


def start_plane(folder: Path) -> ControlPlane:
    """A control plane with our CRD and the operator's rights."""
    crds = tuple(yaml.safe_load_all((ROOT / "manifests" / "crd.yaml").read_text()))
    return ControlPlane.start(folder, crds)


@contextmanager
def operator_process(plane: ControlPlane, folder: Path, *options: str) -> Iterator[psutil.Process]:
    """`ringtrain-operator` as its pod would run it: its own ServiceAccount's token, the whole cluster, a Lease."""
    account = folder / "serviceaccount"
    account.mkdir(parents=True, exist_ok=True)
    (account / "token").write_text(plane.operator_token)
    (account / "namespace").write_text("ringtrain-system")
    (account / "ca.crt").write_bytes(plane.ca_file.read_bytes())
    host, _, port = plane.url.removeprefix("https://").partition(":")
    own = {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "RINGTRAIN_SERVICE_ACCOUNT_DIR": str(account),
    }
    env = {**{k: v for k, v in os.environ.items() if k != "KUBECONFIG"}, **own}
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "ringtrain_operator", f"--listen={listen}", *options]
    with (folder / "operator.log").open("ab") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    GUARD.begun(process.pid)
    try:
        _until_leading(listen, process)
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        GUARD.ended(process.pid)


def _until_leading(listen: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{listen}/readyz", timeout=2) as ready:
                text = urllib.request.urlopen(f"http://{listen}/metrics", timeout=2).read().decode()
                if ready.status == 200 and "ringtrain_leader 1.0" in text:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the operator did not become leader; see operator.log")


def looks_so_far(operator: psutil.Process) -> int:
    """Reconciles that ended, as the operator's own metrics count them."""
    listen = next(a for a in operator.cmdline() if a.startswith("--listen=")).removeprefix("--listen=")
    text = urllib.request.urlopen(f"http://{listen}/metrics", timeout=30).read().decode()
    counts = (line.split() for line in text.splitlines() if line.startswith("ringtrain_reconciles_total"))
    return int(sum(float(count) for _, count in counts))


def requests_so_far(plane: ControlPlane) -> Counter[str]:
    """Requests that the API server has answered, by `VERB resource`; watches are left out."""
    request = urllib.request.Request(f"{plane.url}/metrics", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    tls = ssl.create_default_context(cafile=str(plane.ca_file))
    text = urllib.request.urlopen(request, context=tls, timeout=30).read().decode()
    found: Counter[str] = Counter()
    for line in text.splitlines():
        match = _REQUESTS.match(line)
        labels = dict(_LABEL.findall(match["labels"])) if match else {}
        if match and labels["verb"] != "WATCH" and labels.get("resource") in RESOURCES:
            below = "/" + labels["subresource"] if labels.get("subresource") else ""
            found[f"{labels['verb']} {labels['resource']}{below}"] += int(float(match["count"]))
    return found


def writes_among(requests: Counter[str]) -> dict[str, int]:
    """Those that wrote."""
    return {what: count for what, count in requests.items() if what.split()[0] in WRITES}


@dataclass
class Spending:
    """CPU seconds by who used them, from when this was made; `others` is all else that ran on the machine."""

    plane: ControlPlane
    operator: psutil.Process
    _before: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._so_far()

    def so_far(self) -> dict[str, float]:
        """Seconds since the start, two digits."""
        return {name: round(now - self._before[name], 2) for name, now in self._so_far().items()}

    def _so_far(self) -> dict[str, float]:
        ours = {name: cpu_s(psutil.Process(p.pid)) for name, p in self.plane._processes.items()}
        ours = {"operator": cpu_s(self.operator), **ours, "benchmark": cpu_s(psutil.Process())}
        times = psutil.cpu_times()
        busy = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
        return {**ours, "others": busy - sum(ours.values())}


def rss_mib(process: psutil.Process) -> float:
    """Resident memory of the operator."""
    return round(process.memory_info().rss / 2**20, 1)


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)
