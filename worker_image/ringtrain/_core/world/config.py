"""The environment of a rank, read here and nowhere else."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from ringtrain._core.world.mpi_environment import mpi_rank
from ringtrain._core.world.slurm import meet_on_first_node, slurm_rank
from ringtrain._core.world.tf_config import parse_tf_config
from ringtrain._core.world.topology import check_addresses, place_of, same_address
from ringtrain._core.world.torchrun import meet_beside_master, torchrun_rank
from ringtrain.errors import ConfigurationError, shown
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables, without_empty
from ringtrain.shared.horovod_variables import log_level, with_counterparts
from ringtrain.shared.place import RankPlace

_VERSION: Final = 1


def ring_addresses_in(path: Path) -> tuple[str, ...]:
    """The addresses of all ranks, by rank, as the file says. Raises ConfigurationError naming what is wrong."""
    name = f"{contract.ENV_WORLD_FILE} is {shown(str(path))}"
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is no JSON ({error})"
        raise ConfigurationError(f"{name}: {why}; expected the file that this world's agent has written") from error
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        version = content.get("version") if isinstance(content, dict) else None
        raise ConfigurationError(f"{name}: its version is {shown(version)}; expected an object of version {_VERSION}")
    addresses = content.get("ringAddresses")
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise ConfigurationError(f'{name}: ringAddresses is {shown(addresses)}; expected a list of "host:port"')
    return tuple(addresses)


_ALONE = ("localhost:0",)
# auto: shared memory between ranks of one pod, gRPC between pods. grpc, shm: that one or an error.
# torch: tensors of ringtrain.torch through torch.distributed, all else as with auto, which chooses that for CUDA.
# host: as auto, and never through a library of a device.
TRANSPORTS = ("auto", "grpc", "shm", "mpi", "torch", "host")
# auto: between pods, tensors take ports of their own where these can be reached. grpcio: always gRPC's library.
DATA_PATHS = ("auto", "grpcio")


@dataclass(frozen=True)
class _DiscoveredWorld:
    """Where a source of discovery puts this process."""

    source: str
    role: str
    addresses: tuple[str, ...]
    place: RankPlace


@dataclass(frozen=True)
class WorkerConfig:
    """What a rank knows about itself before it talks to anyone.

    `role`: `chief`, `worker`, or `evaluator`, which stands outside the ring in a world of one.
    `source`: where the world was found: `ringtrain`, `tf_config`, `slurm`, `mpi`, `torchrun` or `single`.
    `transport`: one of `TRANSPORTS`. `data_path`: one of `DATA_PATHS`.
    `encrypt`: one of `contract.ENCRYPTION`, `sites` only where there are several, with the certificates in
    `secret_dir`, which are of the job `job_uid`.
    `token_text`: the token where there is no `token_file`. `formation`: the number of the world within the attempt
    in an elastic job, else 0. `committed`: the highest step that the attempt has committed. `slot`: the place in
    such a job, which this process keeps with its local rank.
    `sites`: the name of each rank's site; empty: all are in one.
    `log_level`: of ringtrain's own messages, empty where nobody says.
    """

    rank: int = 0
    size: int = 1
    addresses: tuple[str, ...] = _ALONE
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    role: str = "worker"
    source: str = "single"
    generation: int = 1
    attempt: int = 1
    formation: int = 0
    committed: int = 0
    slot: int | None = None
    timeout_s: float = 60.0
    stall_timeout_s: float = 600.0
    stall_warning_s: float = 30.0
    transport: str = "auto"
    data_path: str = "auto"
    encrypt: str = "none"
    secret_dir: Path = Path(contract.SECRET_DIR)
    job_uid: str = ""
    token_file: Path | None = None
    token_text: str | None = field(default=None, repr=False)
    report_fd: int | None = None
    check_in_file: Path | None = None
    checkpoint_dir: Path | None = None
    checkpoint_uri: str = ""
    restore_from: str = ""
    timeline: Path | None = None
    tracebacks: bool = False
    sites: tuple[str, ...] = ()
    log_level: str = ""

    def encrypts_among(self, ranks: Sequence[int]) -> bool:
        """Whether what these ranks tell each other is to be encrypted."""
        if self.encrypt == "sites":
            return len({self.sites[rank] for rank in ranks}) > 1
        return self.encrypt != "none"

    @property
    def ranks_by_site(self) -> dict[str, list[int]]:
        """The ranks of each site by its name, in the order of the first of them; one without a name if no sites
        are known."""
        found: dict[str, list[int]] = {}
        for rank, name in enumerate(self.sites or ("",) * self.size):
            found.setdefault(name, []).append(rank)
        return found

    @property
    def pod(self) -> int:
        """A number that the ranks of this pod have alike, and those of no other pod."""
        return (self.rank if self.slot is None else self.slot) - self.local_rank

    @staticmethod
    def from_env(env: Mapping[str, str]) -> "WorkerConfig":
        """Find the world: `RINGTRAIN_*`, then `TF_CONFIG`, SLURM's, MPI's, torchrun's, else a world of one.

        Where one of ours is not set, its counterpart of Horovod's counts (`horovod_variables.COUNTERPARTS`).
        Raises ConfigurationError naming the variable, its value and what was expected.
        """
        env = _with_values(with_counterparts(env))
        read = EnvironmentVariables(env)
        world = (
            _from_ringtrain(env)
            or _from_tf_config(env)
            or _from_slurm(env)
            or _from_mpi(env)
            or _from_torchrun(env)
            or _world_of_one("single", "worker")
        )
        attempt = read.integer(contract.ENV_ATTEMPT, 1, low=1)
        timeout_s = read.seconds(contract.ENV_TIMEOUT, 60.0)
        encrypt = read.choice(contract.ENV_ENCRYPT, contract.ENCRYPTION, contract.ENCRYPTION[0])
        sites = _world_sites(env, len(world.addresses))
        return WorkerConfig(
            addresses=world.addresses,
            **asdict(world.place),
            role=world.role,
            source=world.source,
            generation=read.integer(contract.ENV_GENERATION, attempt, low=0),
            attempt=attempt,
            formation=read.integer(contract.ENV_FORMATION, 0, low=0),
            committed=read.integer(contract.ENV_COMMITTED, 0, low=0),
            slot=_rank_slot(env) if world.source == "ringtrain" else None,
            timeout_s=timeout_s,
            stall_timeout_s=read.seconds(contract.ENV_STALL_TIMEOUT, max(600.0, timeout_s)),
            stall_warning_s=read.seconds(contract.ENV_STALL_WARNING, 30.0),
            transport=read.choice(contract.ENV_TRANSPORT, TRANSPORTS, TRANSPORTS[0]),
            data_path=read.choice(contract.ENV_DATA_PATH, DATA_PATHS, DATA_PATHS[0]),
            encrypt="none" if encrypt == "sites" and len(set(sites)) < 2 else encrypt,
            secret_dir=_file_path(env, contract.ENV_SECRET_DIR) or Path(contract.SECRET_DIR),
            job_uid=env.get(contract.ENV_JOB_UID, ""),
            token_file=_file_path(env, contract.ENV_TOKEN_FILE),
            token_text=env.get(contract.ENV_TOKEN),
            report_fd=read.integer(contract.ENV_REPORT_FD, low=0) if contract.ENV_REPORT_FD in env else None,
            check_in_file=_file_path(env, contract.ENV_MPI_CHECK_IN),
            checkpoint_dir=_file_path(env, contract.ENV_CHECKPOINT_DIR),
            checkpoint_uri=env.get(contract.ENV_CHECKPOINT_URI, ""),
            restore_from=env.get(contract.ENV_RESTORE_FROM, ""),
            timeline=_file_path(env, contract.ENV_TIMELINE),
            tracebacks=read.flag(contract.ENV_TRACEBACKS, "0"),
            sites=sites,
            log_level=log_level(contract.ENV_LOG_LEVEL, level) if (level := env.get(contract.ENV_LOG_LEVEL)) else "",
        )

    def token(self) -> bytes | None:
        """Return the job's token, or None if no proof is asked for. Raises ConfigurationError."""
        return _world_token(self.token_file, self.token_text)


