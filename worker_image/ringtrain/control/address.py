"""Which of this host's addresses others can reach."""

import socket


def own_address(address: str) -> str:
    """The address of this host on the way to `address` (host:port). Nothing is sent. OSError: no such name."""
    host, _, port = address.rpartition(":")
    family, kind, proto, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
