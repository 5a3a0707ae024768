"""Free TCP ports for tests."""

import random
import socket

# Below Linux's ephemeral range (32768-60999): no outgoing connection takes one between our look and its use.
_LOWEST, _HIGHEST = 15_000, 32_000
_random = random.SystemRandom()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different ports of `host` on which nothing listens."""
    ports: list[int] = []
    while len(ports) < count:
        port = _random.randrange(_LOWEST, _HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Return `count` different `host:port` addresses on which nothing listens."""
    return [f"{host}:{port}" for port in free_ports(count, host)]
