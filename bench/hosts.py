"""Hosts of the ranks: this machine on loopback, or network namespaces behind links of known speed."""

import contextlib
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from bench.delayed_line import delayed_line

Command = tuple[list[str], dict[str, str]]


class Hosts(Protocol):
    """A place for `ranks` ranks."""

    ranks: int

    def commands(self, contender: str, worker: list[str]) -> list[Command]:
        """Return the commands that start all ranks of a contender, each with its environment."""

    def sent_bytes(self) -> int:
        """Return the count of bytes sent by the network interfaces of all ranks, headers included."""


class Loopback:
    """All ranks on this machine."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def commands(self, contender: str, worker: list[str]) -> list[Command]:
        if contender.startswith("mpi"):
            transport = "self,tcp" if contender == "mpi-tcp" else "self,vader"
            network = ["--mca", "btl_tcp_if_include", "lo"] if contender == "mpi-tcp" else []
            return [([*mpirun(self.ranks), "--mca", "btl", transport, *network, *worker], {})]
        addresses = [f"127.0.0.1:{port}" for port in free_ports(self.ranks + 1)]
        pods = self.ranks // 2 if contender == "ringtrain-pods" else 1
        ranks = range(self.ranks)
        return [(worker, rank_env(rank, addresses) | pod_env(rank, self.ranks, pods)) for rank in ranks]

    def sent_bytes(self) -> int:
        return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


class CertifiedLoopback(Loopback):
    """All ranks on this machine, with certificates for what encrypts."""

    def __init__(self, ranks: int, secrets: Path) -> None:
        super().__init__(ranks)
        self._secrets = secrets

    def commands(self, contender: str, worker: list[str]) -> list[Command]:
        more = {"RINGTRAIN_SECRET_DIR": str(self._secrets), "RINGTRAIN_JOB_UID": "bench"}
        return [(words, env | more) for words, env in super().commands(contender, worker)]


@contextlib.contextmanager
def certified(ranks: int) -> Iterator[Hosts]:
    """Ranks on this machine, and an authority of their own, made by openssl as the operator makes a job's."""
    with tempfile.TemporaryDirectory() as directory:
        make = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        ca = ["-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=bench", "-days", "2"]
        name = "subjectAltName=DNS:worker.bench.ringtrain"
        rank = ["-keyout", "tls.key", "-out", "tls.crt", "-subj", "/CN=rank", "-days", "2", "-addext", name]
        leaf = ["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:false"]
        for words in ([*make, *ca], [*make, *rank, *leaf]):
            subprocess.run(words, cwd=directory, check=True, capture_output=True)
        yield CertifiedLoopback(ranks, Path(directory))


class Namespaces:
    """Hosts as network namespaces `rtb<h>`, address 10.77.0.<h + 1>, behind one bridge. Ranks fill host by host.

    Needs root and the commands ip and tc.
    """

    def __init__(self, hosts: int, ranks_each: int) -> None:
        self.hosts = hosts
        self.ranks_each = ranks_each
        self.ranks = hosts * ranks_each
        self._gangs = 0

    def commands(self, contender: str, worker: list[str]) -> list[Command]:
        inside = ["ip", "netns", "exec"]
        if contender.startswith("mpi"):
            return [(self._mpirun(worker), {})]
        self._gangs += 1  # several are up at the same time
        base = 20000 + 100 * self._gangs
        addresses = [f"10.77.0.{rank // self.ranks_each + 1}:{base + rank}" for rank in range(self.ranks)]
        addresses.append(f"10.77.0.1:{base + 99}")
        return [
            ([*inside, f"rtb{rank // self.ranks_each}", *worker], self._env(rank, addresses))
            for rank in range(self.ranks)
        ]

    def _mpirun(self, worker: list[str]) -> list[str]:
        """mpirun on the first host, which starts a daemon on each of the others."""
        hosts = ",".join(f"10.77.0.{host + 1}:{self.ranks_each}" for host in range(self.hosts))
        agent = str(Path(__file__).parent / "netns_rsh.sh")
        options = ["--host", hosts, "--mca", "plm_rsh_agent", agent, "--mca", "btl_tcp_if_include", "eth0"]
        options += ["--mca", "oob_tcp_if_include", "eth0", "--mca", "btl", "self,vader,tcp"]
        command = shlex.join([*mpirun(self.ranks), *options, *worker])
        return [agent, "10.77.0.1", f"exec {command}"]

    def sent_bytes(self) -> int:
        statistics = ["cat", "/sys/class/net/eth0/statistics/tx_bytes"]
        return sum(
            int(subprocess.check_output(["ip", "netns", "exec", f"rtb{host}", *statistics]))
            for host in range(self.hosts)
        )

    def _env(self, rank: int, addresses: list[str]) -> dict[str, str]:
        pod = pod_env(rank, self.ranks, self.hosts)
        return rank_env(rank, addresses) | pod | {"GLOO_SOCKET_IFNAME": "eth0"}


