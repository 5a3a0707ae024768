"""Addresses of this machine's network interfaces."""

import fcntl
import socket
import struct
from collections.abc import Sequence
from typing import Final

from ringtrain.errors import ConfigurationError

_SIOCGIFADDR: Final = 0x8915
_NAME_BYTES: Final = 15


def first_address(names: Sequence[str]) -> str:
    """The IPv4 address of the first interface of `names` that this host has. Raises ConfigurationError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in names:
            request = struct.pack("256s", name.encode()[:_NAME_BYTES])
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:  # no such interface, or one without an IPv4 address
                continue
            return socket.inet_ntoa(answer[20:24])
    there = ", ".join(name for _, name in socket.if_nameindex())
    raise ConfigurationError(
        f"--network-interfaces {','.join(names)}: none of them has an IPv4 address here; this host has {there}"
    )
