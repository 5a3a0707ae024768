"""What an elastic job's launcher keeps of its formations, and the rules by which it makes them."""

from dataclasses import dataclass, field
from enum import StrEnum

from ringtrain_job.launcher.elastic_end import FormationSteps, LossRecord
from ringtrain_job.launcher.members import MemberProcess


class FormationPhase(StrEnum):
    """Where a formation is; the words of `/status`."""

    ASSEMBLING = "Assembling"
    RUNNING = "Running"
    PREPARING = "Preparing"


@dataclass(frozen=True)
class FormationRules:
    """What the user chose.

    `shrinks`: after a loss the job goes on at once, smaller. `restarts`: processes are started anew in every
    formation. `timeout_s`: within it a rank leaves its formation, or its agent kills it. `sets_aside`: a worker
    whose processes fail before they are in a world is not wanted any more soon, and does not end the job.
    """

    min_ranks: int
    max_ranks: int
    shrinks: bool
    restarts: bool
    replace_timeout_s: float
    join_delay_s: float
    formation_limit: int
    timeout_s: float
    start_timeout_s: float
    sets_aside: bool = False


@dataclass(frozen=True)
class FormationOrders:
    """What agents were told. `number`: of the last order, `prepared`: that of the order since which a process's state
    counts, `slots`: those that the last order named. `given`: this launcher process has given an order. `urgent`:
    the formation is prepared because of a loss."""

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
    """What the launcher keeps of the formations, also over its own death.

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
