"""Why an elastic attempt is over: its program has ended, or going on cannot help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ringtrain.errors import MismatchError, StateLost
from ringtrain_job.control.model import RankPhase, RankState, Reason
from ringtrain_job.launcher.members import MemberProcess, SlotView, Standing, WorldView, wanted_slots
from ringtrain_job.launcher.verdict import lost_peer

# So many processes of a slot may end by an error of their own, one after the other, without a step between.
OWN_FAILURES = 3
# So many formations may be lost by such errors, of whichever slots, without a step between.
FRUITLESS_FORMATIONS = 5
# A signal by which a program ends itself; the others come from outside.
_OWN_SIGNALS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})


class Ruin(StrEnum):
    """Why an attempt cannot go on."""

    NOT_ASSEMBLED = "not assembled"
    TOO_FEW = "too few"
    FORMATION_LIMIT = "formation limit"
    OWN_ERROR = "own error"
    ALL_FAILED = "all failed"
    FRUITLESS = "fruitless"
    NO_SURVIVOR = "no survivor"
    NOT_FENCED = "not fenced"


# What a ruin is called in the termination message, where no rank's end says more.
RUIN_REASON = {Ruin.NOT_ASSEMBLED: Reason.NOT_ASSEMBLED, Ruin.TOO_FEW: Reason.AGENT_LOST}


@dataclass(frozen=True)
class AttemptEnd:
    """The attempt is over. `ruin`: None when it has succeeded; `slot`: the one to blame, if one is."""

    ruin: Ruin | None = None
    slot: int | None = None


@dataclass(frozen=True)
class OwnFailures:
    """Processes of a slot that ended by an error of their own, one after the other; `at`: how often its step had
    grown at the last, `highest`: the highest step, `text`: the error's last line."""

    slot: int
    instance: str
    life: int
    count: int
    at: int
    highest: int = 0
    text: str = ""


@dataclass(frozen=True)
class FormationSteps:
    """Progress of the training.

    `highest`: the highest step that was seen; `last`: the one that was seen last, which is lower after a training
    began anew; `advances`: how often it grew. `training`: the step that the training which goes on now has committed;
    `committed`: the same, or, before this training has committed more, of the one whose state was lost; `held`: the
    last formation in which a step was, or which ranks left by plan: all its members had the state.
    """

    highest: int = 0
    last: int = 0
    advances: int = 0
    committed: int = 0
    training: int = 0
    held: int = 0


@dataclass(frozen=True)
class LossRecord:
    """Losses of an attempt. `failures`: see OwnFailures. `fruitless`: formations, since the last step, in which a
    process ended by an error of its own."""

    failures: tuple[OwnFailures, ...] = ()
    fruitless: tuple[int, ...] = ()
    steps: int = 0
    recoveries: int = 0
    last_recovery_s: float | None = None


def own_process_error(state: RankState) -> bool:
    """Whether a process ended by an error of its own, and not because another was lost or something killed it."""
    if state.phase is not RankPhase.FAILED or lost_peer(state.log_tail, -1) is not None:
        return False
    return not state.signal or state.signal in _OWN_SIGNALS


def count_failures(
    known: Sequence[OwnFailures], slots: Sequence[SlotView], steps: FormationSteps, *, survivors: bool
) -> tuple[OwnFailures, ...]:
    """`known` and what has failed since. A process that never was in a world does not count beside `survivors`.

    A training that began anew goes on at a lower step than before, so its steps count. The same error, before the
    job has come further than at the time before, is the same failure all the same.
    """
    failures = {mark.slot: mark for mark in known}
    for slot in slots:
        mark = failures.get(slot.slot)
        if mark and (mark.instance, mark.life) == (slot.instance, slot.state.life):
            continue
        if own_process_error(slot.state) and (slot.state.formation or not survivors):
            text = next((line for line in reversed(slot.state.log_tail) if line.strip()), "")
            same = mark is not None and (mark.text, mark.highest) == (text, steps.highest) and bool(text)
            again = mark is not None and (mark.at == steps.advances or (same and not _is_state_lost(text)))
            count = mark.count + 1 if mark and again else 1
            failures[slot.slot] = OwnFailures(
                slot.slot, slot.instance, slot.state.life, count, steps.advances, steps.highest, text
            )
    return tuple(failures.values())


def _is_state_lost(text: str) -> bool:
    """Whether a process ended because a part of the state was lost with others: it goes on from a checkpoint."""
    return f"{StateLost.__name__}:" in text


def _may_follow_from_loss(text: str) -> bool:
    """Whether another formation may help ranks that all ended so. Where those that had the state were lost while
    they gave it away, a rank that took it and one that has just begun make other calls."""
    return _is_state_lost(text) or f"{MismatchError.__name__}:" in text


def _all_slots_failed(where: Mapping[MemberProcess, Standing], failures: Sequence[OwnFailures]) -> bool:
    """Whether every member has ended by an error of its own: the program's, which is met again."""
    own = {(mark.slot, mark.instance, mark.life) for mark in failures if not _may_follow_from_loss(mark.text)}
    return bool(where) and all((process.slot, process.instance, process.life) in own for process in where)


def find_elastic_attempt_end(
    where: Mapping[MemberProcess, Standing], losses: LossRecord, view: WorldView, *, restarts: bool
) -> AttemptEnd | None:
    """How the attempt has ended, or None. `where`: the members of the last formation."""
    worst = max(losses.failures, key=lambda mark: mark.count, default=None)
    if worst is not None and worst.count >= OWN_FAILURES:
        return AttemptEnd(Ruin.OWN_ERROR, worst.slot)
    if not restarts and _all_slots_failed(where, losses.failures):
        return AttemptEnd(Ruin.ALL_FAILED)
    if len(losses.fruitless) >= FRUITLESS_FORMATIONS:
        return AttemptEnd(Ruin.FRUITLESS)
    if not where:
        return AttemptEnd() if view.asked and all(view.slots[slot].finished for slot in view.asked) else None
    others = [process for process, at in where.items() if at is not Standing.FINISHED]
    if len(others) == len(where) or not all(where[process] is Standing.GONE for process in others):
        return None
    wanted = wanted_slots(view, again=True)
    lost = [process.slot for process in others if process.slot in wanted]
    if not lost:
        return AttemptEnd()
    # What the others had is lost, and those that could tell it have ended: the checkpoint has to.
    return None if restarts else AttemptEnd(Ruin.NO_SURVIVOR, lost[0])