@contextlib.contextmanager
def namespaces(hosts: int, rate: str | None, ranks_each: int = 1) -> Iterator[Namespaces]:
    """Make the namespaces; `rate` as tc writes it ("1gbit"), None for no limit. All is gone afterwards."""
    _delete(hosts)
    try:
        _ip("link add rtbridge type bridge")
        _ip("link set rtbridge up")
        for host in range(hosts):
            _ip(f"netns add rtb{host}")
            _ip(f"link add rtv{host} type veth peer name eth0 netns rtb{host}")
            _ip(f"link set rtv{host} master rtbridge up")
            _bring_up(host, rate)
        yield Namespaces(hosts, ranks_each)
    finally:
        _delete(hosts)


@contextlib.contextmanager
def distant_sites(count: int, rate: str, one_way_s: float) -> Iterator[Namespaces]:
    """Make namespaces of a rank each, on lines of this rate with a delay. All is gone afterwards."""
    _delete(count)
    try:
        for host in range(count):
            _ip(f"netns add rtb{host}")
        with delayed_line([f"rtb{host}" for host in range(count)], one_way_s):
            for host in range(count):
                _bring_up(host, rate)
            yield Namespaces(count, 1)
    finally:
        _delete(count)


def _bring_up(host: int, rate: str | None) -> None:
    _ip(f"-n rtb{host} addr add 10.77.0.{host + 1}/24 dev eth0")
    _ip(f"-n rtb{host} link set lo up")
    _ip(f"-n rtb{host} link set eth0 up")
    if rate is not None:
        # A queue of 50 ms: with much less TCP does not reach the rate, and much more hides it.
        limit = f"qdisc add dev eth0 root tbf rate {rate} burst 256kb latency 50ms"
        subprocess.run(["tc", "-n", f"rtb{host}", *limit.split()], check=True)


def rank_env(rank: int, addresses: list[str]) -> dict[str, str]:
    """The world in our words and in torchrun's. The last address is the master's."""
    ranks = len(addresses) - 1
    host, _, port = addresses[-1].rpartition(":")
    return {
        "RINGTRAIN_RANK": str(rank),
        "RINGTRAIN_SIZE": str(ranks),
        "RINGTRAIN_RING_ADDRESSES": ",".join(addresses[:-1]),
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        # What the agent sets: see docs/contract.md.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
        "OMP_NUM_THREADS": "1",
    }


def pod_env(rank: int, ranks: int, pods: int) -> dict[str, str]:
    """Return the variables that place a rank if each of `pods` pods has equally many ranks."""
    each = ranks // pods
    return {
        "RINGTRAIN_LOCAL_RANK": str(rank % each),
        "RINGTRAIN_LOCAL_SIZE": str(each),
        "RINGTRAIN_CROSS_RANK": str(rank // each),
        "RINGTRAIN_CROSS_SIZE": str(pods),
    }


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [found.getsockname()[1] for found in sockets]


def mpirun(ranks: int) -> list[str]:
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


def _delete(hosts: int) -> None:
    links = [f"link del rtv{host}" for host in range(hosts)]
    for arguments in [*links, *(f"netns del rtb{host}" for host in range(hosts)), "link del rtbridge"]:
        subprocess.run(["ip", *arguments.split()], check=False, stderr=subprocess.DEVNULL)
