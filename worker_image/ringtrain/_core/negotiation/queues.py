"""Functions on the named queues of this world: barrier, join, process sets and names, for the framework adapters."""

from __future__ import annotations

import contextvars
import itertools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ringtrain._core.negotiation.queue import NamedQueue
from ringtrain._core.negotiation.request import CollectiveKind, NamedRequest
from ringtrain._core.process_groups import context, process_sets
from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain._core.process_groups.process_sets import ProcessSet, global_process_set, number_of
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain.errors import MismatchError
from ringtrain.step_time import REDUCTION

JOIN: Final = "join()"


@dataclass
class _NamedQueues:
    """A world's named queues by process set, and counters that give names to unnamed calls."""

    queues: dict[int, NamedQueue] = field(default_factory=dict)
    counters: dict[tuple[int, str], Iterator[int]] = field(default_factory=lambda: defaultdict(itertools.count))
    lock: threading.Lock = field(default_factory=threading.Lock)
    joins: int = 0


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; every rank must call this. Return False if it is the set of all ranks or not in use."""
    number = process_set.process_set_id
    removed = process_sets.remove_process_set(process_set)
    if removed and number is not None:
        _queues().queues.pop(number, None)
    return removed


def queue_of(process_set: ProcessSet) -> NamedQueue:
    """Return the queue of `process_set`. Raises ConfigurationError if this rank is not a member."""
    world, mine, number = context.current(), _queues(), number_of(process_set)
    if (queue := mine.queues.get(number)) is not None:
        return queue
    with mine.lock:
        if number not in mine.queues:
            mine.queues[number] = _open_queue(world, number)
        return mine.queues[number]


def _open_queue(world: ProcessGroupContext, number: int) -> NamedQueue:
    ranks = tuple(world.ranks_of_set(number) or ())
    queue = NamedQueue(
        world.config.place.rank,
        ranks,
        lambda: world.open_queue_communicator(number),
        world.config.waits.stall_timeout_s,
        lambda error: world.give_up(number, error),
        world.config.waits.stall_warning_s,
    )
    world.run_with_set(number, queue)
    world.describe_queue(number, queue.in_flight)
    return queue


def name_for(kind: str, name: str | None, process_set: ProcessSet) -> str:
    """Return the name by which ranks match a call: from `name`, or the next number of unnamed calls of this kind."""
    if name is not None:
        return f"{kind}.{name}"
    return f"{kind}.noname.{next(_queues().counters[process_set.process_set_id or 0, kind])}"


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> None:
    """Wait until every rank of `process_set` has called `barrier`."""
    request = NamedRequest(CollectiveKind.BARRIER, name_for("barrier", name, process_set))
    queue_of(process_set).submit(request).result()


def join() -> int:
    """Declare that this rank has no more data, and wait until all ranks have done so. Return the last rank to join.

    Numbers of unnamed calls restart, because ranks may have made different numbers of calls before.
    """
    with REDUCTION:
        last = queue_of(global_process_set).join()
    _queues().joins += 1
    counters = _queues().counters
    for counter in [key for key in counters if key[0] == 0]:
        del counters[counter]
    return last


class LastUpdate:
    """Record of the group in which a host optimizer of this world made its last update."""

    def __init__(self) -> None:
        self._group: CollectiveGroup | None = None
        self._settle: Callable[[], Callable[[], None] | None] = lambda: None
        self._words: Callable[[MismatchError], MismatchError] = lambda error: error

    def note(
        self, group: CollectiveGroup, settle: Callable[[], None], words: Callable[[MismatchError], MismatchError]
    ) -> None:
        """Record that an optimizer has made an update in `group`.

        `settle`: a method, stored weakly, that waits until `group` is idle. `words`: rewrites a MismatchError in terms
        of the training script.
        """
        self._group, self._settle, self._words = group, weakref.WeakMethod(settle), words

    def forget(self, group: CollectiveGroup) -> None:
        """Remove the record of `group`, because its optimizer was closed."""
        if group is self._group:
            self._group = None

    @property
    def is_open(self) -> bool:
        """Return whether an optimizer that has made an update is still in use."""
        return self._group is not None

    def compare(self) -> None:
        """Wait until all ranks have called `compare`. Raises MismatchError if a rank makes another update instead."""
        if self._group is not None:
            if (settle := self._settle()) is not None:
                settle()
            try:
                self._group.allgather_object(JOIN, JOIN)
            except MismatchError as error:
                raise self._words(error) from None


def join_after_updates() -> int:
    """Run `join`, but raise MismatchError at once if other ranks still make updates with a host optimizer.

    An update of a host optimizer needs every rank, so no rank may join while others make updates.
    """
    updates = context.current().attached(LastUpdate, LastUpdate)
    if not updates.is_open:
        return join()
    # Both run at the same time: other ranks may continue with named collectives, for which this rank counts as joined.
    joined: list[int | BaseException] = []

    def run() -> None:
        try:
            joined.append(join())
        except BaseException as error:
            joined.append(error)

    joining = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="ringtrain-join", daemon=True)
    joining.start()
    updates.compare()
    joining.join()
    if isinstance(joined[0], BaseException):
        raise joined[0]
    return joined[0]


def joins() -> int:
    """Return the number of completed `join` calls in this world, the same on all ranks."""
    return _queues().joins


def _queues() -> _NamedQueues:
    return context.attached(_NamedQueues)
