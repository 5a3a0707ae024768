"""Conditions under which an elastic attempt ends: the program has finished, or a new generation could not help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ringtrain.errors import MismatchError, StateLost
from ringtrain_job.control.model import RankPhase, RankState, Reason
from ringtrain_job.launcher.members import MemberProcess, SlotView, Standing, WorldView, wanted_slots
from ringtrain_job.launcher.verdict import lost_peer

# Limit on consecutive processes of a slot that end by an error of the program without a step in between.
OWN_FAILURES = 3
# Limit on generations lost to such errors, in any slot, without a step in between.
FRUITLESS_GENERATIONS = 5
# Signals that a program raises itself; other signals come from outside.
_OWN_SIGNALS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})


class Ruin(StrEnum):
    """Reason why an elastic attempt cannot continue."""

    NOT_ASSEMBLED = "not assembled"
    TOO_FEW = "too few"
    GENERATION_LIMIT = "generation limit"
    OWN_ERROR = "own error"
    ALL_FAILED = "all failed"
    FRUITLESS = "fruitless"
    NO_SURVIVOR = "no survivor"
    NOT_FENCED = "not fenced"


# Reasons in the termination message for which no rank's exit gives a better one.
RUIN_REASON = {Ruin.NOT_ASSEMBLED: Reason.NOT_ASSEMBLED, Ruin.TOO_FEW: Reason.AGENT_LOST}


@dataclass(frozen=True)
class AttemptEnd:
    """End of an elastic attempt. `ruin`: reason of the failure; None after a success. `slot`: slot whose process caused
    the failure."""

    ruin: Ruin | None = None
    slot: int | None = None


@dataclass(frozen=True)
class OwnFailures:
    """Count of a slot's consecutive processes that failed by an error of the program itself.

    `instance`, `life`: agent and number of the last failed process. `at`: number of step advances at the last failure.
    `highest`: highest step at that time. `text`: last line of the error.
    """

    slot: int
    instance: str
    life: int
    count: int
    at: int
    highest: int = 0
    text: str = ""


@dataclass(frozen=True)
class TrainingSteps:
    """Progress of an elastic training, in steps.

    `highest`: highest step seen. `last`: step seen last; it is lower than `highest` after training restarted from a
    checkpoint. `advances`: number of increases of the step. `training`: last step committed by the current training.
    `committed`: the highest committed step. If state was lost, `committed` is above `training` until the current
    training passes it. `held`: last generation in which a step was committed or which ranks left in a planned change,
    so that all its members had the state.
    """

    highest: int = 0
    last: int = 0
    advances: int = 0
    committed: int = 0
    training: int = 0
    held: int = 0


@dataclass(frozen=True)
class LossRecord:
    """Losses of an elastic attempt.

    `failures`: failures of each slot's processes. `fruitless`: generations, begun since a step was last completed, in
    which a process failed by itself.
    """

    failures: tuple[OwnFailures, ...] = ()
    fruitless: tuple[int, ...] = ()
    steps: int = 0
    recoveries: int = 0
    last_recovery_s: float | None = None


def is_own_error(state: RankState) -> bool:
    """Return whether a process failed by itself, not because it lost a peer or was killed from outside."""
    if state.phase is not RankPhase.FAILED or lost_peer(state.log_tail, -1) is not None:
        return False
    return not state.signal or state.signal in _OWN_SIGNALS


def count_failures(
    known: Sequence[OwnFailures], slots: Sequence[SlotView], steps: TrainingSteps, *, survivors: bool
) -> tuple[OwnFailures, ...]:
    """Return `known` with new failures of `slots` added. `steps`: progress of the training.

    `survivors`: whether any member survived. If True, processes that were never in a world do not count. A failure adds
    1 to the slot's count if no step was completed since the slot's previous failure, or if the error has the same text
    and training has not passed the highest step at that time. Any other failure sets the count to 1. Steps that are
    repeated after a restart from a checkpoint are completed steps. A program that cannot be executed before the first
    step counts as OWN_FAILURES failures.
    """
    failures = {mark.slot: mark for mark in known}
    for slot in slots:
        mark = failures.get(slot.slot)
        if mark and (mark.instance, mark.life) == (slot.instance, slot.state.life):
            continue
        if is_own_error(slot.state) and (slot.state.formation or not survivors):
            text = next((line for line in reversed(slot.state.log_tail) if line.strip()), "")
            same = mark is not None and (mark.text, mark.highest) == (text, steps.highest) and bool(text)
            again = mark is not None and (mark.at == steps.advances or (same and not _is_state_lost(text)))
            count = mark.count + 1 if mark and again else 1
            if slot.state.reason is Reason.CANNOT_START and not steps.advances:
                count = OWN_FAILURES
            failures[slot.slot] = OwnFailures(
                slot.slot, slot.instance, slot.state.life, count, steps.advances, steps.highest, text
            )
    return tuple(failures.values())


def _is_state_lost(text: str) -> bool:
    """Return whether the error says that training state was lost with other ranks. A restart then resumes from a
    checkpoint."""
    return f"{StateLost.__name__}:" in text


def _may_follow_from_loss(text: str) -> bool:
    """Return whether a new generation may help although all ranks failed with the error `text`.

    If ranks are lost while they send the state, a rank that received it and a rank that has just started make different
    calls.
    """
    return _is_state_lost(text) or f"{MismatchError.__name__}:" in text


def _all_slots_failed(where: Mapping[MemberProcess, Standing], failures: Sequence[OwnFailures]) -> bool:
    """Return whether every member failed by an error of the program that would happen again."""
    own = {(mark.slot, mark.instance, mark.life) for mark in failures if not _may_follow_from_loss(mark.text)}
    return bool(where) and all((process.slot, process.instance, process.life) in own for process in where)


def find_elastic_attempt_end(
    where: Mapping[MemberProcess, Standing], losses: LossRecord, view: WorldView, *, restarts: bool
) -> AttemptEnd | None:
    """Return the end of the attempt; None if it continues.

    `where`: states of the last generation's members. `losses`: recorded failures. `view`: states of all slots.
    `restarts`: whether every generation starts new processes.
    """
    worst = max(losses.failures, key=lambda mark: mark.count, default=None)
    if worst is not None and worst.count >= OWN_FAILURES:
        return AttemptEnd(Ruin.OWN_ERROR, worst.slot)
    if not restarts and _all_slots_failed(where, losses.failures):
        return AttemptEnd(Ruin.ALL_FAILED)
    if len(losses.fruitless) >= FRUITLESS_GENERATIONS:
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
    # Lost ranks held the state, and ranks that could send it have ended: resume from a checkpoint.
    return None if restarts else AttemptEnd(Ruin.NO_SURVIVOR, lost[0])
