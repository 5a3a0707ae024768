"""Free TCP ports for tests, from blocks of which each is one process's own.

Two test runs on one machine, or two workers of one run, never get the same port; and what listens on "any free
port" (agents, launchers: from 15,000 on) and the kernel's ports of connections (from 32,768 on) are elsewhere. So
nothing takes a port between our look and its use.
"""

import os
import random
import socket
import threading
from dataclasses import dataclass

_LOWEST, _HIGHEST = 10_000, 15_000
# Ports that one process may have in use before the first comes again: a world takes few, and a test few worlds.
# Those of connections that have just ended count as in use for a minute, and a busy run has some fifty of them.
_IN_BLOCK = 200


@dataclass
class _Block:
    """`first` is bound, listened on by nobody: to have it is to have the block. `last`: the port given last."""

    claim: socket.socket
    first: int
    last: int
    owner: int  # the process; one that was forked from it claims a block of its own


_block: _Block | None = None
_lock = threading.Lock()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different ports of `host` on which no program listens."""
    global _block
    assert count < _IN_BLOCK, f"{count} ports asked for; a block has {_IN_BLOCK - 1}"
    with _lock:
        if _block is None or _block.owner != os.getpid():
            _block = _claimed()
        ports: list[int] = []
        for _ in range(_IN_BLOCK):
            # cyclic: a port is not returned again soon, because worlds listen a moment later
            _block.last = _block.first + 1 + (_block.last - _block.first) % (_IN_BLOCK - 1)
            if _is_free(host, _block.last) and _block.last not in ports:
                ports.append(_block.last)
            if len(ports) == count:
                return ports
    raise OSError(f"{count} free ports from {_block.first + 1} on were asked for, and most are in use")


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Return `count` different `host:port` addresses on which no program listens."""
    return [f"{host}:{port}" for port in free_ports(count, host)]


def _claimed() -> _Block:
    firsts = range(_LOWEST, _HIGHEST, _IN_BLOCK)
    for first in random.SystemRandom().sample(firsts, len(firsts)):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
        else:
            return _Block(claim, first, first, os.getpid())
    raise OSError(f"all {len(firsts)} blocks of ports are taken: are so many test runs going on here?")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
