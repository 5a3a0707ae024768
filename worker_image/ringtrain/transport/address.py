"""Addresses of ranks: `host:port`."""

import ipaddress
import socket

from ringtrain.errors import ConfigurationError


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises ConfigurationError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise ConfigurationError(f'"{address}" is not an address of the form host:port with a port up to 65535')
    return host, int(port)


def listening_address(address: str) -> str:
    """Return where the rank that peers reach at `address` listens.

    A loopback address: only there. Any other: on all interfaces, because inside a pod or behind a name the
    address that peers use need not be one of an interface.
    """
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return f"[::]:{port}"  # a name that only peers resolve, as the one of a Service that is still empty
    # IPv4 first: "localhost" is both, and peers that found nobody at one of them would try the other.
    ips = [ipaddress.ip_address(info[4][0]) for info in sorted(found, key=lambda info: info[0] != socket.AF_INET)]
    if not ips[0].is_loopback:
        return f"[::]:{port}"
    return f"{ips[0]}:{port}" if ips[0].version == 4 else f"[{ips[0]}]:{port}"
