"""Addresses of ranks: `host:port`."""

import errno
import functools
import ipaddress
import socket
import threading
from contextlib import suppress
from typing import Final

from ringtrain.errors import ConfigurationError

_PORT_DIGITS: Final = 5
_LONGEST_NAME: Final = 255
_SHOWN: Final = 300
# Any address that is reached only by the default route. Nothing is sent to it.
_FAR_AWAY: Final = "198.18.0.1:9"
# A connection within a machine takes less than a millisecond.
_LOOPBACK_S: Final = 5.0


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[IPv6]:port`. Raises ConfigurationError if it is neither."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and len(port) <= _PORT_DIGITS and int(port) < 65536
    if not colon or not is_port or not _is_host(host):
        shown = address if len(address) <= _SHOWN else address[:_SHOWN] + "…"
        raise ConfigurationError(f'"{shown}" is not an address of the form host:port with a port up to 65535')
    return host, int(port)


def _is_host(name: str) -> bool:
    """Return whether `name` is valid as a host name or IP address; does not look it up."""
    try:
        return 0 < len(name.encode("idna")) <= _LONGEST_NAME and name.isprintable() and " " not in name
    except UnicodeError:
        return False


def host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_address(address: str) -> str:
    """Return this host's IP address on the route to `address` (host:port). Sends nothing.

    Raises OSError for an unknown name.
    """
    host, port = split_address(address)
    family, kind, proto, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def interface_addresses() -> dict[str, str]:
    """Return the IPv4 address of each network interface that has one, by its name, loopback last."""
    import psutil  # which ranks do without

    both = ((name, each) for name, addresses in psutil.net_if_addrs().items() for each in reversed(addresses))
    found = {name: each.address for name, each in both if each.family == socket.AF_INET}
    return dict(sorted(found.items(), key=lambda item: item[1].startswith("127.")))


def reachable_address() -> str:
    """Return the IP address at which other hosts can probably reach this host; loopback if this host has no other
    address."""
    with suppress(OSError):
        return own_address(_FAR_AWAY)
    return next(iter(interface_addresses().values()), None) or loopback_address()


@functools.cache
def loopback_address() -> str:
    """Return the working loopback address of this machine: 127.0.0.1, or ::1 if only that works.

    Raises ConfigurationError if neither works.
    """
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with (
            suppress(OSError),
            socket.create_server((address, 0), family=family) as server,
            socket.create_connection(server.getsockname()[:2], _LOOPBACK_S),
        ):
            return address
    raise ConfigurationError(
        "processes of this machine cannot reach each other: neither 127.0.0.1 nor ::1 answers; start the loopback "
        "interface as root: ip link set lo up"
    )


def listening_address(address: str) -> str:
    """Return the address on which a rank must listen so that others reach it at `address` (host:port).

    For a loopback address the result is the same address. For any other address the result is all interfaces, because
    in a pod, or behind a host name, no interface may have the public address.
    """
    host, port = split_address(address)
    ip = _resolve(host, port)
    if ip is None or not ip.is_loopback:
        return f"[::]:{port}"
    return host_port(str(ip), port)


def listening_socket(host: str, port: int = 0, is_held: bool = False) -> socket.socket:
    """Return a socket that listens on `port` (0: any free port) of `host` ("": all interfaces). Raises OSError if that
    is impossible.

    `is_held`: whether another process has bound the port and shares it.
    """
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, reuse_port=is_held)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, reuse_port=is_held)
        except OSError as error:  # IPv6 may be disabled
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port), reuse_port=is_held)


def is_loopback(address: str) -> bool:
    """Return whether `address` (host:port) is a loopback address, which only this host can reach."""
    ip = _resolve(*split_address(address))
    return ip is not None and ip.is_loopback


def has_no_host(address: str, within_s: float) -> bool:
    """Return whether a lookup of the host name in `address` (host:port) fails within `within_s` seconds."""
    unknown: list[bool] = []

    def look() -> None:
        unknown.append(_resolve(*split_address(address)) is None)

    looking = threading.Thread(target=look, name="ringtrain-lookup", daemon=True)
    looking.start()
    looking.join(within_s)
    return unknown == [True]


def _resolve(host: str, port: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address of `host`; None if the lookup fails, as for a Kubernetes Service without pods."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    # IPv4 first: "localhost" has both, and peers try the other one if the first does not answer.
    ips = [ipaddress.ip_address(info[4][0]) for info in sorted(found, key=lambda info: info[0] != socket.AF_INET)]
    return ips[0]
