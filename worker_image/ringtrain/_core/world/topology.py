"""Grouping of ranks by host, from their addresses."""

from collections.abc import Callable, Sequence

from ringtrain.errors import ConfigurationError
from ringtrain.shared.address import split_address
from ringtrain.shared.place import RankPlace


def place_of(addresses: tuple[str, ...], rank: int) -> RankPlace:
    """Return the place of `rank` (local and cross rank), from the hosts in the ranks' addresses."""
    hosts: dict[str, list[int]] = {}
    for other, address in enumerate(addresses):
        hosts.setdefault(split_address(address)[0], []).append(other)
    return RankPlace.among([*hosts.values()], rank)


def check_addresses(addresses: Sequence[str], name: Callable[[int], str]) -> None:
    """Raise ConfigurationError for the first invalid address. `name(index)`: begins the message."""
    for index, address in enumerate(addresses):
        try:
            split_address(address)
        except ConfigurationError as error:
            raise ConfigurationError(f"{name(index)}: {error}") from error


def same_address(addresses: tuple[str, ...]) -> tuple[int, int] | None:
    """Return two ranks that have the same address; None if all addresses are different."""
    ranks: dict[str, int] = {}
    for rank, address in enumerate(addresses):
        first = ranks.setdefault(address, rank)
        if first != rank:
            return first, rank
    return None
