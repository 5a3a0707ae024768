"""State of an elastic job's formations in its launcher, and the rules by which it makes them."""

from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter

from ringtrain.shared import contract
from ringtrain.shared.settings import Settings, choice, integer, seconds
from ringtrain_job.control.model import FORMATIONS
from ringtrain_job.launcher.elastic_end import FormationSteps, LossRecord
from ringtrain_job.launcher.members import MemberProcess

_WORLD_SIZE = attrgetter("world_size")


class FormationPhase(StrEnum):
    """Where a formation is; the words of `/status`."""

    ASSEMBLING = "Assembling"
    RUNNING = "Running"
    PREPARING = "Preparing"


@dataclass(frozen=True, kw_only=True)
class FormationRules(Settings):
    """The user's rules for a world of `world_size` at most.

    `shrinks`: after a loss the job goes on at once, smaller. `restarts`: processes are started anew in every
    formation. `timeout_s`: within it a rank leaves its formation, or its agent kills it. `sets_aside`: a worker
    whose processes fail before they are in a world is not wanted any more soon, and does not end the job.
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
class FormationOrders:
    """Orders that were sent to agents.

    `number`: of the last order. `prepared`: the number of the order since which a process's state counts. `slots`:
    those that the last order named. `given`: this launcher process has sent an order. `urgent`: the formation is
    prepared because of a loss.
    """

    number: int = 0
    prepared: int = 0
    slots: frozenset[int] = frozenset()
    given: bool = False
    urgent: bool = False


@dataclass(frozen=True)
class FormationTimes:
    """Since when something lasts, on the clock of this launcher process.

    `began`: the present phase. `lost_at`: when the loss was seen that the formation makes good. `bereft_at`: since when
    all members are known to have finished or are lost; `stateless_at`: since when a formation could be made, but only
    of others than those that have the state; `away_at`: when an agent with a process was seen as lost last.
    """

    began: float = 0.0
    lost_at: float | None = None
    newcomer_at: float | None = None
    parked_at: float | None = None
    bereft_at: float | None = None
    stateless_at: float | None = None
    away_at: float = 0.0


@dataclass(frozen=True)
class FormationState:
    """State of the formations, which outlives the launcher's process.

    `number`: the formation that is prepared or runs; `members` are those of `formed`, the last one made.
    """

    phase: FormationPhase = FormationPhase.ASSEMBLING
    number: int = 1
    members: tuple[MemberProcess, ...] = ()
    formed: int = 0
    orders: FormationOrders = FormationOrders()
    times: FormationTimes = FormationTimes()
    steps: FormationSteps = field(default_factory=FormationSteps)
    losses: LossRecord = field(default_factory=LossRecord)
