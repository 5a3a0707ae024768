"""Exchange of addresses between ranks that mpirun has started without ringtrain's agent.

On one host by files in the directory that Open MPI creates for the job, which is fast. Else by MPI.
"""

import fcntl
import itertools
import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ringtrain.adapter.communicators import HeldPorts, MpiRank
from ringtrain.errors import ConfigurationError, in_ranges

_LOOK_S = 0.01
_SIOCGIFADDR = 0x8915
# Bridges of container runtimes and hypervisors, which exist on every host with the same address.
_INNER = ("lo", "docker", "virbr", "br-", "cni", "flannel", "podman")


def rendezvous_by_mpi(found: MpiRank, env: Mapping[str, str], timeout_s: float) -> tuple[str, ...]:
    """Return the addresses of all ranks, by rank, exchanged through MPI or, on one host, through files.

    Raises ConfigurationError if there is no way to exchange them, or if not all ranks join within `timeout_s`.
    """
    held = HeldPorts()
    (port,) = held.take(0, 1)
    try:
        directory = _rendezvous_directory(found, env)
        if directory is not None:
            return _rendezvous_in_files(found, directory, f"127.0.0.1:{port}", timeout_s)
        host = "127.0.0.1" if found.local_size == found.size else _own_rendezvous_address(env)
        from ringtrain_mpi.ranks.library import load_world

        return tuple(load_world(found.rank, found.size).allgather(f"{host}:{port}"))
    finally:
        held.release()


def _rendezvous_directory(found: MpiRank, env: Mapping[str, str]) -> Path | None:
    """Return this job's directory on the ranks' common host; None if there is none, or with several hosts."""
    session, namespace = env.get("PMIX_SERVER_TMPDIR"), env.get("PMIX_NAMESPACE")
    if found.local_size != found.size or not session or not namespace or not os.access(session, os.W_OK):
        return None
    return Path(session) / f"ringtrain-{namespace.replace('/', '_')}"


def _rendezvous_in_files(found: MpiRank, directory: Path, own: str, timeout_s: float) -> tuple[str, ...]:
    directory.mkdir(mode=0o700, exist_ok=True)
    draft = directory / f"draft-{found.rank}"
    draft.write_text(own)
    # Files of earlier worlds remain: a rank may join again, or run one program after another.
    attempts = itertools.count()
    attempt = next(number for number in attempts if not (directory / f"{number}-{found.rank}").exists())
    draft.rename(directory / f"{attempt}-{found.rank}")
    deadline = time.monotonic() + timeout_s
    addresses: dict[int, str] = {}
    while True:
        for rank in range(found.size):
            with suppress(FileNotFoundError):
                addresses[rank] = (directory / f"{attempt}-{rank}").read_text()
        missing = [rank for rank in range(found.size) if rank not in addresses]
        if not missing:
            return tuple(addresses[rank] for rank in range(found.size))
        if time.monotonic() >= deadline:
            (directory / f"{attempt}-{found.rank}").unlink()
            raise ConfigurationError(
                f"rank(s) {in_ranges(missing)} of {found.size} did not call ringtrain.init() within "
                f"{timeout_s:g} s (waited for by rank {found.rank}); every rank must call it"
            )
        time.sleep(_LOOK_S)


def _own_rendezvous_address(env: Mapping[str, str]) -> str:
    """Return an IP address at which ranks on other hosts can reach this host."""
    named = env.get("RINGTRAIN_POD_IP")
    if named:
        return named
    for _, name in socket.if_nameindex():
        address = None if name.startswith(_INNER) else _rendezvous_address_of(name)
        if address:
            return address
    raise ConfigurationError(
        "found no address at which other hosts can reach this host; set RINGTRAIN_POD_IP on "
        "each host, or RINGTRAIN_RING_ADDRESSES"
    )


def _rendezvous_address_of(interface: str) -> str | None:
    """Return the IPv4 address of the network interface `interface`; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return None
