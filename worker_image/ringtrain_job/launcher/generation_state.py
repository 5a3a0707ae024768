"""State of an elastic job's generations in its launcher, and the rules for forming them."""

from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter

from ringtrain.shared import contract
from ringtrain.shared.settings import Settings, choice, integer, seconds
from ringtrain_job.control.model import FORMATIONS
from ringtrain_job.launcher.elastic_end import LossRecord, TrainingSteps
from ringtrain_job.launcher.members import MemberProcess

_WORLD_SIZE = attrgetter("world_size")


class GenerationPhase(StrEnum):
    """Phase of a generation; the words of `/status`."""

    ASSEMBLING = "Assembling"
    RUNNING = "Running"
    PREPARING = "Preparing"


@dataclass(frozen=True, kw_only=True)
class GenerationRules(Settings):
    """The user's rules for an elastic world of at most `world_size` ranks.

    `shrinks`: after a loss the job continues at once with fewer ranks. `restarts`: processes are restarted in every
    generation. `timeout_s`: a rank leaves its generation within this time, or its agent kills it. `sets_aside`: a
    worker whose processes fail before they join a world is excluded for some time and does not end the job.
    """

    shrinks: bool = choice(contract.ENV_ELASTIC, contract.ON_LOSS, made="Shrink".__eq__)
    restarts: bool = choice(contract.ENV_ELASTIC, contract.ON_LOSS, made="Restart".__eq__)
    max_ranks: int = integer(contract.ENV_ELASTIC_MAX_RANKS, derived=_WORLD_SIZE, low=1, high=_WORLD_SIZE)
    min_ranks: int = integer(contract.ENV_ELASTIC_MIN_RANKS, 1, low=1, high=lambda seen: seen.max_ranks)
    replace_timeout_s: float = seconds(contract.ENV_ELASTIC_REPLACE_TIMEOUT, 120.0)
    join_delay_s: float = seconds(contract.ENV_ELASTIC_JOIN_DELAY, 30.0, zero=True)
    formation_limit: int = integer(contract.ENV_ELASTIC_FORMATION_LIMIT, 100, low=1, high=FORMATIONS - 1)
    timeout_s: float = seconds(contract.ENV_TIMEOUT, 60.0)
    start_timeout_s: float = seconds(contract.ENV_START_TIMEOUT, 600.0)
    sets_aside: bool = False


@dataclass(frozen=True)
class GenerationOrders:
    """Orders that were sent to agents.

    `number`: number of the last order. `prepared`: number of the order since which a process's state counts. `slots`:
    slots in the last order. `given`: this launcher process has sent an order. `urgent`: the generation is prepared
    because of a loss.
    """

    number: int = 0
    prepared: int = 0
    slots: frozenset[int] = frozenset()
    given: bool = False
    urgent: bool = False


@dataclass(frozen=True)
class GenerationTimes:
    """Start times of conditions, on the clock of this launcher process.

    `began`: the current phase. `lost_at`: the loss that the new generation repairs. `newcomer_at`: a process could
    join. `parked_at`: a member has left while others have not. `bereft_at`: all members have finished or are lost.
    `stateless_at`: a generation could be formed, but only of processes without the state. `away_at`: last time at which
    an agent with a running process was seen as lost.
    """

    began: float = 0.0
    lost_at: float | None = None
    newcomer_at: float | None = None
    parked_at: float | None = None
    bereft_at: float | None = None
    stateless_at: float | None = None
    away_at: float = 0.0


@dataclass(frozen=True)
class GenerationState:
    """State of the generations, which survives a restart of the launcher process.

    `number`: the generation that is being prepared or runs. `members`: members of `formed`, the last generation formed.
    """

    phase: GenerationPhase = GenerationPhase.ASSEMBLING
    number: int = 1
    members: tuple[MemberProcess, ...] = ()
    formed: int = 0
    orders: GenerationOrders = GenerationOrders()
    times: GenerationTimes = GenerationTimes()
    steps: TrainingSteps = field(default_factory=TrainingSteps)
    losses: LossRecord = field(default_factory=LossRecord)
