"""Discovery of a rank's world from the variables of ringtrain, TF_CONFIG, SLURM, MPI or torchrun."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ringtrain._core.requirements import load_plugin
from ringtrain._core.world.mpi_environment import mpi_rank
from ringtrain._core.world.slurm import rendezvous_on_first_node, slurm_rank
from ringtrain._core.world.tf_config import parse_tf_config
from ringtrain._core.world.topology import check_addresses, place_of, same_address
from ringtrain._core.world.torchrun import rendezvous_near_master, torchrun_rank
from ringtrain.errors import ConfigurationError, counted, shown
from ringtrain.shared import contract
from ringtrain.shared.place import RankPlace
from ringtrain.shared.settings import Settings, integer

# Entry points of plugins that exchange addresses, by the launcher (ringtrain/adapter/communicators.py).
RENDEZVOUS: Final = "ringtrain.rendezvous"
ALONE: Final = ("localhost:0",)
_WORLD_FILE_VERSION: Final = 1


def ring_addresses_in(path: Path) -> tuple[str, ...]:
    """Return the addresses of all ranks, by rank, from the agent's file at `path`. Raises ConfigurationError if the
    file is missing or invalid."""
    name = f"{contract.ENV_WORLD_FILE} is {shown(str(path))}"
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not JSON ({error})"
        raise ConfigurationError(f"{name}: {why}; expected the file that this world's agent has written") from error
    if not isinstance(content, dict) or content.get("version") != _WORLD_FILE_VERSION:
        version = content.get("version") if isinstance(content, dict) else None
        raise ConfigurationError(
            f"{name}: its version is {shown(version)}; expected an object of version {_WORLD_FILE_VERSION}"
        )
    addresses = content.get("ringAddresses")
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise ConfigurationError(f'{name}: ringAddresses is {shown(addresses)}; expected a list of "host:port"')
    return tuple(addresses)


@dataclass(frozen=True)
class DiscoveredWorld:
    """World and this process's rank in it. `slot`: index of the process in an elastic job, which stays the same in all
    worlds."""

    source: str
    role: str
    addresses: tuple[str, ...]
    place: RankPlace
    slot: int | None = None


@dataclass(frozen=True)
class Rendezvous:
    """Settings for an exchange of addresses between ranks that do not have them in their environment."""

    env: Mapping[str, str]
    timeout_s: float
    token: Callable[[], bytes | None]


def discover_world(rendezvous: Rendezvous) -> DiscoveredWorld:
    """Find this process's world from `RINGTRAIN_*`; if these are unset, from `TF_CONFIG`, SLURM, MPI or torchrun, in
    this order. Without any of them the process is a world of one.

    Raises ConfigurationError naming the variable, its value and what was expected.
    """
    return (
        _from_ringtrain(rendezvous.env)
        or _from_tf_config(rendezvous.env)
        or _from_slurm(rendezvous)
        or _from_mpi(rendezvous)
        or _from_torchrun(rendezvous)
        or _world_of_one("single", "worker")
    )


def _world_of_one(source: str, role: str) -> DiscoveredWorld:
    return DiscoveredWorld(source, role, ALONE, RankPlace())


@dataclass(frozen=True, kw_only=True)
class _RankVariables(Settings):
    size: int = integer(contract.ENV_SIZE, low=1)
    rank: int = integer(contract.ENV_RANK, low=0, high=lambda seen: seen.size - 1)


def _highest_local_rank(seen: Any) -> int:
    highest: int = seen.local_size - 1 if seen.slot is None else seen.slot
    return highest


@dataclass(frozen=True, kw_only=True)
class _PlaceVariables(Settings):
    """Variables with the rank's place among hosts; unset ones are derived from the addresses (`by_host`).

    In an elastic job the local rank follows from the slot, so the local ranks of a pod may have gaps.
    """

    local_size: int = integer(contract.ENV_LOCAL_SIZE, derived=lambda seen: seen.by_host.local_size, low=1)
    cross_size: int = integer(contract.ENV_CROSS_SIZE, derived=lambda seen: seen.by_host.cross_size, low=1)
    slot: int | None = integer(contract.ENV_SLOT, None, low=0)
    local_rank: int = integer(
        contract.ENV_LOCAL_RANK, derived=lambda seen: seen.by_host.local_rank, low=0, high=_highest_local_rank
    )
    cross_rank: int = integer(
        contract.ENV_CROSS_RANK,
        derived=lambda seen: seen.by_host.cross_rank,
        low=0,
        high=lambda seen: seen.cross_size - 1,
    )


def _from_ringtrain(env: Mapping[str, str]) -> DiscoveredWorld | None:
    if contract.ENV_RANK not in env and contract.ENV_SIZE not in env:
        return None
    for name in (contract.ENV_RANK, contract.ENV_SIZE):
        if name not in env:
            raise ConfigurationError(f"{name} is not set; set both {contract.ENV_RANK} and {contract.ENV_SIZE}")
    own = _RankVariables.from_env(env)
    addresses = _ring_addresses(env, own.size)
    if addresses is None:
        if own.size > 1:
            raise ConfigurationError(
                f"neither {contract.ENV_RING_ADDRESSES} nor {contract.ENV_WORLD_FILE} is set; expected host:port "
                f"of each of {own.size} ranks, by rank"
            )
        addresses = ALONE
    at = _PlaceVariables.from_env(env, by_host=place_of(addresses, own.rank))
    place = RankPlace(own.rank, own.size, at.local_rank, at.local_size, at.cross_rank, at.cross_size)
    return DiscoveredWorld("ringtrain", "worker", addresses, place, at.slot)


def _from_tf_config(env: Mapping[str, str]) -> DiscoveredWorld | None:
    text = env.get("TF_CONFIG", "")
    task = parse_tf_config(text) if text.strip() else None
    if task is None:
        return None
    if not task.addresses:
        return _world_of_one("tf_config", task.type)
    return DiscoveredWorld("tf_config", task.type, task.addresses, place_of(task.addresses, task.rank))


def _from_slurm(rendezvous: Rendezvous) -> DiscoveredWorld | None:
    found = slurm_rank(rendezvous.env)
    if found is None:
        return None
    addresses = ALONE if found.size == 1 else _ring_addresses(rendezvous.env, found.size)
    if addresses is None:
        addresses = rendezvous_on_first_node(found, rendezvous.env, rendezvous.token(), rendezvous.timeout_s)
    return DiscoveredWorld("slurm", "worker", addresses, place_of(addresses, found.rank))


def _from_mpi(rendezvous: Rendezvous) -> DiscoveredWorld | None:
    found = mpi_rank(rendezvous.env)
    if found is None:
        return None
    addresses = ALONE if found.size == 1 else _ring_addresses(rendezvous.env, found.size)
    if addresses is None and contract.ENV_MPI_CHECK_IN in rendezvous.env:
        # The agent sets addresses only for ranks on the worker that the job's order assigns to them; others
        # expect them there.
        raise ConfigurationError(
            f"mpirun has started rank {found.rank} on another worker than the job assigns to it; "
            "remove the options that place ranks (such as --map-by node, -ppn, a rankfile)"
        )
    if addresses is None:
        rendezvous_by_mpi = load_plugin(RENDEZVOUS, "mpi", "a rank that mpirun alone has started")
        addresses = rendezvous_by_mpi(found, rendezvous.env, rendezvous.timeout_s)
    return DiscoveredWorld("mpi", "worker", addresses, place_of(addresses, found.rank))


def _from_torchrun(rendezvous: Rendezvous) -> DiscoveredWorld | None:
    found = torchrun_rank(rendezvous.env)
    if found is None:
        return None
    addresses = ALONE if found.size == 1 else _ring_addresses(rendezvous.env, found.size)
    if addresses is None:
        addresses = rendezvous_near_master(found, rendezvous.env, rendezvous.token(), rendezvous.timeout_s)
    return DiscoveredWorld("torchrun", "worker", addresses, found.place(addresses))


def _ring_addresses(env: Mapping[str, str], size: int) -> tuple[str, ...] | None:
    if text := env.get(contract.ENV_RING_ADDRESSES, ""):
        source = contract.ENV_RING_ADDRESSES
        addresses = tuple(address.strip() for address in text.split(","))
    elif path := env.get(contract.ENV_WORLD_FILE, ""):
        source = f"{contract.ENV_WORLD_FILE} ({path})"
        addresses = ring_addresses_in(Path(path))
    else:
        return None
    if len(addresses) != size:
        raise ConfigurationError(
            f"{source} has {counted(len(addresses), 'address', 'addresses')}; expected {size}, one for each rank"
        )
    check_addresses(addresses, lambda rank: f"{source}, rank {rank}")
    if (ranks := same_address(addresses)) is not None:
        first, second = ranks
        raise ConfigurationError(
            f"{source} has {addresses[first]} for ranks {first} and {second}; give each rank a different address"
        )
    return addresses


def environment_rank(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Return (rank, size) from the variables of SLURM, MPI or torchrun; None if none are set."""
    found = slurm_rank(env) or mpi_rank(env) or torchrun_rank(env)
    return None if found is None else (found.rank, found.size)