def _with_values(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without empty variables. An empty token stays: without one, a world would ask strangers for none."""
    token = {contract.ENV_TOKEN: env[contract.ENV_TOKEN]} if contract.ENV_TOKEN in env else {}
    return without_empty(env) | token


def _world_token(file: Path | None, text: str | None) -> bytes | None:
    """The token in `file`, else `text`. Raises ConfigurationError."""
    if file is None:
        if text is not None and not text.strip():
            raise ConfigurationError(f"{contract.ENV_TOKEN} is empty; give every rank the same text, or unset it")
        return None if text is None else text.strip().encode()
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"{contract.ENV_TOKEN_FILE} is {file}: {error.strerror}") from error
    if not token:
        raise ConfigurationError(f"{contract.ENV_TOKEN_FILE} is {file}: the file is empty")
    return token


def _world_of_one(source: str, role: str) -> _DiscoveredWorld:
    return _DiscoveredWorld(source, role, _ALONE, RankPlace(0, 1, 0, 1, 0, 1))


def _from_ringtrain(env: Mapping[str, str]) -> _DiscoveredWorld | None:
    if contract.ENV_RANK not in env and contract.ENV_SIZE not in env:
        return None
    for name in (contract.ENV_RANK, contract.ENV_SIZE):
        if name not in env:
            raise ConfigurationError(f"{name} is not set; {contract.ENV_RANK} and {contract.ENV_SIZE} go together")
    read = EnvironmentVariables(env)
    size = read.integer(contract.ENV_SIZE, low=1)
    rank = read.integer(contract.ENV_RANK, low=0, high=size - 1)
    addresses = _ring_addresses(env, size)
    if addresses is None:
        if size > 1:
            raise ConfigurationError(
                f"{contract.ENV_RING_ADDRESSES} is not set, nor is {contract.ENV_WORLD_FILE}; expected host:port "
                f"of each of {size} ranks, by rank"
            )
        addresses = _ALONE
    return _DiscoveredWorld("ringtrain", "worker", addresses, _rank_place_of(env, addresses, rank))


def _from_tf_config(env: Mapping[str, str]) -> _DiscoveredWorld | None:
    text = env.get("TF_CONFIG", "")
    task = parse_tf_config(text) if text.strip() else None
    if task is None:
        return None
    if not task.addresses:
        return _world_of_one("tf_config", task.type)
    return _DiscoveredWorld("tf_config", task.type, task.addresses, place_of(task.addresses, task.rank))


def _from_slurm(env: Mapping[str, str]) -> _DiscoveredWorld | None:
    found = slurm_rank(env)
    if found is None:
        return None
    addresses = _ALONE if found.size == 1 else _ring_addresses(env, found.size)
    if addresses is None:
        token = _world_token(_file_path(env, contract.ENV_TOKEN_FILE), env.get(contract.ENV_TOKEN))
        addresses = meet_on_first_node(found, env, token, EnvironmentVariables(env).seconds(contract.ENV_TIMEOUT, 60.0))
    return _DiscoveredWorld("slurm", "worker", addresses, place_of(addresses, found.rank))


def _from_mpi(env: Mapping[str, str]) -> _DiscoveredWorld | None:
    found = mpi_rank(env)
    if found is None:
        return None
    addresses = _ALONE if found.size == 1 else _ring_addresses(env, found.size)
    if addresses is None and contract.ENV_MPI_CHECK_IN in env:
        # The agent gives addresses to the ranks that are where the job's order has them, and those expect the
        # others there.
        raise ConfigurationError(
            f"mpirun has put rank {found.rank} on another worker than the order of ranks has it, where the others "
            "look for it; leave out the options that place ranks (such as --map-by node, -ppn, a rankfile)"
        )
    if addresses is None:
        from ringtrain._core.world.mpi_rendezvous import meet_mpi_world  # rarely needed, and import time counts

        addresses = meet_mpi_world(found, env, EnvironmentVariables(env).seconds(contract.ENV_TIMEOUT, 60.0))
    return _DiscoveredWorld("mpi", "worker", addresses, place_of(addresses, found.rank))


def _from_torchrun(env: Mapping[str, str]) -> _DiscoveredWorld | None:
    found = torchrun_rank(env)
    if found is None:
        return None
    addresses = _ALONE if found.size == 1 else _ring_addresses(env, found.size)
    if addresses is None:
        token = _world_token(_file_path(env, contract.ENV_TOKEN_FILE), env.get(contract.ENV_TOKEN))
        addresses = meet_beside_master(found, env, token, EnvironmentVariables(env).seconds(contract.ENV_TIMEOUT, 60.0))
    return _DiscoveredWorld("torchrun", "worker", addresses, found.place(addresses))


def _ring_addresses(env: Mapping[str, str], size: int) -> tuple[str, ...] | None:
    if text := env.get(contract.ENV_RING_ADDRESSES, ""):
        source = contract.ENV_RING_ADDRESSES
        addresses = tuple(address.strip() for address in text.split(","))
    elif (path := _file_path(env, contract.ENV_WORLD_FILE)) is not None:
        source = f"{contract.ENV_WORLD_FILE} ({path})"
        addresses = ring_addresses_in(path)
    else:
        return None
    if len(addresses) != size:
        raise ConfigurationError(f"{source} has {len(addresses)} addresses; expected {size}, one for each rank")
    check_addresses(addresses, lambda rank: f"{source}, rank {rank}")
    if (ranks := same_address(addresses)) is not None:
        first, second = ranks
        raise ConfigurationError(
            f"{source} has {addresses[first]} for ranks {first} and {second}; give each rank its own"
        )
    return addresses


def _world_sites(env: Mapping[str, str], size: int) -> tuple[str, ...]:
    """The name of each rank's site; empty where nobody says, and in a process beside the world, which is of one
    rank and has the names of all."""
    names = tuple(name.strip() for name in env.get(contract.ENV_SITES, "").split(","))
    if names == ("",) or (size == 1 and len(names) > 1):
        return ()
    if len(names) != size or "" in names:
        raise ConfigurationError(
            f"{contract.ENV_SITES} is {shown(env[contract.ENV_SITES])}; expected {size} names with commas, the "
            "site of each rank"
        )
    return names


def _rank_slot(env: Mapping[str, str]) -> int | None:
    return EnvironmentVariables(env).integer(contract.ENV_SLOT, low=0) if contract.ENV_SLOT in env else None


def _rank_place_of(env: Mapping[str, str], addresses: tuple[str, ...], rank: int) -> RankPlace:
    """What the environment says, and what it leaves out from the hosts of the addresses."""
    by_host = place_of(addresses, rank)
    read = EnvironmentVariables(env)
    local_size = read.integer(contract.ENV_LOCAL_SIZE, by_host.local_size, low=1)
    cross_size = read.integer(contract.ENV_CROSS_SIZE, by_host.cross_size, low=1)
    slot = _rank_slot(env)  # the local rank is that of the slot: a pod may have a gap
    highest = local_size - 1 if slot is None else slot
    return RankPlace(
        rank,
        len(addresses),
        read.integer(contract.ENV_LOCAL_RANK, by_host.local_rank, low=0, high=highest),
        local_size,
        read.integer(contract.ENV_CROSS_RANK, by_host.cross_rank, low=0, high=cross_size - 1),
        cross_size,
    )


def _file_path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None
