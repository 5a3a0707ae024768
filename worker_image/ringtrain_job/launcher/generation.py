"""State machine of an elastic job: decides when a new generation is needed and which processes are its members.

`advance_generation(state, rules, view, now)` is a pure function. It returns the next state, and an order or an end if
one is due. Generation numbers only grow. A generation is formed only if no process can still be in an earlier one.
Every wait has a deadline.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ringtrain_job.control.model import Prepare, RankPhase
from ringtrain_job.launcher.elastic_end import AttemptEnd, Ruin, count_failures, find_elastic_attempt_end
from ringtrain_job.launcher.generation_state import GenerationPhase, GenerationRules, GenerationState
from ringtrain_job.launcher.members import (
    MemberProcess,
    SlotView,
    Standing,
    WorldView,
    are_members_fenced,
    choose_members,
    is_newest,
    may_return,
    member_candidates,
    member_standing,
    newcomer_slots,
    slots_to_keep,
    wanted_slots,
)


@dataclass(frozen=True)
class Formed:
    """Decision that `members`, in rank order, begin `generation`. `committed`: last step that the job has
    committed."""

    generation: int
    members: tuple[MemberProcess, ...]
    slots: frozenset[int]
    number: int
    committed: int = 0


@dataclass(frozen=True)
class GenerationDecision:
    """Result of `advance_generation`: the next state, and an order for agents or the attempt's end if due."""

    state: GenerationState
    order: Prepare | Formed | None = None
    end: AttemptEnd | None = None


def advance_generation(
    state: GenerationState, rules: GenerationRules, view: WorldView, now: float
) -> GenerationDecision:
    """Return the next state and the order or end that is due, given the states of all slots (`view`) at time `now`."""
    state = _updated_state(state, rules, view, now)
    end = find_elastic_attempt_end(member_standings(state, view), state.losses, view, restarts=rules.restarts)
    if end is not None and end.ruin is Ruin.NO_SURVIVOR and _others_may_return((), state, view):
        # This launcher may have lost all connections; agents reconnect one after the other.
        since = now if state.times.bereft_at is None else state.times.bereft_at
        if now - since < rules.timeout_s:
            return GenerationDecision(replace(state, times=replace(state.times, bereft_at=since)))
    if end is not None:
        return GenerationDecision(state, end=end)
    state = replace(state, times=replace(state.times, bereft_at=None))
    highest = max((slot.state.formation for slot in view.slots.values()), default=0)
    known = max((slot.order for slot in view.slots.values()), default=0)
    state = replace(state, orders=replace(state.orders, number=max(state.orders.number, known)))
    if highest > (state.number if state.phase is GenerationPhase.RUNNING else state.number - 1):
        # The journal of an earlier launcher is lost: processes are in a generation that this one does not know.
        return _prepare_generation(replace(state, number=highest), rules, view, now, urgent=True)
    due = _decide_running if state.phase is GenerationPhase.RUNNING else _decide_preparing
    return due(state, rules, view, now)


def member_standings(state: GenerationState, view: WorldView) -> dict[MemberProcess, Standing]:
    """Return the state of each member in the last generation."""
    return {process: member_standing(process, state.formed, view) for process in state.members}


def all_members_joined(state: GenerationState, rules: GenerationRules, view: WorldView) -> bool:
    """Return whether all members of the running generation have completed their rendezvous."""
    if state.phase is not GenerationPhase.RUNNING:
        return False
    return all(_has_joined(process, state, rules, view.slots[process.slot]) for process in state.members)


def _others_may_return(slots: Collection[int], state: GenerationState, view: WorldView) -> bool:
    """Return whether any member outside `slots` may reconnect, because it is not known to have ended."""
    return any(process.slot not in slots and may_return(process, view) for process in state.members)


def _state_holders(state: GenerationState) -> list[MemberProcess]:
    """Return the members of the last generation that certainly had the training state. A process that joined later may
    not have received it."""
    return [process for process in state.members if process.joined <= state.steps.held]


def _have_state(slots: Collection[int], state: GenerationState, view: WorldView) -> bool:
    """Return whether a process in one of `slots` has the training state, as the launcher knows or the process
    reports."""
    got = [process for process in state.members if view.slots[process.slot].state.adopted == state.formed]
    return any(process.slot in slots and is_newest(process, view) for process in [*_state_holders(state), *got])


def _has_shared(process: MemberProcess, generation: int, view: WorldView) -> bool:
    """Return whether `process` left `generation` at a common commit, so that it has shared its training state."""
    rank = view.slots[process.slot].state
    return is_newest(process, view) and rank.formation == generation and rank.parked and not rank.unshared


