"""Free TCP ports for tests."""

import random
import socket
import threading
from collections import deque

# Below Linux's ephemeral range (32768-60999): no outgoing connection takes one between our look and its use.
_LOWEST, _HIGHEST = 15_000, 32_000
_random = random.SystemRandom()
# What was given lately is not given again: worlds start side by side, and listen a moment after they got ports.
_lately: deque[int] = deque(maxlen=4096)
_lock = threading.Lock()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different ports of `host` on which nothing listens."""
    with _lock:
        ports: list[int] = []
        while len(ports) < count:
            port = _random.randrange(_LOWEST, _HIGHEST)
            if port not in _lately and _is_free(host, port):
                ports.append(port)
                _lately.append(port)
        return ports


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Return `count` different `host:port` addresses on which nothing listens."""
    return [f"{host}:{port}" for port in free_ports(count, host)]
