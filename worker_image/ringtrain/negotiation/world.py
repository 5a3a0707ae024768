"""Init, shutdown and the named queue of each process set: one world a process, shared by all adapters."""

import atexit
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ringtrain as rt
from ringtrain.communicators.base import Communicator
from ringtrain.errors import ConfigurationError, NotInitializedError
from ringtrain.negotiation.process_sets import ProcessSet
from ringtrain.negotiation.queue import NamedQueue
from ringtrain.negotiation.request import Kind, Request
from ringtrain.negotiation.ring import (
    PER_SET,
    RingGroup,
    describe_queue,
    give_up_communicators,
    private_communicator,
    ring_timeout_s,
    stall_timeout_s,
)
from ringtrain.negotiation.timeline import Timeline

global_process_set = ProcessSet([])


@dataclass
class _World:
    """What lives from init to shutdown."""

    timeout_s: float
    queues: dict[int, NamedQueue] = field(default_factory=dict)
    sets: dict[int, ProcessSet] = field(default_factory=dict)
    counters: dict[tuple[int, str], Iterator[int]] = field(default_factory=lambda: defaultdict(itertools.count))
    communicators: dict[int, int] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    local_sizes: tuple[int, ...] = ()
    next_id: int = 1


_world: _World | None = None
_lock = threading.Lock()


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Find the world, meet the other ranks, and make `process_sets` usable. A second call changes nothing.

    `comm`: None, or all ranks of the world (a list or an mpi4py communicator). `process_sets`: sets to make now,
    the same on every rank; "dynamic" is accepted, and not needed: sets can always be added.
    """
    global _world
    with _lock:
        if _world is not None:
            return
        rt.init()
        _check_comm(comm)
        atexit.register(shutdown)  # after the ring's own, so that it runs before it
        world = _World(ring_timeout_s())
        _open_set(world, global_process_set, 0, list(range(rt.size())))
        sizes = world.queues[0].group.exchange(str(rt.local_size()).encode())
        world.local_sizes = tuple(int(size) for size in sizes)
        _world = world
    for process_set in [] if process_sets is None or isinstance(process_sets, str) else process_sets:
        add_process_set(process_set)


def shutdown() -> None:
    """Leave the world. Collectives in flight fail."""
    global _world
    atexit.unregister(shutdown)
    with _lock:
        world, _world = _world, None
    if world is None:
        return
    for queue in world.queues.values():
        queue.close()
    rt.shutdown()
    for queue in world.queues.values():
        queue.wait_closed(world.timeout_s)
    for process_set in world.sets.values():
        process_set.invalidate()
    world.timeline.stop()


def is_initialized() -> bool:
    """Whether `init()` was called, and `shutdown()` not since."""
    return _world is not None


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a set of ranks usable and return it. Every rank of the world calls this with the same ranks."""
    world = _initialized()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    ranks = added.ranks or []
    if not ranks or ranks[0] < 0 or ranks[-1] >= rt.size():
        raise ConfigurationError(f"process set {ranks}: expected ranks from 0 to {rt.size() - 1}, at least one")
    if any(existing.ranks == ranks for existing in world.sets.values()):
        raise ConfigurationError(f"process set {ranks}: a set of these ranks exists already; use that one")
    number, world.next_id = world.next_id, world.next_id + 1
    barrier(global_process_set, f"add_process_set {number} {ranks}")
    _open_set(world, added, number, ranks)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Give up a set and return True, or False if it is the global one or no set in use. Every rank calls this."""
    world = _initialized()
    number = process_set.process_set_id
    if not number or world.sets.get(number) is not process_set:
        return False
    barrier(global_process_set, f"remove_process_set {number}")
    if number in world.queues:
        queue = world.queues.pop(number)
        queue.close()
        queue.wait_closed(world.timeout_s)
        give_up_communicators(number, world.communicators.pop(number))
    world.sets.pop(number).invalidate()
    return True


def queue_of(process_set: ProcessSet) -> NamedQueue:
    """Return the queue of `process_set`. Raises ConfigurationError if this rank is not a member."""
    world = _initialized()
    number = process_set.process_set_id
    if number is None:
        raise ConfigurationError(f"{process_set} is not in use; pass it to init() or add_process_set() first")
    if number not in world.queues:
        raise ConfigurationError(f"rank {rt.rank()} is not a member of {process_set}; only its ranks may use it")
    return world.queues[number]


def ranks_of_id(process_set_id: int) -> list[int] | None:
    """Return the ranks of a process set by its number; None if there is no such set."""
    found = _initialized().sets.get(process_set_id)
    return None if found is None else found.ranks


def name_for(kind: str, name: str | None, process_set: ProcessSet) -> str:
    """Return `name` under its kind, or the next one of a series that runs alike on every rank that makes the
    calls.
    """
    if name is not None:
        return f"{kind}.{name}"
    return f"{kind}.noname.{next(_initialized().counters[process_set.process_set_id or 0, kind])}"


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> None:
    """Return when every rank of `process_set` has called it."""
    request = Request(Kind.BARRIER, name_for("barrier", name, process_set))
    queue_of(process_set).submit(request).result()


def new_communicator(process_set: ProcessSet) -> Communicator:
    """Make one more communicator among the ranks of `process_set`; they all make the same in the same order."""
    ranks = queue_of(process_set).group.ranks
    world, number = _initialized(), process_set.process_set_id or 0
    index = world.communicators[number]
    if index == PER_SET:
        raise ConfigurationError(f"{process_set} has {PER_SET - 1} host optimizers already; make them once a job")
    world.communicators[number] += 1
    return private_communicator(ranks, number, index)


def join() -> int:
    """Say that this rank has no more data, and wait until all ranks have; return the last rank to join.

    Names that were made up for calls without one start anew: ranks with different numbers of calls meet again
    here.
    """
    world = _initialized()
    last = world.queues[0].join()
    for counter in [key for key in world.counters if key[0] == 0]:
        del world.counters[counter]
    return last


def members(process_set: ProcessSet) -> int:
    """Return the number of ranks in `process_set`."""
    return len(queue_of(process_set).group.ranks)


def trains_alone(process_set: ProcessSet) -> bool:
    """Whether this rank shares gradients with no other: it is the only member of `process_set`, or, as in Horovod,
    none of it. Raises ConfigurationError for a set that is not in use."""
    if process_set.process_set_id is not None and process_set.included() is False:
        return True
    return members(process_set) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to record when each collective of this rank was submitted, agreed and run; `stop_timeline` writes the
    file (Chrome trace JSON). Ranks other than 0 add their number to the file's name. `mark_cycles` is accepted and
    without effect: there are no cycles."""
    path = Path(file_path)
    own = path if rt.rank() == 0 else path.with_name(f"{path.stem}-rank{rt.rank()}{path.suffix}")
    _initialized().timeline.start(own, rt.rank())


def stop_timeline() -> None:
    """End the recording and write its file."""
    _initialized().timeline.stop()


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks."""
    return len(set(_initialized().local_sizes)) == 1


def _initialized() -> _World:
    if _world is None:
        raise NotInitializedError("ringtrain is not initialized; call init() first")
    return _world


def _open_set(world: _World, process_set: ProcessSet, number: int, ranks: list[int]) -> None:
    if rt.rank() in ranks:
        group = RingGroup(private_communicator(ranks, number, 0))
        queue = world.queues[number] = NamedQueue(group, stall_timeout_s(), world.timeline)
        describe_queue(number, queue.in_flight)
        world.communicators[number] = 1
    process_set.bind(number, ranks, rt.rank())
    world.sets[number] = process_set


def _check_comm(comm: Any) -> None:
    if comm is None:
        return
    size = len(comm) if isinstance(comm, Sequence) else comm.size
    if size != rt.size():
        raise ConfigurationError(
            f"init: comm has {size} ranks and the world {rt.size()}; pass None here, and the part of the world "
            "that "
            "you mean as a ProcessSet"
        )
