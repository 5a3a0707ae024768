"""Detection of whether ranks have connected to each other, independent of their communication library."""

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
    """Monitor of the kernel's TCP table: finds sockets that listen at, or connect to, an address of the world.

    Connections that existed when this object was created are ignored, because another program may have used the port.
    Ranks find the addresses in their environment, so a connection indicates that `torch.distributed`, TensorFlow's
    servers or other code that reads `MASTER_ADDR` or `TF_CONFIG` works. Ranks of Ringtrain report their rendezvous
    themselves: their connections may be opened and reset between two checks.
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
        """Return whether it is time for the next `check`. The kernel lists a closed connection for 60 s only."""
        return not self.found and time.monotonic() >= self._due_at

    def check(self) -> bool:
        """Return whether a new socket uses an address of the world, or the TCP table cannot be read."""
        connections = self._connections()
        # If the kernel's table cannot be read, assume contact.
        self.found = connections is None or any(
            int(end.rpartition(":")[2], 16) in self._ports for pair in connections - self._before for end in pair
        )
        self._due_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        return self.found

    def _connections(self) -> set[tuple[str, str]] | None:
        """Return (local, remote) address of each TCP socket in the kernel's notation; None if unreadable."""
        try:
            tables = [table.read_text() for table in self._tables if table.exists()]
        except OSError:  # a sandbox may forbid it; training continues
            return None
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        return {(row[1], row[2]) for row in rows} if tables else None
