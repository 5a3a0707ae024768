"""Finds out which ranks can share memory, and makes them share it."""

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ringtrain.collectives.communicator import Communicator
from ringtrain.kernels.library import native_library
from ringtrain.shm.communicator import SharedMemoryCommunicator
from ringtrain.shm.native import NativeChannel, shm_bytes
from ringtrain.shm.segment import Segment
from ringtrain.wire.signature import Signature
from ringtrain.world.membership import Membership

log = logging.getLogger("ringtrain")

# What a rank copies between two meetings: more stays in the caches of two ranks, less of four; see bench/README.
_CHUNK_BYTES_OF_ALL: Final = 1 << 20


@dataclass(frozen=True)
class Candidate:
    """What a rank says about itself. `host`: equal for ranks that can map each other's memory."""

    host: str
    refusal: str | None


def share_memory(member: Membership, process_set: int, network: Communicator) -> SharedMemoryCommunicator | None:
    """Return a communicator through shared memory, or None if some rank is elsewhere or can't take part.

    Collective over `network`. What stands in the way of ranks on one host is logged once, by the first rank.
    """
    candidates = [Candidate(**said) for said in _exchange(network, "shared memory?", asdict(_candidate()))]
    if len({c.host for c in candidates}) > 1:
        return None
    refusals = [f"rank {r}: {c.refusal}" for r, c in zip(network.ranks, candidates, strict=True) if c.refusal]
    library = native_library()
    if refusals or library is None:
        _log_refusals(network, refusals)
        return None
    chunk_bytes = _chunk_bytes(len(network.ranks))
    length = shm_bytes(library, len(network.ranks), chunk_bytes)
    segment, refusals = _map_segment(network, length)
    if segment is None:
        _log_refusals(network, refusals)
        return None
    channel = NativeChannel(library, segment.memory, network.position, len(network.ranks), chunk_bytes)
    return SharedMemoryCommunicator(member, process_set, network, channel, segment)


def _chunk_bytes(size: int) -> int:
    return max(64 << 10, _CHUNK_BYTES_OF_ALL // size)


def _candidate() -> Candidate:
    refusal = None if native_library() is not None else "ringtrain was installed without a C compiler"
    return Candidate(host_identity(), refusal)


def host_identity() -> str:
    """Equal for processes of one user in one pod: one running kernel, one view of processes and of the network."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.readlink('/proc/self/ns/net')} {os.getuid()}"
    except OSError:
        return f"unknown {os.urandom(8).hex()}"  # no Linux: nobody's neighbour


def _map_segment(network: Communicator, length: int) -> tuple[Segment | None, list[str]]:
    """Let the first rank create a segment and all others open it; all succeed or none keeps it."""
    segment, path, refusal = None, "", None
    try:
        if network.position == 0:
            segment = Segment.create(length)
            path = segment.path
    except OSError as error:
        refusal = str(error)
    path = _exchange(network, "shared memory at", path)[0]
    try:
        if network.position > 0 and path:
            segment = Segment.open(path, length)
    except OSError as error:
        refusal = str(error)
    said = _exchange(network, "shared memory mapped?", refusal)
    refusals = [f"rank {rank}: {why}" for rank, why in zip(network.ranks, said, strict=True) if why]
    if segment is not None:
        segment.seal()
    if refusals and segment is not None:
        segment.close()
        segment = None
    return segment, refusals


def _log_refusals(network: Communicator, refusals: list[str]) -> None:
    if network.position == 0:
        ranks, why = list(network.ranks), "; ".join(refusals)
        log.warning("ranks %s share a host but not memory, and use gRPC: %s", ranks, why)


def _exchange(network: Communicator, kind: str, value: Any) -> list[Any]:
    """Return every rank's JSON-safe `value`."""
    part = np.frombuffer(json.dumps(value).encode(), np.uint8)
    return [json.loads(bytes(got.data)) for got in network.all_gather_parts(Signature(kind), part)]
