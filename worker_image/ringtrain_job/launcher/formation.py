"""When the world of an elastic job changes, and who is in the next one: pure, asked at every tick.

`advance_formation(state, rules, view, now)` gives the next state, and an order or an end where one is due.
Formations only grow. A formation is made only when no process can still be in an earlier one; every wait for one
has an end.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from ringtrain_job.control.model import Prepare, RankPhase
from ringtrain_job.launcher.elastic_end import (
    AttemptEnd,
    OwnFailures,
    Ruin,
    StepsSoFar,
    count_failures,
    find_elastic_attempt_end,
)
from ringtrain_job.launcher.members import (
    MemberProcess,
    SlotView,
    Standing,
    WorldView,
    choose_members,
    fenced_members,
    is_newest,
    may_return,
    member_candidates,
    member_keepers,
    member_standing,
    newcomer_members,
    wanted_slots,
)


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
class FormationState:
    """What the launcher keeps of the formations, also over its own death.

    `number`: the formation that is prepared or runs; `members` are those of `formed`, the last one made. `order`:
    number of the last order, `prepared`: that of the order since which a process's state counts, `slots`: those
    that the last order named. `given`: this launcher process has given an order. Times are on its clock;
    `lost_at`: when the loss was seen that the formation makes good. `progress`: the highest step that was seen;
    `step`: the one that was seen last, which is lower after a training began anew; `advances`: how often it grew.
    `training`: the step that the training which goes on now has committed; `committed`: the same, or, before this
    training has committed more, of the one whose state was lost; `held`: the last formation in which a step was, or
    which ranks left by plan: all its members had the state. `fruitless`:
    formations, since the last step, in which a process ended by an error of its own. `bereft_at`: since when all
    members are known to have finished or are lost; `stateless_at`: since when a formation could be made, but only
    of others than those that have the state; `away_at`: when an agent with a process was seen as lost last.
    """

    phase: FormationPhase = FormationPhase.ASSEMBLING
    number: int = 1
    members: tuple[MemberProcess, ...] = ()
    formed: int = 0
    order: int = 0
    prepared: int = 0
    slots: frozenset[int] = frozenset()
    given: bool = False
    urgent: bool = False
    began: float = 0.0
    lost_at: float | None = None
    newcomer_at: float | None = None
    parked_at: float | None = None
    bereft_at: float | None = None
    stateless_at: float | None = None
    away_at: float = 0.0
    failures: tuple[OwnFailures, ...] = ()
    progress: int = 0
    step: int = 0
    advances: int = 0
    committed: int = 0
    training: int = 0
    held: int = 0
    fruitless: tuple[int, ...] = ()
    lost_steps: int = 0
    recoveries: int = 0
    last_recovery_s: float | None = None


@dataclass(frozen=True)
class Formed:
    """Order: the members of `formation` are chosen, by rank. `committed`: the last step, also if none has it."""

    formation: int
    members: tuple[MemberProcess, ...]
    slots: frozenset[int]
    number: int
    committed: int = 0


@dataclass(frozen=True)
class FormationDecision:
    """What `advance_formation` decided."""

    state: FormationState
    order: Prepare | Formed | None = None
    end: AttemptEnd | None = None


def advance_formation(state: FormationState, rules: FormationRules, view: WorldView, now: float) -> FormationDecision:
    """The state after `view` was seen at `now`, and what is due."""
    state = _note_formation_view(state, rules, view, now)
    end = find_elastic_attempt_end(standing_in_formation(state, view), state, view, restarts=rules.restarts)
    if end is not None and end.ruin is Ruin.NO_SURVIVOR and _others_may_return((), state, view):
        # This launcher may have been cut off from all: they come back one after the other.
        since = now if state.bereft_at is None else state.bereft_at
        if now - since < rules.timeout_s:
            return FormationDecision(replace(state, bereft_at=since))
    if end is not None:
        return FormationDecision(state, end=end)
    state = replace(state, bereft_at=None)
    highest = max((slot.state.formation for slot in view.slots.values()), default=0)
    known = max((slot.order for slot in view.slots.values()), default=0)
    state = replace(state, order=max(state.order, known))
    if highest > (state.number if state.phase is FormationPhase.RUNNING else state.number - 1):
        # Of a launcher whose notes are lost: processes are in a formation that it knows nothing of.
        return _prepare_formation(replace(state, number=highest), rules, view, now, urgent=True)
    due = _running_formation if state.phase is FormationPhase.RUNNING else _preparing_formation
    return due(state, rules, view, now)


def standing_in_formation(state: FormationState, view: WorldView) -> dict[MemberProcess, Standing]:
    """Where each member of the last formation is."""
    return {process: member_standing(process, state.formed, view) for process in state.members}


def joined_formation(state: FormationState, rules: FormationRules, view: WorldView) -> bool:
    """Whether all members have met in the formation that runs."""
    if state.phase is not FormationPhase.RUNNING:
        return False
    return all(_has_met(process, state, rules, view.slots[process.slot]) for process in state.members)


def _others_may_return(slots: Collection[int], state: FormationState, view: WorldView) -> bool:
    """Whether there is a member outside `slots` of which nobody knows that it has ended."""
    return any(process.slot not in slots and may_return(process, view) for process in state.members)


def _formation_holders(state: FormationState) -> list[MemberProcess]:
    """The members of the last formation that are known to have had the state: they were in one whose members all
    had it. Who has joined since may have got it or not."""
    return [process for process in state.members if process.joined <= state.held]


def _have_state(slots: Collection[int], state: FormationState, view: WorldView) -> bool:
    """Whether the process in one of `slots` is known to have the state, or says that it has got it."""
    got = [process for process in state.members if view.slots[process.slot].state.adopted == state.formed]
    return any(process.slot in slots and is_newest(process, view) for process in [*_formation_holders(state), *got])


def _has_shared(process: MemberProcess, formation: int, view: WorldView) -> bool:
    """Whether `process` has left `formation` with all others at a commit, not because of a loss."""
    rank = view.slots[process.slot].state
    return is_newest(process, view) and rank.formation == formation and rank.parked and not rank.unshared


def _committed(members: Iterable[MemberProcess], view: WorldView) -> int:
    """The highest step that one of `members` has committed."""
    done = (view.slots[process.slot].state.committed for process in members if is_newest(process, view))
    return max(done, default=0)


def _has_met(process: MemberProcess, state: FormationState, rules: FormationRules, slot: SlotView) -> bool:
    if slot.state.life != process.life:
        return False
    met = slot.runs if rules.restarts else slot.state.joined and slot.state.formation == state.number
    return met or slot.finished


def _note_formation_view(state: FormationState, rules: FormationRules, view: WorldView, now: float) -> FormationState:
    """Count errors of programs, and measure a recovery that is complete."""
    step = view.progressed
    advances = state.advances + (step > state.step)
    survivors = bool(set(standing_in_formation(state, view).values()) & {Standing.IN, Standing.LEFT, Standing.STARTING})
    highest = max(state.progress, step)
    so_far = StepsSoFar(advances, highest)
    slots = list(view.slots.values())
    if rules.sets_aside:
        busy = {slot.worker for slot in slots if slot.runs}
        slots = [slot for slot in slots if slot.state.formation or busy <= {slot.worker}]
    failures = count_failures(state.failures, slots, so_far, survivors=survivors)
    fruitless = state.fruitless if advances == state.advances else ()
    if failures != state.failures and state.formed and state.formed not in fruitless:
        fruitless = (*fruitless, state.formed)
    state = replace(state, progress=highest, step=step, advances=advances, failures=failures, fruitless=fruitless)
    if (committed := _committed(_formation_holders(state) or state.members, view)) > state.training:
        state = replace(state, training=committed, held=state.formed, committed=committed)
    elif any(_has_shared(process, state.formed, view) for process in state.members):
        state = replace(state, held=state.formed)
    if state.lost_at is not None and joined_formation(state, rules, view):
        state = replace(state, lost_at=None, last_recovery_s=now - state.lost_at, recoveries=state.recoveries + 1)
    return state


def _alive_members(state: FormationState, view: WorldView) -> dict[int, MemberProcess]:
    """Members of the last formation that may still have its state, by slot."""
    ended = (Standing.GONE, Standing.FINISHED)
    return {process.slot: process for process, at in standing_in_formation(state, view).items() if at not in ended}


def _staying_members(state: FormationState, rules: FormationRules, view: WorldView) -> frozenset[int]:
    """Slots of members that are in the next formation, wanted or not.

    After a loss these are all that live: nobody has handed over what it has. Otherwise members leave that were
    told to, with what was said first: the others have what leavers had.
    """
    if rules.restarts:
        return frozenset()
    alive = _alive_members(state, view)
    if state.phase is FormationPhase.PREPARING:
        return frozenset(alive) if state.urgent else frozenset(alive) & state.slots
    return member_keepers(list(alive.values()), wanted_slots(view, again=False), view, rules.min_ranks)


def _running_formation(state: FormationState, rules: FormationRules, view: WorldView, now: float) -> FormationDecision:
    members = standing_in_formation(state, view)
    standings = set(members.values())
    if Standing.UNKNOWN in standings:  # this launcher process has just begun: its agents come, or are lost
        return FormationDecision(state)
    if standings & {Standing.GONE, Standing.LEFT}:
        return _prepare_formation(replace(state, lost_at=state.lost_at or now), rules, view, now, urgent=True)
    wanted = wanted_slots(view, again=True)
    inside = frozenset(process.slot for process, at in members.items() if at is not Standing.FINISHED)
    staying = _staying_members(state, rules, view)
    met = joined_formation(state, rules, view)  # before that, some may not have heard of this formation
    if inside - wanted - staying and met:
        return _prepare_formation(state, rules, view, now, urgent=False)
    # What would join a world that is about to end, or that is full, waits.
    open_to_more = Standing.FINISHED not in standings and len(members) - len(staying - wanted) < rules.max_ranks
    new = newcomer_members(state.members, wanted, view, stopped=rules.restarts) if open_to_more else set()
    since = (now if state.newcomer_at is None else state.newcomer_at) if new else None
    state = replace(state, newcomer_at=since)
    if met and since is not None and (now - since >= rules.join_delay_s or wanted <= inside | new):
        return _prepare_formation(state, rules, view, now, urgent=False)
    named = wanted | staying if met else wanted | inside
    return FormationDecision(state) if state.given and state.slots == named else _form_again(state, named)


def _form_again(state: FormationState, slots: frozenset[int]) -> FormationDecision:
    """The order to be in the formation that runs: told again with other slots, or by a launcher started again."""
    order = state.order + 1
    state = replace(state, order=order, slots=slots, given=True)
    return FormationDecision(state, Formed(state.number, state.members, state.slots, order, state.committed))


def _prepare_formation(
    state: FormationState, rules: FormationRules, view: WorldView, now: float, *, urgent: bool
) -> FormationDecision:
    """Begin the next formation."""
    if state.number >= rules.formation_limit:
        return FormationDecision(state, end=AttemptEnd(Ruin.FORMATION_LIMIT))
    # What `_staying_members` keeps from now on of those that live.
    named = wanted_slots(view, again=rules.restarts) | _staying_members(state, rules, view)
    state = replace(
        state,
        phase=FormationPhase.PREPARING,
        slots=named & frozenset(_alive_members(state, view)),
        number=state.number + 1,
        prepared=state.order + 1,
        urgent=urgent,
        began=now,
        newcomer_at=None,
        parked_at=None,
        stateless_at=None,
    )
    return _tell_formation(state, rules, view)


def _tell_formation(state: FormationState, rules: FormationRules, view: WorldView) -> FormationDecision:
    """The order to prepare, as it is now."""
    slots = _named_formation(state, rules, view)
    state = replace(state, order=state.order + 1, slots=slots, given=True)
    order = Prepare(state.number, tuple(sorted(slots)), state.urgent, rules.restarts, state.order)
    return FormationDecision(state, order)


def _named_formation(state: FormationState, rules: FormationRules, view: WorldView) -> frozenset[int]:
    """Slots that orders to prepare name. Those of living members that were told to leave are not among them."""
    staying = _staying_members(state, rules, view)
    told = frozenset() if rules.restarts else frozenset(_alive_members(state, view)) - staying
    return (wanted_slots(view, again=rules.restarts) - told) | staying


def _preparing_formation(
    state: FormationState, rules: FormationRules, view: WorldView, now: float
) -> FormationDecision:
    if not state.given:
        return _tell_formation(replace(state, began=now, prepared=state.order + 1), rules, view)
    if any(slot.lost and slot.state.phase is RankPhase.RUNNING for slot in view.slots.values()):
        state = replace(state, away_at=now)
    members = standing_in_formation(state, view)
    planned = bool(state.formed) and not (state.urgent or rules.restarts)
    if planned and Standing.GONE in members.values():
        return _prepare_formation(replace(state, lost_at=state.lost_at or now), rules, view, now, urgent=True)
    if state.slots != _named_formation(state, rules, view):
        return _tell_formation(state, rules, view)
    if fenced_members(state.members, state.formed, view, state.prepared, stopped=rules.restarts):
        if planned and _keeps_something(state, view):
            return _prepare_formation(replace(state, lost_at=state.lost_at or now), rules, view, now, urgent=True)
        return _form_world(state, rules, view, now)
    left = Standing.LEFT in members.values()
    state = replace(state, parked_at=(now if state.parked_at is None else state.parked_at) if left else None)
    return _still_in_formation(state, rules, view, now)


def _keeps_something(state: FormationState, view: WorldView) -> bool:
    """Whether a member is about to be sent away with a part of the state that nobody else may have."""
    leavers = frozenset(_alive_members(state, view)) - state.slots
    return any(view.slots[slot].state.unshared for slot in leavers)


def _still_in_formation(state: FormationState, rules: FormationRules, view: WorldView, now: float) -> FormationDecision:
    """Somebody has not left an earlier formation."""
    if state.formed and not state.urgent and not rules.restarts:
        # All leave at the same commit: who has not followed the others by now is held by something else.
        if state.parked_at is not None and now - state.parked_at >= rules.timeout_s:
            return _prepare_formation(replace(state, lost_at=state.lost_at or now), rules, view, now, urgent=True)
        return FormationDecision(state)
    # An agent kills within timeout_s; one that is not heard of is lost within it, and hears the order when it is
    # back. The rest is for a system that is slow to end processes.
    if now - max(state.began, state.away_at) < 3 * rules.timeout_s:
        return FormationDecision(state)
    stuck = [slot.slot for slot in view.slots.values() if slot.runs and (rules.restarts or not slot.state.parked)]
    return FormationDecision(state, end=AttemptEnd(Ruin.NOT_FENCED, stuck[0] if stuck else None))


def _form_world(state: FormationState, rules: FormationRules, view: WorldView, now: float) -> FormationDecision:
    """Make the formation if those that it waits for are there, or have had their time."""
    named, staying = _named_formation(state, rules, view), _staying_members(state, rules, view)
    ready = member_candidates(named, view, state.prepared, stopped=rules.restarts, staying=staying)
    finished = Standing.FINISHED in standing_in_formation(state, view).values() and not rules.restarts
    waited = now - state.began
    if len(ready) < (1 if finished else rules.min_ranks):
        return _too_few_members(replace(state, stateless_at=None), rules, waited)
    is_stateless = not rules.restarts and _lacks_state({slot.slot for slot in ready}, state, view)
    # Not since the loss: a launcher that was cut off from all hears of one after the other.
    since = (now if state.stateless_at is None else state.stateless_at) if is_stateless else None
    state = replace(state, stateless_at=since)
    if since is not None and now - since < rules.replace_timeout_s:
        return FormationDecision(state)
    missing = _awaited_slots(state, rules, view, named) - {slot.slot for slot in ready}
    # Who is about to be ended may hold what no one else does: it hands that over in the next formation.
    leaving = any(slot.leaving for slot in ready)
    if missing and not leaving and waited < rules.replace_timeout_s and len(ready) < rules.max_ranks:
        return FormationDecision(state)
    most = rules.max_ranks + len(staying - wanted_slots(view, again=rules.restarts))
    members = choose_members(ready, state.members, state.number, most, stopped=rules.restarts)
    lost = max((slot.state.lost_steps for slot in ready if slot.state.formation), default=0)
    if not _have_state({process.slot for process in members}, state, view):
        goes_on_from = _committed(members, view)
        lost = max(lost, state.training - goes_on_from)
        state = replace(state, training=goes_on_from, committed=max(state.committed, goes_on_from))
    state = replace(
        state,
        phase=FormationPhase.RUNNING,
        members=members,
        formed=state.number,
        lost_steps=state.lost_steps + (0 if rules.restarts else lost),
        began=now,
        newcomer_at=None,
        stateless_at=None,
    )
    return _form_again(state, wanted_slots(view, again=True) | staying)


def _lacks_state(ready: Collection[int], state: FormationState, view: WorldView) -> bool:
    """Whether none of `ready` is known to have the state, and somebody may come back who has it."""
    is_lacking = state.training > 0 and not _have_state(ready, state, view)
    return is_lacking and _others_may_return(ready, state, view)


def _awaited_slots(
    state: FormationState, rules: FormationRules, view: WorldView, wanted: frozenset[int]
) -> frozenset[int]:
    """Slots without which the formation is not made before `replace_timeout_s`."""
    if not state.formed or (state.urgent and not rules.shrinks):
        return wanted
    # Members have left for those that are here already: they wait for no one else.
    here = [view.slots[index] for index in wanted if not (view.slots[index].silent or view.slots[index].lost)]
    return frozenset(slot.slot for slot in here if rules.restarts or (slot.runs and slot.state.parked))


def _too_few_members(state: FormationState, rules: FormationRules, waited: float) -> FormationDecision:
    if not state.formed:
        over = waited >= rules.start_timeout_s
        return FormationDecision(state, end=AttemptEnd(Ruin.NOT_ASSEMBLED) if over else None)
    over = waited >= rules.replace_timeout_s + rules.start_timeout_s
    return FormationDecision(state, end=AttemptEnd(Ruin.TOO_FEW) if over else None)
