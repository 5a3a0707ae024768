"""Named queues of ranks that are threads of the test's process."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from ring.worlds import world_of

from ringtrain._core.communicators.base import Communicator
from ringtrain._core.negotiation.queue import NamedQueue
from ringtrain._core.negotiation.request import CollectiveKind, NamedRequest
from ringtrain._core.process_groups.context import current

T = TypeVar("T")
ONES = np.ones(2, np.float32)


def allreduce(name: str, shape: tuple[int, ...] = (2,), op: str = "Sum", prescale: float = 1.0) -> NamedRequest:
    return NamedRequest(CollectiveKind.ALLREDUCE, name, ("float32",), (shape,), op=op, prescale=prescale)


def with_queues(
    size: int,
    function: Callable[[NamedQueue], T],
    timeouts_s: Sequence[float] = (60.0,) * 5,
    members: Sequence[int] = (),
    world_timeout_s: float = 60.0,
    watched: Callable[[int, Communicator], Communicator] = lambda rank, communicator: communicator,
) -> list[T]:
    """Return what `function(queue)` returned on each of `size` ranks, which are threads.

    `timeouts_s`: of each rank's queue. `members`: the process set whose queue it is, if not all ranks; the
    function is then called on these alone. `watched(rank, communicator)`: what the queue of a rank uses.
    """
    ranks = tuple(members) or tuple(range(size))
    with world_of(size, timeout_s=world_timeout_s, stall_timeout_s=60.0) as world:

        def run(rank: int) -> list[T]:
            context = current()
            number = context.add_set(ranks) if members else 0
            returned = []
            if rank in ranks:

                def opened() -> Communicator:
                    return watched(rank, context.open_queue_communicator(number))

                def give_up(error: Exception) -> None:
                    context.give_up(number, error)

                queue = NamedQueue(rank, ranks, opened, timeouts_s[rank], give_up)
                context.run_with_set(number, queue)
                context.describe_queue(number, queue.in_flight)
                returned.append(function(queue))
            world.meet()
            return returned

        return [result for returned in world.run(run) for result in returned]