def _committed(members: Iterable[MemberProcess], view: WorldView) -> int:
    """Return the highest step that any of `members` has committed; 0 if none."""
    done = (view.slots[process.slot].state.committed for process in members if is_newest(process, view))
    return max(done, default=0)


def _has_joined(process: MemberProcess, state: GenerationState, rules: GenerationRules, slot: SlotView) -> bool:
    if slot.state.life != process.life:
        return False
    met = slot.runs if rules.restarts else slot.state.joined and slot.state.formation == state.number
    return met or slot.finished


def _updated_state(state: GenerationState, rules: GenerationRules, view: WorldView, now: float) -> GenerationState:
    """Return `state` with new failures of the program counted, and the duration of a completed recovery recorded."""
    steps, losses, times, step = state.steps, state.losses, state.times, view.progressed
    has_advanced = step > steps.last
    steps = replace(steps, highest=max(steps.highest, step), last=step, advances=steps.advances + has_advanced)
    survivors = bool(set(member_standings(state, view).values()) & {Standing.IN, Standing.LEFT, Standing.STARTING})
    slots = list(view.slots.values())
    if rules.sets_aside:
        busy = {slot.worker for slot in slots if slot.runs}
        slots = [slot for slot in slots if slot.state.formation or busy <= {slot.worker}]
    failures = count_failures(losses.failures, slots, steps, survivors=survivors)
    fruitless = () if has_advanced else losses.fruitless
    if failures != losses.failures and state.formed and state.formed not in fruitless:
        fruitless = (*fruitless, state.formed)
    losses = replace(losses, failures=failures, fruitless=fruitless)
    if (committed := _committed(_state_holders(state) or state.members, view)) > steps.training:
        steps = replace(steps, training=committed, held=state.formed, committed=committed)
    elif any(_has_shared(process, state.formed, view) for process in state.members):
        steps = replace(steps, held=state.formed)
    if times.lost_at is not None and all_members_joined(state, rules, view):
        losses = replace(losses, last_recovery_s=now - times.lost_at, recoveries=losses.recoveries + 1)
        times = replace(times, lost_at=None)
    return replace(state, steps=steps, losses=losses, times=times)


def _alive_members(state: GenerationState, view: WorldView) -> dict[int, MemberProcess]:
    """Return the members of the last generation that have not ended and may have the training state, by slot."""
    ended = (Standing.GONE, Standing.FINISHED)
    return {process.slot: process for process, at in member_standings(state, view).items() if at not in ended}


def _staying_members(state: GenerationState, rules: GenerationRules, view: WorldView) -> frozenset[int]:
    """Return the slots of members that must be in the next generation even if they are no longer requested.

    After a loss these are all live members, because no member has sent its state. Otherwise members that were ordered
    to leave do so: the remaining ones have the same state.
    """
    if rules.restarts:
        return frozenset()
    alive = _alive_members(state, view)
    if state.phase is GenerationPhase.PREPARING:
        return frozenset(alive) if state.orders.urgent else frozenset(alive) & state.orders.slots
    return slots_to_keep(list(alive.values()), wanted_slots(view, again=False), view, rules.min_ranks)


def _decide_running(state: GenerationState, rules: GenerationRules, view: WorldView, now: float) -> GenerationDecision:
    members = member_standings(state, view)
    standings = set(members.values())
    if Standing.UNKNOWN in standings:  # this launcher has just started: its agents register soon or are lost
        return GenerationDecision(state)
    if standings & {Standing.GONE, Standing.LEFT}:
        return _prepare_after_loss(state, rules, view, now)
    wanted = wanted_slots(view, again=True)
    inside = frozenset(process.slot for process, at in members.items() if at is not Standing.FINISHED)
    staying = _staying_members(state, rules, view)
    met = all_members_joined(state, rules, view)  # before that, some may not have received this generation
    if inside - wanted - staying and met:
        return _prepare_generation(state, rules, view, now, urgent=False)
    # A process that could join waits if the world is full or about to end.
    open_to_more = Standing.FINISHED not in standings and len(members) - len(staying - wanted) < rules.max_ranks
    new = newcomer_slots(state.members, wanted, view, stopped=rules.restarts) if open_to_more else set()
    since = (now if state.times.newcomer_at is None else state.times.newcomer_at) if new else None
    state = replace(state, times=replace(state.times, newcomer_at=since))
    if met and since is not None and (now - since >= rules.join_delay_s or wanted <= inside | new):
        return _prepare_generation(state, rules, view, now, urgent=False)
    named = wanted | staying if met else wanted | inside
    is_known = state.orders.given and state.orders.slots == named
    return GenerationDecision(state) if is_known else _repeat_order(state, named)


