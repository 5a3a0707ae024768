"""State of an elastic job's generations in the launcher, the file that stores it, and the user's rules for them."""

import json
import logging
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from operator import attrgetter

from ringtrain.shared import contract
from ringtrain.shared.settings import Settings, choice, integer, seconds
from ringtrain_job.control.model import GENERATIONS
from ringtrain_job.launcher.elastic_end import LossRecord, OwnFailures, TrainingSteps
from ringtrain_job.launcher.members import MemberProcess
from ringtrain_job.logs.layout import AttemptFiles, replace_whole

_WORLD_SIZE = attrgetter("world_size")


class GenerationPhase(StrEnum):
    """Phase of an elastic job's generation, with the values used in `/status`."""

    ASSEMBLING = "Assembling"
    RUNNING = "Running"
    PREPARING = "Preparing"


@dataclass(frozen=True, kw_only=True)
class GenerationRules(Settings):
    """The user's rules for the generations of an elastic job with at most `world_size` ranks.

    `shrinks`: whether the job continues at once with fewer ranks after a loss. `restarts`: whether processes are
    restarted in every generation. `timeout_s`: time within which a rank leaves its generation; after it the rank's
    agent kills the rank. `sets_aside`: whether a worker whose processes fail before they join a world is excluded for
    some time, instead of ending the job.
    """

    shrinks: bool = choice(contract.ENV_ELASTIC, contract.ON_LOSS, made="Shrink".__eq__)
    restarts: bool = choice(contract.ENV_ELASTIC, contract.ON_LOSS, made="Restart".__eq__)
    max_ranks: int = integer(contract.ENV_ELASTIC_MAX_RANKS, derived=_WORLD_SIZE, low=1, high=_WORLD_SIZE)
    min_ranks: int = integer(contract.ENV_ELASTIC_MIN_RANKS, 1, low=1, high=lambda seen: seen.max_ranks)
    replace_timeout_s: float = seconds(contract.ENV_ELASTIC_REPLACE_TIMEOUT, 120.0)
    join_delay_s: float = seconds(contract.ENV_ELASTIC_JOIN_DELAY, 30.0, zero=True)
    generation_limit: int = integer(contract.ENV_ELASTIC_FORMATION_LIMIT, 100, low=1, high=GENERATIONS - 1)
    timeout_s: float = seconds(contract.ENV_TIMEOUT, 60.0)
    start_timeout_s: float = seconds(contract.ENV_START_TIMEOUT, 600.0)
    sets_aside: bool = False


@dataclass(frozen=True)
class GenerationOrders:
    """Record of the orders that the launcher has sent to agents.

    `number`: number of the last order. `prepared`: number of an order; states of processes count only if their agents
    had received that order. `slots`: slots in the last order. `given`: whether this launcher process has sent an order.
    `urgent`: whether the generation is prepared because of a loss.
    """

    number: int = 0
    prepared: int = 0
    slots: frozenset[int] = frozenset()
    given: bool = False
    urgent: bool = False


@dataclass(frozen=True)
class GenerationTimes:
    """Times since which conditions are true, on the launcher's monotonic clock; None: the condition is not true.

    `began`: the job is in the current phase. `lost_at`: a rank was lost, and the generation after it has not begun yet.
    `newcomer_at`: a process could join. `parked_at`: a member has left while others have not. `bereft_at`: all members
    have finished or are lost. `stateless_at`: a generation could be formed, but only of processes without the state.
    `away_at` is the last time at which an agent with a running process was seen as lost.
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
    """State of an elastic job's generations. It survives a restart of the launcher, except for `times`.

    `number`: number of the generation that is being prepared or runs. `formed`: number of the last generation that was
    formed. `members`: members of that generation.
    """

    phase: GenerationPhase = GenerationPhase.ASSEMBLING
    number: int = 1
    members: tuple[MemberProcess, ...] = ()
    formed: int = 0
    orders: GenerationOrders = GenerationOrders()
    times: GenerationTimes = GenerationTimes()
    steps: TrainingSteps = field(default_factory=TrainingSteps)
    losses: LossRecord = field(default_factory=LossRecord)


log = logging.getLogger(__name__)


class GenerationJournal:
    """Reader and writer of the file with the state of an elastic job's generations."""

    def __init__(self, files: AttemptFiles) -> None:
        self._files = files

    def write(self, state: GenerationState, asked: frozenset[int]) -> None:
        """Replace the file's content by `state` and `asked`, the requested slots.

        An error is only logged: a restarted launcher then asks the agents.
        """
        orders = {**asdict(state.orders), "slots": sorted(state.orders.slots)}
        document = {**asdict(state), "orders": orders, "asked": sorted(asked)}
        try:
            replace_whole(self._files.generations, json.dumps(document))
        except OSError as exc:
            log.error("cannot store the state of the generations (a restarted launcher must form a new one): %s", exc)

    def read(self) -> tuple[GenerationState, frozenset[int]] | None:
        """Return the stored state and the requested slots; None if the file is missing or unreadable.

        The times in the state are reset, because they are of the previous process's clock. `orders.given` is False,
        because this process has sent no order.
        """
        try:
            document = json.loads(self._files.generations.read_text())
            asked = frozenset(document["asked"])
            orders, losses = document["orders"], document["losses"]
            failures = tuple(OwnFailures(**mark) for mark in losses["failures"])
            state = GenerationState(
                phase=GenerationPhase(document["phase"]),
                number=document["number"],
                members=tuple(MemberProcess(**member) for member in document["members"]),
                formed=document["formed"],
                orders=GenerationOrders(**{**orders, "slots": frozenset(orders["slots"]), "given": False}),
                steps=TrainingSteps(**document["steps"]),
                losses=LossRecord(**{**losses, "failures": failures, "fruitless": tuple(losses["fruitless"])}),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as exc:
            log.error("cannot read %s, so a new generation is formed: %s", self._files.generations, exc)
            return None
        return state, asked
