"""Hosts on one machine: network namespaces with an address each, joined by a bridge in a namespace of its own."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from support.commands import completed

SUBNET = "10.213.77"
_NOBODY = "02:00:00:00:00:01"  # the address of no device


@dataclass(frozen=True)
class HostNet:
    """One host: `address` is its own, `enter` a command that runs what follows there.

    `user`: its processes have this id, which nobody has given a name, and no rights beyond.
    """

    name: str
    address: str
    user: int | None = None

    @property
    def enter(self) -> tuple[str, ...]:
        if self.user is not None:
            return ("unshare", "--user", f"--map-user={self.user}", f"--map-group={self.user}", "--")
        if not self.name:
            return ()
        # A host name of its own, too: MPI names its shared memory after it.
        rename = f'hostname {self.name} && exec "$@"'
        return ("nsenter", f"--net=/run/netns/{self.name}", "--", "unshare", "--uts", "sh", "-c", rename, "sh")


@dataclass(frozen=True)
class Network:
    """Hosts that reach each other and nothing else."""

    hub: str
    hosts: tuple[HostNet, ...]

    def cut(self, host: HostNet) -> None:
        """Pull the host's cable: packets are dropped without a word, as when the machine loses power."""
        _ip("-n", self.hub, "link", "set", f"to-{self.hosts.index(host)}", "down")

    def mend(self, host: HostNet) -> None:
        """Put the host's cable back."""
        _ip("-n", self.hub, "link", "set", f"to-{self.hosts.index(host)}", "up")

    def drop(self, host: HostNet, way: str) -> None:
        """Lose all packets "to" or "from" a host, or "both": as `netem loss 100%`, which not every kernel has."""
        for end in self._ends(host, way):
            _run("tc", *end, "blackhole")

    def thin(self, host: HostNet, way: str = "both") -> None:
        """Have packets "to" or "from" a host, or "both", arrive again, through a line of 16 Mbit/s."""
        for end in self._ends(host, way):
            _run("tc", *end, "tbf", "rate", "16mbit", "burst", "32kb", "latency", "400ms")

    def part(self, host: HostNet, other: HostNet) -> None:
        """Lose all packets between two hosts, which all others reach as before."""
        for one, peer in ((host, other), (other, host)):
            _ip("-n", one.name, *_neighbour("replace", peer), "lladdr", _NOBODY, "nud", "permanent")

    def join(self, host: HostNet, other: HostNet) -> None:
        """Have two hosts reach each other again."""
        for one, peer in ((host, other), (other, host)):
            _ip("-n", one.name, *_neighbour("del", peer))

    def _ends(self, host: HostNet, way: str) -> list[tuple[str, ...]]:
        ends = {"to": (self.hub, f"to-{self.hosts.index(host)}"), "from": (host.name, "eth0")}
        chosen = [ends[one] for one in ends if way in (one, "both")]
        return [("-n", name, "qdisc", "replace", "dev", device, "root") for name, device in chosen]


def loopback(count: int, user: int | None = None) -> Network:
    """`count` hosts that are all this machine, as `dtj local` has them: one address, one host name, no root."""
    return Network("", tuple(HostNet("", "127.0.0.1", user) for _ in range(count)))


def why_no_users() -> str:
    """Return the reason that processes cannot have another user ID here; empty if they can."""
    made = completed(["unshare", "--user", "--map-user=12345", "true"])
    return f"no user namespaces here: {made.stderr.strip()}" if made.returncode else ""


def why_not() -> str:
    """Return the reason that network namespaces cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("nsenter"):
        return "network namespaces need `ip` and `nsenter` (apt install iproute2 util-linux)"
    probe = f"rt-probe-{secrets.token_hex(3)}"
    made = completed(["ip", "netns", "add", probe])
    if made.returncode != 0:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return ""


@contextmanager
def network(count: int) -> Iterator[Network]:
    """`count` hosts. Names are random, so that several test runs do not meet."""
    tag = f"rt-{secrets.token_hex(3)}"
    hub = f"{tag}-hub"
    hosts = tuple(HostNet(f"{tag}-{i}", f"{SUBNET}.{10 + i}") for i in range(count))
    made: list[str] = []
    try:
        _add(hub, made)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for index, host in enumerate(hosts):
            _add(host.name, made)
            _join(hub, host, index)
        yield Network(hub, hosts)
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _add(name: str, made: list[str]) -> None:
    _ip("netns", "add", name)
    made.append(name)
    _ip("-n", name, "link", "set", "lo", "up")


def _join(hub: str, host: HostNet, index: int) -> None:
    port = f"to-{index}"
    _ip("link", "add", "eth0", "netns", host.name, "type", "veth", "peer", "name", port, "netns", hub)
    _ip("-n", hub, "link", "set", port, "master", "bridge", "up")
    _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
    _ip("-n", host.name, "link", "set", "eth0", "up")


def _neighbour(verb: str, peer: HostNet) -> tuple[str, ...]:
    return ("neigh", verb, peer.address, "dev", "eth0")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = completed(words)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