def _repeat_order(state: GenerationState, slots: frozenset[int]) -> GenerationDecision:
    """Return an order that repeats the running generation, because its slots changed or the launcher restarted."""
    orders = replace(state.orders, number=state.orders.number + 1, slots=slots, given=True)
    order = Formed(state.number, state.members, slots, orders.number, state.steps.committed)
    return GenerationDecision(replace(state, orders=orders), order)


def _prepare_after_loss(
    state: GenerationState, rules: GenerationRules, view: WorldView, now: float
) -> GenerationDecision:
    """Return the order to prepare the next generation because a rank was lost."""
    state = replace(state, times=replace(state.times, lost_at=state.times.lost_at or now))
    return _prepare_generation(state, rules, view, now, urgent=True)


def _prepare_generation(
    state: GenerationState, rules: GenerationRules, view: WorldView, now: float, *, urgent: bool
) -> GenerationDecision:
    """Return the order to prepare the next generation, or the attempt's end if the limit of generations is reached.

    `urgent`: whether a member is lost, so that ranks must leave the present generation now.
    """
    if state.number >= rules.generation_limit:
        return GenerationDecision(state, end=AttemptEnd(Ruin.GENERATION_LIMIT))
    # Of the live members, `_staying_members` returns only these from now on.
    named = wanted_slots(view, again=rules.restarts) | _staying_members(state, rules, view)
    slots = named & frozenset(_alive_members(state, view))
    orders = replace(state.orders, slots=slots, prepared=state.orders.number + 1, urgent=urgent)
    times = replace(state.times, began=now, newcomer_at=None, parked_at=None, stateless_at=None)
    state = replace(state, phase=GenerationPhase.PREPARING, number=state.number + 1, orders=orders, times=times)
    return _order_to_prepare(state, rules, view)


def _order_to_prepare(state: GenerationState, rules: GenerationRules, view: WorldView) -> GenerationDecision:
    """Return the order to prepare generation `state.number`, with the slots that it should have now."""
    slots = _slots_to_prepare(state, rules, view)
    orders = replace(state.orders, number=state.orders.number + 1, slots=slots, given=True)
    order = Prepare(state.number, tuple(sorted(slots)), orders.urgent, rules.restarts, orders.number)
    return GenerationDecision(replace(state, orders=orders), order)


def _slots_to_prepare(state: GenerationState, rules: GenerationRules, view: WorldView) -> frozenset[int]:
    """Return the slots that the next generation should have, without live members that were ordered to leave."""
    staying = _staying_members(state, rules, view)
    told = frozenset() if rules.restarts else frozenset(_alive_members(state, view)) - staying
    return (wanted_slots(view, again=rules.restarts) - told) | staying


def _decide_preparing(
    state: GenerationState, rules: GenerationRules, view: WorldView, now: float
) -> GenerationDecision:
    if not state.orders.given:
        orders = replace(state.orders, prepared=state.orders.number + 1)
        return _order_to_prepare(replace(state, orders=orders, times=replace(state.times, began=now)), rules, view)
    if any(slot.lost and slot.state.phase is RankPhase.RUNNING for slot in view.slots.values()):
        state = replace(state, times=replace(state.times, away_at=now))
    members = member_standings(state, view)
    planned = bool(state.formed) and not (state.orders.urgent or rules.restarts)
    if planned and Standing.GONE in members.values():
        return _prepare_after_loss(state, rules, view, now)
    if state.orders.slots != _slots_to_prepare(state, rules, view):
        return _order_to_prepare(state, rules, view)
    if are_members_fenced(state.members, state.formed, view, state.orders.prepared, stopped=rules.restarts):
        if planned and _would_lose_state(state, view):
            return _prepare_after_loss(state, rules, view, now)
        return _form_world(state, rules, view, now)
    left = Standing.LEFT in members.values()
    since = (now if state.times.parked_at is None else state.times.parked_at) if left else None
    state = replace(state, times=replace(state.times, parked_at=since))
    return _await_leaving(state, rules, view, now)


def _would_lose_state(state: GenerationState, view: WorldView) -> bool:
    """Return whether a member that is about to leave may be the only process with some part of the training state."""
    leavers = frozenset(_alive_members(state, view)) - state.orders.slots
    return any(view.slots[slot].state.unshared for slot in leavers)


