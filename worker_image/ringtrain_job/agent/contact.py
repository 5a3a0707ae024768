"""Whether a pod's ranks have been in touch with others, whichever library they use for that."""

import time
from pathlib import Path
from typing import Final

from ringtrain.shared.address import split_address
from ringtrain_job.control.model import World

# Linux keeps a connection in its tables for 60 s after its end (proc_net_tcp(5): TIME_WAIT), but for one that was
# reset: what listens or is connected for so long is seen.
_LONGEST_S: Final = 2.0
_SOONEST_S: Final = 0.5
_TABLES: Final = ("tcp", "tcp6")


class AgentWorldContact:
    """Looks at the kernel's table of connections for one that listens at or leads to an address of the world, and
    was not there when this was made: before the ranks a port may have been somebody else's.

    A rank finds those addresses in its environment; what is there speaks for `torch.distributed`, for TensorFlow's
    servers and for whatever else reads `MASTER_ADDR` or `TF_CONFIG`. Ranks of Ringtrain say themselves that they
    have met: connections of theirs may come and go, and be reset, between two looks.
    """

    def __init__(self, world: World, tables: Path = Path("/proc/self/net")) -> None:
        named = (split_address(address)[1] for address in (*world.ring_addresses, *world.tf_addresses))
        self._ports = {*named, world.master_port} - {0}  # to which a socket that only listens is connected
        self._tables = [tables / name for name in _TABLES]
        self._before = set(self._connections() or ())
        self._pause_s = _SOONEST_S
        self._look_at = time.monotonic()
        self.found = False

    def is_due(self) -> bool:
        """Whether to look again before the kernel may have forgotten what came since the last time."""
        return not self.found and time.monotonic() >= self._look_at

    def look(self) -> bool:
        """Whether there is such a connection now."""
        connections = self._connections()
        # Where nothing is known, nothing is said.
        self.found = connections is None or any(
            int(end.rpartition(":")[2], 16) in self._ports for pair in connections - self._before for end in pair
        )
        self._look_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        return self.found

    def _connections(self) -> set[tuple[str, str]] | None:
        """Both ends of each connection, as the kernel writes them; None: it does not tell."""
        try:
            tables = [table.read_text() for table in self._tables if table.exists()]
        except OSError:  # a sandbox may forbid it, and training goes on
            return None
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        return {(row[1], row[2]) for row in rows} if tables else None
