"""Settings of a rank, read from its environment before it connects to other ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ringtrain._core.world.discovery import ALONE, Rendezvous, discover_world
from ringtrain.errors import ConfigurationError, shown
from ringtrain.shared import contract
from ringtrain.shared.environment import without_empty
from ringtrain.shared.horovod_variables import with_counterparts
from ringtrain.shared.place import RankPlace
from ringtrain.shared.rank_settings import WorldWaits, WorldWays
from ringtrain.shared.settings import Settings, choice, integer, path, setting, text


@dataclass(frozen=True, kw_only=True)
class WorldNumbers(Settings):
    """Numbers that identify a world of the job.

    `formation`: in an elastic job, the number of the world within the attempt; 0 in other jobs. `committed`: the
    highest step that the attempt has committed.
    """

    attempt: int = integer(contract.ENV_ATTEMPT, 1, low=1)
    generation: int = integer(contract.ENV_GENERATION, 1, lambda seen: seen.attempt, low=0)
    formation: int = integer(contract.ENV_FORMATION, 0, low=0)
    committed: int = integer(contract.ENV_COMMITTED, 0, low=0)


@dataclass(frozen=True, kw_only=True)
class WorldTrust(Settings):
    """Authentication and encryption between ranks: token and certificates.

    `encrypt`: one of `contract.ENCRYPTION`; it is `sites` only if there are several sites. The certificates are in
    `secret_dir` and belong to the job `job_uid`. `token_text`: the token if there is no `token_file`.
    """

    encrypt: str = choice(contract.ENV_ENCRYPT, contract.ENCRYPTION, contract.ENCRYPTION[0])
    secret_dir: Path = path(contract.ENV_SECRET_DIR, Path(contract.SECRET_DIR))
    job_uid: str = text(contract.ENV_JOB_UID, "")
    token_file: Path | None = path(contract.ENV_TOKEN_FILE)
    token_text: str | None = setting(lambda env, _: env.unchanged(contract.ENV_TOKEN), None, is_secret=True)

    def token(self) -> bytes | None:
        """Return the job's token; None if the job has none. Raises ConfigurationError if it is empty or unreadable."""
        if self.token_file is None:
            if self.token_text is None:
                return None
            if not self.token_text.strip():  # an empty token would let in unauthenticated peers
                raise ConfigurationError(f"{contract.ENV_TOKEN} is empty; set the same text on every rank, or unset it")
            return self.token_text.strip().encode()
        try:
            token = self.token_file.read_bytes().strip()
        except OSError as error:
            raise ConfigurationError(f"{contract.ENV_TOKEN_FILE} is {self.token_file}: {error.strerror}") from error
        if not token:
            raise ConfigurationError(f"{contract.ENV_TOKEN_FILE} is {self.token_file}: the file is empty")
        return token


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """All settings of a rank, known before it connects to other ranks.

    `role`: `chief`, `worker`, or `evaluator`, which is alone in its world.
    `source`: the source of the world's description: `ringtrain`, `tf_config`, `slurm`, `mpi`, `torchrun` or `single`.
    `slot`: the place in an elastic job, fixed for this process and its local rank.
    `sites`: the name of each rank's site; empty if all ranks are in one site.
    """

    place: RankPlace = field(default_factory=RankPlace)
    addresses: tuple[str, ...] = ALONE
    role: str = "worker"
    source: str = "single"
    slot: int | None = None
    sites: tuple[str, ...] = ()
    numbers: WorldNumbers = field(default_factory=WorldNumbers)
    waits: WorldWaits = field(default_factory=WorldWaits)
    ways: WorldWays = field(default_factory=WorldWays)
    trust: WorldTrust = field(default_factory=WorldTrust)

    def encrypts_among(self, ranks: Sequence[int]) -> bool:
        """Return whether traffic between the ranks in `ranks` must be encrypted."""
        if self.trust.encrypt == "sites":
            return len({self.sites[rank] for rank in ranks}) > 1
        return self.trust.encrypt != "none"

    @property
    def ranks_by_site(self) -> dict[str, list[int]]:
        """Return the ranks of each site, by its name. Without sites, all ranks are under an empty name."""
        found: dict[str, list[int]] = {}
        for rank, name in enumerate(self.sites or ("",) * self.place.size):
            found.setdefault(name, []).append(rank)
        return found

    @property
    def pod(self) -> int:
        """Return the number of this rank's pod: equal for ranks of one pod, different for other pods."""
        return (self.place.rank if self.slot is None else self.slot) - self.place.local_rank

    @staticmethod
    def from_env(env: Mapping[str, str]) -> "WorkerConfig":
        """Return this rank's settings from environment variables; its world is found by `discover_world`.

        If a variable of ringtrain is unset, its Horovod counterpart is used (`horovod_variables.COUNTERPARTS`). Raises
        ConfigurationError naming the variable, its value and what was expected.
        """
        env = with_counterparts(env)
        waits, trust = WorldWaits.from_env(env), WorldTrust.from_env(env)
        world = discover_world(Rendezvous(without_empty(env), waits.timeout_s, trust.token))
        sites = _world_sites(env, world.place.size)
        if trust.encrypt == "sites" and len(set(sites)) < 2:
            trust = replace(trust, encrypt="none")
        return WorkerConfig(
            **vars(world),
            sites=sites,
            numbers=WorldNumbers.from_env(env),
            waits=waits,
            ways=WorldWays.from_env(env),
            trust=trust,
        )


def _world_sites(env: Mapping[str, str], size: int) -> tuple[str, ...]:
    """Return the name of each rank's site; empty if RINGTRAIN_SITES is unset.

    Also empty in a process outside the world, which has size 1 but the names of all ranks.
    """
    names = tuple(name.strip() for name in env.get(contract.ENV_SITES, "").split(","))
    if names == ("",) or (size == 1 and len(names) > 1):
        return ()
    if len(names) != size or "" in names:
        raise ConfigurationError(
            f"{contract.ENV_SITES} is {shown(env[contract.ENV_SITES])}; expected {size} names with commas, the "
            "site of each rank"
        )
    return names