def _await_leaving(state: GenerationState, rules: GenerationRules, view: WorldView, now: float) -> GenerationDecision:
    """Wait for processes that have not left the previous generation; after a deadline, prepare as after a loss or end
    the attempt."""
    if state.formed and not state.orders.urgent and not rules.restarts:
        # All leave at the same commit. A member that has not followed by now is blocked by something else.
        if state.times.parked_at is not None and now - state.times.parked_at >= rules.timeout_s:
            return _prepare_after_loss(state, rules, view, now)
        return GenerationDecision(state)
    # An agent kills its rank within timeout_s. An agent without contact is lost within timeout_s, and receives the
    # order when it reconnects. The rest of the limit is for systems that end processes slowly.
    if now - max(state.times.began, state.times.away_at) < 3 * rules.timeout_s:
        return GenerationDecision(state)
    stuck = [slot.slot for slot in view.slots.values() if slot.runs and (rules.restarts or not slot.state.parked)]
    return GenerationDecision(state, end=AttemptEnd(Ruin.NOT_FENCED, stuck[0] if stuck else None))


def _form_world(state: GenerationState, rules: GenerationRules, view: WorldView, now: float) -> GenerationDecision:
    """Return the order that forms the generation if all processes that it waits for are ready, or a deadline has
    passed."""
    named, staying = _slots_to_prepare(state, rules, view), _staying_members(state, rules, view)
    ready = member_candidates(named, view, state.orders.prepared, stopped=rules.restarts, staying=staying)
    finished = Standing.FINISHED in member_standings(state, view).values() and not rules.restarts
    waited = now - state.times.began
    if len(ready) < (1 if finished else rules.min_ranks):
        return _decide_too_few(replace(state, times=replace(state.times, stateless_at=None)), rules, waited)
    is_stateless = not rules.restarts and _lacks_state({slot.slot for slot in ready}, state, view)
    # Measured from now, not from the loss: after an interruption agents reconnect one after the other.
    since = (now if state.times.stateless_at is None else state.times.stateless_at) if is_stateless else None
    state = replace(state, times=replace(state.times, stateless_at=since))
    if since is not None and now - since < rules.replace_timeout_s:
        return GenerationDecision(state)
    missing = _awaited_slots(state, rules, view, named) - {slot.slot for slot in ready}
    # A process that is about to be ended may be the only one with some state. It sends it in the next generation.
    leaving = any(slot.leaving for slot in ready)
    if missing and not leaving and waited < rules.replace_timeout_s and len(ready) < rules.max_ranks:
        return GenerationDecision(state)
    most = rules.max_ranks + len(staying - wanted_slots(view, again=rules.restarts))
    members = choose_members(ready, state.members, state.number, most, stopped=rules.restarts)
    lost = max((slot.state.lost_steps for slot in ready if slot.state.formation), default=0)
    steps = state.steps
    if not _have_state({process.slot for process in members}, state, view):
        goes_on_from = _committed(members, view)
        lost = max(lost, steps.training - goes_on_from)
        steps = replace(steps, training=goes_on_from, committed=max(steps.committed, goes_on_from))
    losses = replace(state.losses, steps=state.losses.steps + (0 if rules.restarts else lost))
    times = replace(state.times, began=now, newcomer_at=None, stateless_at=None)
    state = replace(state, phase=GenerationPhase.RUNNING, members=members, formed=state.number)
    state = replace(state, steps=steps, losses=losses, times=times)
    return _repeat_order(state, wanted_slots(view, again=True) | staying)


def _lacks_state(ready: Collection[int], state: GenerationState, view: WorldView) -> bool:
    """Return whether no process in `ready` has the training state while a process that has the state may still
    reconnect."""
    is_lacking = state.steps.training > 0 and not _have_state(ready, state, view)
    return is_lacking and _others_may_return(ready, state, view)


def _awaited_slots(
    state: GenerationState, rules: GenerationRules, view: WorldView, wanted: frozenset[int]
) -> frozenset[int]:
    """Return the slots whose processes the next generation awaits, for at most `replace_timeout_s`."""
    if not state.formed or (state.orders.urgent and not rules.shrinks):
        return wanted
    # Members have left for the processes that are ready now; they wait for no others.
    here = [view.slots[index] for index in wanted if not (view.slots[index].silent or view.slots[index].lost)]
    return frozenset(slot.slot for slot in here if rules.restarts or (slot.runs and slot.state.parked))


def _decide_too_few(state: GenerationState, rules: GenerationRules, waited: float) -> GenerationDecision:
    if not state.formed:
        over = waited >= rules.start_timeout_s
        return GenerationDecision(state, end=AttemptEnd(Ruin.NOT_ASSEMBLED) if over else None)
    over = waited >= rules.replace_timeout_s + rules.start_timeout_s
    return GenerationDecision(state, end=AttemptEnd(Ruin.TOO_FEW) if over else None)
