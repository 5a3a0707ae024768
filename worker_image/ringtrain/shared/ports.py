"""Reservation of free ports for processes that will listen on them later."""

import random
import socket
from collections.abc import Collection
from pathlib import Path

from ringtrain.errors import RingtrainError

_LOWEST = 15_000
_TRIES = 2000


class PortTaken(RingtrainError):
    """Error: a port that is needed on this host is in use."""


class HeldPorts:
    """Ports that this process has bound, so that no other process takes them before the rank that needs them starts.

    Free ports are chosen below the kernel's range of ephemeral ports, so that no connection uses one by accident
    between the release and the rank's own bind.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._ceiling = _ephemeral_start()

    def take(self, base: int, count: int) -> tuple[int, ...]:
        """Bind and return `count` ports from `base` on, or any free ports if `base` is 0. Raises PortTaken if a port is
        in use."""
        if base == 0:
            return tuple(self._take_any() for _ in range(count))
        for port in range(base, base + count):
            if not self._hold(port):
                last = base + count - 1
                raise PortTaken(f"port {port} is in use on this host; expected {base}..{last} to be free")
        return tuple(range(base, base + count))

    def share(self) -> None:
        """Allow other processes of this user to bind these ports as well, if they set SO_REUSEPORT.

        A port then stays bound until its rank has bound it, so that no other process can take it in between.
        """
        for held in self._sockets:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    def release(self, ports: Collection[int] | None = None) -> None:
        """Close `ports` (None: all ports), so that other processes can bind them."""
        for held in list(self._sockets):
            if ports is None or held.getsockname()[1] in ports:
                held.close()
                self._sockets.remove(held)

    def _take_any(self) -> int:
        for _ in range(_TRIES):
            port = random.randrange(_LOWEST, self._ceiling)
            if self._bind(port, reuse=False):
                return port
        raise PortTaken(f"no free port found in {_LOWEST}..{self._ceiling - 1} in {_TRIES} tries")

    def _hold(self, port: int) -> bool:
        # The second try binds a port with only ended connections (TIME_WAIT), of the attempt
        # before, if pods share their host's network. In the first try, it would let two processes bind one port.
        return self._bind(port, reuse=False) or self._bind(port, reuse=True)

    def _bind(self, port: int, reuse: bool) -> bool:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        held = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            held.bind(("", port))
        except OSError:
            held.close()
            return False
        self._sockets.append(held)
        return True


def _ephemeral_start() -> int:
    try:
        start = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        start = 32_768
    return start if start > _LOWEST + 1000 else 65_536
