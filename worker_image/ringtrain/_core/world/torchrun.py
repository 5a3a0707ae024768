"""Rank and world size from the variables of torchrun, and the exchange of addresses between its ranks.

torchrun gives the address of rank 0 (MASTER_ADDR, MASTER_PORT) but not those of the others. Under torchrun itself a
store of torch listens on MASTER_PORT, in which ranks write their addresses. If the variables were set by hand,
MASTER_PORT belongs to the training code, so rank 0 listens on a port 1000 higher.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ringtrain._core.world.gathering import RendezvousPoint, gather_addresses
from ringtrain._core.world.topology import place_of
from ringtrain.errors import ConfigurationError, in_ranges, shown
from ringtrain.shared import authentication
from ringtrain.shared.address import own_address, split_address
from ringtrain.shared.environment import HIGHEST, EnvironmentVariables
from ringtrain.shared.place import RankPlace
from ringtrain.shared.ports import HeldPorts

_NAMES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_BESIDE: Final = 1000
_HIGHEST_PORT: Final = 65_535
_rendezvous_count = 0  # count of this process: each `init` writes its addresses under another key


@dataclass(frozen=True)
class TorchrunRank:
    """Rank and world size of a process that torchrun started. `master`: `host:port`. Fields that the environment lacks
    are None."""

    rank: int
    size: int
    master: str
    local_rank: int | None = None
    local_size: int | None = None
    host: int | None = None

    def place(self, addresses: tuple[str, ...]) -> RankPlace:
        """Return the rank's place among hosts, from the environment or else from the hosts in `addresses`."""
        if self.local_rank is None or self.local_size is None or self.size % self.local_size:
            return place_of(addresses, self.rank)
        host = self.rank // self.local_size if self.host is None else self.host
        hosts = self.size // self.local_size
        return RankPlace(self.rank, self.size, self.local_rank, self.local_size, host, hosts)


def torchrun_rank(env: Mapping[str, str]) -> TorchrunRank | None:
    """Return this process's rank from torchrun's variables; None if they are unset. Raises ConfigurationError if a
    variable is invalid."""
    present = [name for name in _NAMES if env.get(name)]
    if "RANK" not in present and "WORLD_SIZE" not in present:
        return None
    if present in (["RANK"], ["WORLD_SIZE"]):
        return None  # other programs use this name too
    size = _torchrun_number(env, "WORLD_SIZE", 1)
    rank = _torchrun_number(env, "RANK", 0, size - 1)
    local_size = _torchrun_number(env, "LOCAL_WORLD_SIZE", 1, size) if env.get("LOCAL_WORLD_SIZE") else None
    highest = (local_size or size) - 1
    local_rank = _torchrun_number(env, "LOCAL_RANK", 0, highest) if env.get("LOCAL_RANK") else None
    host = _torchrun_number(env, "GROUP_RANK", 0, size - 1) if env.get("GROUP_RANK") else None
    if size == 1:
        return TorchrunRank(rank, size, "")
    port = _torchrun_number(env, "MASTER_PORT", 1, _HIGHEST_PORT)
    address = env.get("MASTER_ADDR", "")
    master = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    split_address(master)
    return TorchrunRank(rank, size, master, local_rank, local_size, host)


def rendezvous_near_master(
    found: TorchrunRank, env: Mapping[str, str], token: bytes | None, timeout_s: float
) -> tuple[str, ...]:
    """Return the addresses of all ranks, by rank, exchanged through rank 0 or torchrun's store.

    Raises ConfigurationError if there is no way to exchange them, or if not all ranks join within `timeout_s`.
    """
    global _rendezvous_count
    _rendezvous_count += 1
    held = HeldPorts()
    (port,) = held.take(0, 1)
    try:
        host = env.get("RINGTRAIN_POD_IP") or _own_address(found.master)
        own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            attempt = f"{env.get('TORCHELASTIC_RUN_ID', '')}/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
            return _rendezvous_in_store(found, f"ringtrain/{attempt}/{_rendezvous_count}", own, token, timeout_s)
        return gather_addresses(found.rank, found.size, _rendezvous_point(found.master), own, token, timeout_s)
    finally:
        held.release()


def _rendezvous_point(master: str) -> RendezvousPoint:
    host, port = split_address(master)
    return RendezvousPoint((host, rendezvous_port(port)))


def rendezvous_port(port: int) -> int:
    """Return the port on which rank 0 collects addresses if MASTER_PORT is `port`."""
    return port + _BESIDE if port + _BESIDE <= _HIGHEST_PORT else port - _BESIDE


def _own_address(master: str) -> str:
    try:
        return own_address(master)
    except OSError as error:
        host, _ = split_address(master)
        raise ConfigurationError(
            f'MASTER_ADDR is "{host}", which can\'t be resolved or reached: {error.strerror or error}; expected a name '
            "or address that every rank can reach"
        ) from error


def _rendezvous_in_store(
    found: TorchrunRank, key: str, own: str, token: bytes | None, timeout_s: float
) -> tuple[str, ...]:
    store = _torchrun_rendezvous_store(found.master, timeout_s)

    def proof(rank: int, address: str) -> str:
        return authentication.proof(token, b"address", key.encode(), str(rank).encode(), address.encode())

    try:
        store.set(f"{key}/{found.rank}", f"{own} {proof(found.rank, own)}")
        store.wait([f"{key}/{rank}" for rank in range(found.size)], timedelta(seconds=timeout_s))
    except RuntimeError as error:
        missing = [rank for rank in range(found.size) if not _has_rendezvous_key(store, f"{key}/{rank}")]
        raise ConfigurationError(
            f"rank(s) {in_ranges(missing)} of {found.size} did not call ringtrain.init() within "
            f"{timeout_s:g} s (waited for by rank {found.rank}); every rank must call it"
        ) from error
    addresses = []
    for rank in range(found.size):
        address, _, given = store.get(f"{key}/{rank}").decode().partition(" ")
        if not authentication.is_same_proof(proof(rank, address), given):
            raise ConfigurationError(
                f"ranks {found.rank} and {rank} do not have the same token; check RINGTRAIN_TOKEN_FILE on both ranks"
            )
        addresses.append(address)
    return tuple(addresses)


def _torchrun_rendezvous_store(master: str, timeout_s: float) -> Any:
    try:
        from torch.distributed import TCPStore
    except ImportError as error:
        raise ConfigurationError(
            "TORCHELASTIC_USE_AGENT_STORE is set, but torch, which it needs, can't be imported; "
            "install torch, or unset the variable"
        ) from error
    host, port = split_address(master)
    try:
        return TCPStore(host, port, None, False, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise ConfigurationError(f"torchrun's store at {master} can't be reached: {error}") from error


def _has_rendezvous_key(store: Any, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except RuntimeError:
        return False


def _torchrun_number(env: Mapping[str, str], name: str, lowest: int, highest: int = HIGHEST) -> int:
    if not env.get(name):
        have = ", ".join(f"{other}={shown(env[other])}" for other in _NAMES if env.get(other))
        raise ConfigurationError(
            f"{name} is not set, but {have}; torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together"
        )
    return EnvironmentVariables(env).integer(name, low=lowest, high=highest)


def _restart_rendezvous_count() -> None:
    """Set the count of `init` calls to 0 in a forked process, which counts its own."""
    global _rendezvous_count
    _rendezvous_count = 0


os.register_at_fork(after_in_child=_restart_rendezvous_count)
