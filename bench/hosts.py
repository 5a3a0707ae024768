"""Where ranks run: on loopback, or each in a network namespace of its own behind a link of known speed."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

Command = tuple[list[str], dict[str, str]]


class Hosts(Protocol):
    """A place for `ranks` ranks."""

    ranks: int

    def commands(self, contender: str, worker: list[str]) -> list[Command]:
        """What to start, and with which environment, for all ranks of a contender to come up."""

    def sent_bytes(self) -> int:
        """What the network interfaces of all ranks have sent so far, headers included."""


class Loopback:
    """All ranks on this machine."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def commands(self, contender: str, worker: list[str]) -> list[Command]:
        if contender.startswith("mpi"):
            transport = "self,tcp" if contender == "mpi-tcp" else "self,vader"
            network = ["--mca", "btl_tcp_if_include", "lo"] if contender == "mpi-tcp" else []
            return [([*_mpirun(self.ranks), "--mca", "btl", transport, *network, *worker], {})]
        addresses = [f"127.0.0.1:{port}" for port in free_ports(self.ranks + 1)]
        return [(worker, rank_env(rank, addresses)) for rank in range(self.ranks)]

    def sent_bytes(self) -> int:
        return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


class Namespaces:
    """Each rank in its own network namespace `rtb<r>`, address 10.77.0.<r + 1>, behind one bridge.

    Needs root and the commands ip and tc.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def commands(self, contender: str, worker: list[str]) -> list[Command]:
        inside = ["ip", "netns", "exec"]
        if contender.startswith("mpi"):
            script = f"{' '.join([*inside, 'rtb$OMPI_COMM_WORLD_RANK'])} {' '.join(worker)}"
            network = ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "10.77.0.0/24"]
            return [([*_mpirun(self.ranks), *network, "sh", "-c", script], {})]
        addresses = [*(f"10.77.0.{rank + 1}:7400" for rank in range(self.ranks)), "10.77.0.1:7390"]
        port = 7400 + sum(map(ord, contender)) % 500  # several gangs are up at the same time
        addresses = [address.replace("7400", str(port)).replace("7390", str(port + 1000)) for address in addresses]
        return [([*inside, f"rtb{r}", *worker], rank_env(r, addresses)) for r in range(self.ranks)]

    def sent_bytes(self) -> int:
        statistics = ["cat", "/sys/class/net/eth0/statistics/tx_bytes"]
        return sum(
            int(subprocess.check_output(["ip", "netns", "exec", f"rtb{rank}", *statistics]))
            for rank in range(self.ranks)
        )


@contextlib.contextmanager
def namespaces(ranks: int, rate: str | None) -> Iterator[Namespaces]:
    """Make the namespaces; `rate` as tc writes it ("1gbit"), None for no limit. All is gone afterwards."""
    _delete(ranks)
    try:
        _ip("link add rtbridge type bridge")
        _ip("link set rtbridge up")
        for rank in range(ranks):
            _ip(f"netns add rtb{rank}")
            _ip(f"link add rtv{rank} type veth peer name eth0 netns rtb{rank}")
            _ip(f"link set rtv{rank} master rtbridge up")
            _ip(f"-n rtb{rank} addr add 10.77.0.{rank + 1}/24 dev eth0")
            _ip(f"-n rtb{rank} link set lo up")
            _ip(f"-n rtb{rank} link set eth0 up")
            if rate is not None:
                # A queue of 50 ms: with much less TCP does not reach the rate, and much more hides it.
                limit = f"qdisc add dev eth0 root tbf rate {rate} burst 256kb latency 50ms"
                subprocess.run(["tc", "-n", f"rtb{rank}", *limit.split()], check=True)
        yield Namespaces(ranks)
    finally:
        _delete(ranks)


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


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [found.getsockname()[1] for found in sockets]


def _mpirun(ranks: int) -> list[str]:
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


def _delete(ranks: int) -> None:
    for arguments in [*(f"netns del rtb{rank}" for rank in range(ranks)), "link del rtbridge"]:
        subprocess.run(["ip", *arguments.split()], check=False, stderr=subprocess.DEVNULL)
