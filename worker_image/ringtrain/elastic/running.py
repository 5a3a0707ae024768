"""`elastic.run`, which calls a function again in each world, with the last committed state."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ringtrain._core.process_groups import context
from ringtrain._core.process_groups.formations import CARRIED, FormationPlace, own_agent
from ringtrain.elastic.state import HostsUpdatedInterrupt, State
from ringtrain.errors import GOES_ON, PeerLost, RingtrainError

log = logging.getLogger("ringtrain")
T = TypeVar("T")
# Number of times that the same internal error may occur without a commit in between.
_SAME_ERRORS: Final = 3


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Return a function that calls `func(state, ...)`, and calls it again after each change of the world.

        @elastic.run
        def train(state): ...

    The function is called when all ranks of a world have joined and have the values of the last committed step. If a
    member is lost, or workers join or leave, this rank leaves its world, waits for the next one, runs the state's reset
    callbacks, and calls the function again. It returns the result of `func`. Without an agent the world cannot change,
    and a loss is raised.

    On a rank that joins others, no collective may run between `init()` and the call of the function, because the others
    already wait for this rank in that call.
    """
    return run_fn(func, context.init)


def run_fn(func: Callable[..., T], init: Callable[[], Any]) -> Callable[..., T]:
    """Return the same function as `run`, but join each world by `init`, the function of a framework's adapter."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> T:
        is_reset = False
        lost: BaseException | None
        inconsistent = _RepeatedErrors()
        while True:
            try:
                init()
                if is_reset:
                    state.on_reset()
                state.sync()
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt:
                lost = _hand_over_state(state)
            except Exception as error:
                if own_agent() is None or not _is_loss(error) or inconsistent.is_repeated(error, state.committed):
                    raise
                lost = error
            _leave_elastic_world(state, lost)
            lost, is_reset = None, True  # its traceback references all locals of the function

    return wrapper


class _RepeatedErrors:
    """Counter of consecutive equal internal errors, to end a training that fails in the same way in every world."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None
        self._count = 0

    def is_repeated(self, error: Exception, committed: int) -> bool:
        """Return whether `error` has occurred for the third time without a commit in between.

        `committed`: number of commits when it occurred.
        """
        if type(error) is not RingtrainError:
            return False
        seen = (str(error), committed)
        self._count = self._count + 1 if seen == self._last else 1
        self._last = seen
        return self._count >= _SAME_ERRORS


def _hand_over_state(state: State) -> BaseException | None:
    """Send state of leaving ranks to the ranks that stay. Return the error if the loss of a rank prevented that."""
    if own_agent() is None:
        return None
    try:
        CARRIED.unshared = not state.hand_over()
    except Exception as error:
        if not _is_loss(error):
            raise
        return error
    return None


def _is_loss(error: Exception) -> bool:
    """Return whether `error` is the loss of a rank or follows from one, even if a framework has wrapped it."""
    world = context.current_or_none()
    if isinstance(error, PeerLost) or type(error) is RingtrainError:
        return True
    return world is not None and world.is_lost


def _leave_elastic_world(state: State, lost: BaseException | None) -> None:
    """Leave the world and restore the last committed values."""
    if lost is not None:
        log.warning("generation %d: %s%s%d", CARRIED.formation, _loss_line(lost), GOES_ON, state.committed)
        CARRIED.lost_steps, CARRIED.unshared = state.steps_under_way(), True
    else:
        log.info("generation %d ends after commit %d, because the world changes", CARRIED.formation, state.committed)
    _mark_first_state_valid()
    context.shutdown()
    if lost is not None:
        state.restore()


def _mark_first_state_valid() -> None:
    """Record for the next world that this rank has valid state.

    Needed if no rank had it before and a rank was lost before all had agreed on it.
    """
    world = context.current_or_none()
    if world is not None and world.config.numbers.formation and not world.former.survivors:
        CARRIED.adopted = FormationPlace(world.config.numbers.formation, world.config.place.rank)


def _loss_line(error: BaseException) -> str:
    """Return the line of an error's text that names the lost peer, even if a framework wrapped it in long text."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if PeerLost.__name__ in line), lines[0])
