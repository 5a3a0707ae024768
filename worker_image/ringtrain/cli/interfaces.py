"""The address that `--network-interfaces` chooses."""

import socket
from collections.abc import Sequence

from ringtrain.errors import ConfigurationError
from ringtrain.transport.address import interface_addresses


def first_address(names: Sequence[str]) -> str:
    """The IPv4 address of the first interface of `names` that this host has. Raises ConfigurationError."""
    here = interface_addresses()
    for name in names:
        if name in here:
            return here[name]
    there = ", ".join(name for _, name in socket.if_nameindex())
    raise ConfigurationError(
        f"--network-interfaces {','.join(names)}: none of them has an IPv4 address here; this host has {there}"
    )
