"""Debian's sshd on hosts that are network namespaces, and an ssh that knows them."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.gang import DEADLINE_S, until
from support.namespaces import HostNet, Network, network, why_not

SSHD = "/usr/sbin/sshd"
PORT = 2222


def why_no_sshd() -> str:
    """Return the reason that this machine cannot run hosts with sshd; empty if it can."""
    if missing := [name for name in (SSHD, "ssh", "ssh-keygen", "openssl") if not shutil.which(name)]:
        return f"hosts over ssh need {', '.join(missing)} (apt install openssh-server openssh-client openssl)"
    return why_not()


@dataclass(frozen=True)
class SshHosts:
    """The run is started on `network.hosts[0]`; `names` are what its ssh calls the others."""

    network: Network
    names: Sequence[str]
    key: Path
    bin: Path
    known: Path

    @property
    def here(self) -> HostNet:
        return self.network.hosts[0]


@contextmanager
def ssh_hosts(directory: Path, count: int) -> Iterator[SshHosts]:
    """`count` hosts with sshd beside the one that runs are started on."""
    key, bin_dir, known = directory / "key", directory / "bin", directory / "known_hosts"
    for name in ("key", "host_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(directory / name)]
        subprocess.run(words, check=True)
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd gives up its rights
    with ExitStack() as stack:
        net = stack.enter_context(network(count + 1))
        names = [f"node-{chr(ord('a') + index)}" for index in range(count)]
        public = (directory / "host_key.pub").read_text()
        known.write_text("".join(f"[{host.address}]:{PORT} {public}" for host in net.hosts[1:]))
        _write_client(directory, bin_dir, known, dict(zip(names, net.hosts[1:], strict=True)))
        for host in net.hosts[1:]:
            _start_sshd(stack, directory, host)
        yield SshHosts(net, names, key, bin_dir, known)


def _write_client(directory: Path, bin_dir: Path, known: Path, names: dict[str, HostNet]) -> None:
    lines = [f"UserKnownHostsFile {known}", "IdentitiesOnly yes", "GlobalKnownHostsFile /dev/null"]
    for name, host in names.items():
        lines += [f"Host {name}", f"  HostName {host.address}"]
    (directory / "ssh_config").write_text("\n".join(lines) + "\n")
    bin_dir.mkdir()
    (bin_dir / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory / "ssh_config"} "$@"\n')
    (bin_dir / "ssh").chmod(0o755)


def _start_sshd(stack: ExitStack, directory: Path, host: HostNet) -> None:
    settings = {
        "ListenAddress": f"{host.address}:{PORT}",
        "HostKey": directory / "host_key",
        "AuthorizedKeysFile": directory / "key.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
    }
    file, log = directory / f"{host.name}.conf", directory / f"{host.name}.log"
    file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    sshd = subprocess.Popen(
        [*host.enter, SSHD, "-D", "-f", str(file), "-E", str(log)],
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
    )
    stack.callback(sshd.wait)
    stack.callback(sshd.kill)
    until("sshd", lambda: log.exists() and "Server listening" in log.read_text(), DEADLINE_S)
