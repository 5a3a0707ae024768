"""Setup of shared memory between the ranks of each host."""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.communicators.base import Communicator
from ringtrain._core.communicators.shm.group import ShmRankGroup
from ringtrain._core.communicators.shm.native import ShmNativeChannel, shm_bytes
from ringtrain._core.communicators.shm.segment import ShmSegment
from ringtrain._core.kernels.library import native_library
from ringtrain._core.wire.signature import WireSignature
from ringtrain._core.world.membership import WorldMembership

log = logging.getLogger("ringtrain")

_PAGE_BYTES: Final = 4096
# Bytes that a rank copies between two barriers; they fit the caches of two to four ranks; see bench/README.
_CHUNK_BYTES_OF_ALL: Final = 1 << 20


@dataclass(frozen=True)
class ShmHostGroups:
    """Ranks of a process set grouped by host, as indexes in the set, and the group of this rank's host."""

    positions: tuple[tuple[int, ...], ...]
    group: ShmRankGroup


def share_memory(member: WorldMembership, process_set: int, network: Communicator, host: str) -> ShmHostGroups | None:
    """Map a shared-memory segment on every host. Return None if no two ranks share a host, or if any rank cannot share
    memory.

    Collective over `network`. `host`: identity of this rank's host. If a rank cannot share memory, the first rank logs
    why.
    """
    refusal = None if native_library() is not None else "ringtrain was installed without a C compiler"
    by_host: dict[str, list[int]] = {}
    refusals: list[str | None] = []
    for position, (name, reported) in enumerate(
        _exchange_on_host(network, "init: who is on which host", [host, refusal])
    ):
        by_host.setdefault(name, []).append(position)
        refusals.append(reported)
    if len(by_host) == len(refusals):
        return None
    if any(refusals):
        _warn_of_refused_segment(network, refusals)
        return None
    own = tuple(by_host[host])
    library = native_library()
    assert library is not None
    # Whole pages, so that slots are aligned for every dtype.
    chunk_bytes = max(64 << 10, _CHUNK_BYTES_OF_ALL // len(own) // _PAGE_BYTES * _PAGE_BYTES)
    segment, refusals = _map_segment(network, own, shm_bytes(library, len(own), chunk_bytes))
    if segment is None:
        _warn_of_refused_segment(network, refusals)
        return None
    channel = ShmNativeChannel(library, segment.memory, own.index(network.position), len(own), chunk_bytes)
    ranks = tuple(network.ranks[position] for position in own)
    positions = tuple(map(tuple, by_host.values()))
    return ShmHostGroups(positions, ShmRankGroup(member, process_set, ranks, network.ranks, channel, segment))


def allocate_shared_memory(network: Communicator, hosts: ShmHostGroups, nbytes: int) -> NDArray[np.uint8]:
    """Return zeroed memory that the other ranks of this host map as well, so that collectives do not copy it.

    Collective over `network`, with the same `nbytes`; if sharing fails, the memory is ordinary.
    """
    own = next(positions for positions in hosts.positions if network.position in positions)
    each = -(-max(nbytes, 1) // _PAGE_BYTES) * _PAGE_BYTES
    segment, _ = _map_segment(network, own, each * len(own))
    return np.zeros(nbytes, np.uint8) if segment is None else hosts.group.adopt(segment)[:nbytes]


def shm_host_identity() -> str:
    """Return an identity of host, pod and user: equal for processes that can map each other's memory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.readlink('/proc/self/ns/net')} {os.getuid()}"
    except OSError:
        return f"unknown {os.urandom(8).hex()}"  # not Linux: shares memory with no other process


def _map_segment(
    network: Communicator, own: tuple[int, ...], length: int
) -> tuple[ShmSegment | None, list[str | None]]:
    """Create a segment of `length` bytes on each host and open it in the other ranks.

    `own`: positions of the ranks on this host. Return the segment (None after a failure), and a list with the reason of
    the failure, or None, for each rank.
    """
    segment, path, refusal = None, "", None
    creator = own[0]
    try:
        if network.position == creator:
            segment = ShmSegment.create(length)
            path = segment.path
    except OSError as error:
        refusal = str(error)
    path = _exchange_on_host(network, "init: where shared memory is", path)[creator]
    try:
        if network.position != creator and path:
            segment = ShmSegment.open(path, length)
    except OSError as error:
        refusal = str(error)
    refusals = _exchange_on_host(network, "init: whether shared memory is mapped", refusal)
    if segment is not None and any(refusals):
        segment.close()
        segment = None
    return segment, refusals


def _warn_of_refused_segment(network: Communicator, refusals: list[str | None]) -> None:
    if network.position == 0:
        why = "; ".join(f"rank {network.ranks[p]}: {refusal}" for p, refusal in enumerate(refusals) if refusal)
        log.warning(
            "ranks %s can't share memory on their hosts and use gRPC, which is slower: %s", list(network.ranks), why
        )


def _exchange_on_host(network: Communicator, kind: str, value: Any) -> list[Any]:
    """Return the JSON-safe `value` of every rank of `network`, in the order of `network.ranks`."""
    part = np.frombuffer(json.dumps(value).encode(), np.uint8)
    return [json.loads(bytes(got.data)) for got in network.all_gather_parts(WireSignature(kind), part)]
