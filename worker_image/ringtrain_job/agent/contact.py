"""Detection of connections between a pod's ranks and others, for any communication library."""

import time
from pathlib import Path
from typing import Final

from ringtrain.shared.address import split_address
from ringtrain_job.control.model import World

# Linux lists a connection for 60 s after its end (proc_net_tcp(5): TIME_WAIT) unless it was reset. A socket that
# listens or is connected for this time is seen.
_LONGEST_S: Final = 2.0
_SOONEST_S: Final = 0.5
_TABLES: Final = ("tcp", "tcp6")


class WorldContact:
    """Watcher of the kernel's connection table for sockets that listen at, or lead to, an address of the world.

    Connections that existed when this object was created are ignored, because another program may have used the port.
    Ranks find the addresses in their environment, so a connection indicates that `torch.distributed`, TensorFlow's
    servers or other code that reads `MASTER_ADDR` or `TF_CONFIG` works. Ranks of Ringtrain report their rendezvous
    themselves: their connections may be opened and reset between two looks.
    """

    def __init__(self, world: World, tables: Path = Path("/proc/self/net")) -> None:
        named = (split_address(address)[1] for address in (*world.ring_addresses, *world.tf_addresses))
        self._ports = {*named, world.master_port} - {0}  # a socket that only listens has 0 as its peer port
        self._tables = [tables / name for name in _TABLES]
        self._before = set(self._connections() or ())
        self._pause_s = _SOONEST_S
        self._due_at = time.monotonic()
        self.found = False

    def is_due(self) -> bool:
        """Return whether the next look is due, before the kernel forgets connections since the last one."""
        return not self.found and time.monotonic() >= self._due_at

    def check(self) -> bool:
        """Return whether such a connection exists now."""
        connections = self._connections()
        # If the kernel's table cannot be read, assume contact.
        self.found = connections is None or any(
            int(end.rpartition(":")[2], 16) in self._ports for pair in connections - self._before for end in pair
        )
        self._due_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        return self.found

    def _connections(self) -> set[tuple[str, str]] | None:
        """Return both ends of each connection in the kernel's notation; None if the table cannot be read."""
        try:
            tables = [table.read_text() for table in self._tables if table.exists()]
        except OSError:  # a sandbox may forbid it; training continues
            return None
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        return {(row[1], row[2]) for row in rows} if tables else None
