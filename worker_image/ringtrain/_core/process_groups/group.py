"""A process group: a communicator, and the executor that runs its collectives in the order of their submission.

The host optimizer, the public collectives and the named queue stand on this. `CollectiveGroup` is what optimizer,
input and checkpoints need of it; the tests run the same code on a `CollectiveGroup` of threads.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.communicators.base import (
    Communicator,
    MappingCommunicator,
    MemorySharingCommunicator,
    UpdatingCommunicator,
)
from ringtrain._core.communicators.foreign import exchange_values
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.process_groups.tensors import checked_collective_bounds, flat_signature
from ringtrain._core.process_groups.work import Work, barrier, short_allreduce, short_barrier
from ringtrain._core.reduction.ops import ReduceOp, Sum
from ringtrain._core.wire.dtypes import dtype_name
from ringtrain._core.wire.signature import ANY_ROWS, WireSignature, WireTensorSignature
from ringtrain.errors import NotInitializedError
from ringtrain.step_time import REDUCTION, beside_training

P = ParamSpec("P")
T = TypeVar("T")


class Handle(Generic[T]):
    """A collective under way, as the `_async` functions return it. `synchronize` gives its result or its error."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def poll(self) -> bool:
        """Whether `synchronize` would return, or raise, at once."""
        return self._future.done()

    def synchronize(self) -> T:
        """Wait for the result. Raises what the collective raised, on every rank; bounded like the collective."""
        with REDUCTION:
            return self._future.result()

    wait = synchronize


def poll(handle: Handle[Any]) -> bool:
    """Whether the collective behind `handle` has ended."""
    return handle.poll()


def synchronize(handle: Handle[T]) -> T:
    """Wait for the collective behind `handle`; return its result or raise its error."""
    return handle.synchronize()


class ProcessGroupTurn:
    """The right to run collectives of some groups: one at a time, which is the order that peers must meet in."""

    def __init__(self) -> None:
        self.held = threading.Lock()
        self.wanted = 0
        self._counting = threading.Lock()
        self._holder = 0  # the thread that has it

    def want(self, step: int = 1) -> None:
        """Wait for it from now on, or `step` -1: no longer."""
        with self._counting:
            self.wanted += step

    def disown(self) -> None:
        """In a forked process: nobody is to have it any more."""
        self._counting = threading.Lock()
        self.wanted = 1

    def take_if_free(self) -> bool:
        """Take it unless somebody has it or waits for it. Whoever takes it passes it on."""
        with self._counting:
            if self.wanted:
                return False
            self.wanted = 1
        self.held.acquire()  # compiled code may have it, uncounted as yet
        self._holder = threading.get_ident()
        return True

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """What compiled code, which took it for the calling thread and passes it on, could not end at once."""
        self.want()
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = 0
            self.want(-1)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Have it, as soon as who has it passes it on; for those who are counted already."""
        with self.held:
            self._holder = threading.get_ident()
            yield
            self._holder = 0

    def pass_on(self) -> None:
        self._holder = 0
        self.held.release()
        self.want(-1)

    def await_end(self, timeout_s: float) -> None:
        """Wait until what runs has ended; not where it runs in this very thread, in whose midst a signal came."""
        if self._holder != threading.get_ident() and self.held.acquire(timeout=timeout_s):
            self.held.release()


class ProcessGroupExecutor:
    """One collective at a time, first come first served: that is the order peers must meet in.

    What is submitted runs on a thread of its own. What is called runs in the calling thread if nothing is pending:
    a hop to another thread and back costs as much as a small collective.
    """

    def __init__(self) -> None:
        self.turn = ProcessGroupTurn()
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._refusal = ""  # why nothing begins any more

    def call(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        if not self.turn.take_if_free():
            return self.submit(partial(work, *arguments, **named)).synchronize()
        try:
            with REDUCTION:
                return work(*arguments, **named)
        finally:
            self.turn.pass_on()

    def submit(self, work: Callable[[], T]) -> Handle[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._refusal:
                raise NotInitializedError(self._refusal)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ringtrain-executor", daemon=True)
                self._thread.start()
            self.turn.want()
            self._queue.put((work, future))
        return Handle(future)

    def stop(self) -> None:
        """Begin nothing any more; what has not begun fails."""
        with self._lock:
            self._refusal = self._refusal or "ringtrain has been shut down; call ringtrain.init() first"
            self.turn.want()  # nobody gets it without being asked whether this has stopped
            self._queue.put(None)

    def disown(self) -> None:
        """In a forked process: begin nothing. Threads that are not there may have had the locks."""
        self._lock = threading.Lock()
        self._refusal = "this process was forked from a rank, and is none: only the rank can call its collectives"
        self.turn.disown()

    def wait_stopped(self, timeout_s: float) -> None:
        """Wait for what is under way, in whichever thread. The world must have been left, so that it ends.

        Work of this very thread is not waited for: a signal's handler may leave the world in the middle of it.
        """
        self.turn.await_end(timeout_s)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def in_flight(self) -> str:
        """Nothing: its collectives have no names, and what follows them waits for them."""
        return ""

    def _run(self) -> None:
        beside_training()
        while (item := self._queue.get()) is not None:
            work, future = item
            with self.turn.taken():
                self._run_one(work, future)
            del item, work, future  # or the last result would live as long as this thread has nothing to do
            self.turn.want(-1)

    def _run_one(self, work: Callable[[], Any], future: Future[Any]) -> None:
        if self._refusal:
            future.set_exception(NotInitializedError("ringtrain was shut down before this collective began"))
            return
        try:
            future.set_result(work())
        except BaseException as error:  # whoever synchronizes gets it
            future.set_exception(error)


Flat = NDArray[Any]


class PendingCollective(Protocol):
    """A collective under way."""

    def wait(self) -> Any:
        """Return its result when the collective is done on this rank; raise what made it fail."""


class CollectiveGroup(Protocol):
    """The ranks that train one model. Every rank calls the same collectives in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allocate(self, length: int, dtype: Any) -> Flat:
        """Return zeros for buffers of the collectives below, as all ranks do with the same arguments."""

    def all_reduce(self, buffer: Flat, op: ReduceOp = Sum) -> PendingCollective:
        """Fold `buffer` of all ranks in place."""

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], op: ReduceOp = Sum) -> PendingCollective:
        """Leave the reduction over ranks of `buffer[bounds[r]:bounds[r + 1]]` on rank r, in place.

        Every element is folded in one order of the ranks, so its bits do not depend on `bounds`. What the
        rest of `buffer` holds after that is not defined.
        """

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> PendingCollective:
        """Give every rank what rank r holds in `buffer[bounds[r]:bounds[r + 1]]`, in place."""

    def parallel_group(self) -> CollectiveGroup | None:
        """Return a group of the same ranks whose collectives need not wait for this one's. Collective.

        None where that does not pay.
        """

    def all_to_all(self, parts: Sequence[Flat], origins: Sequence[int] | None = None) -> PendingCollective:
        """Send `parts[r]` (1-d) to rank r; `wait` returns what each rank sent here, by rank.

        `origins`: on all ranks, those that send this one something, where ranks know.
        """

    def send_receive(self, source: Flat, to: int, target: Flat, origin: int) -> PendingCollective:
        """Send `source` (1-d) to rank `to`, and fill `target` with what rank `origin` sends here.

        Every rank gives to one and gets from one. Lengths may differ between pairs.
        """

    def memory_of(self, rank: int, buffer: Flat) -> Flat | None:
        """Return the memory of `rank` that is to it what `buffer`, a result of `allocate`, is here; writable.

        None where this process does not map it. The same on all ranks.
        """

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Whether `update` takes slices of these, which `allocate` gave. The same on all ranks. Collective."""

    def update(self, gradients: Flat, bounds: Sequence[int], op: ReduceOp, change: ChunkUpdate) -> None:
        """Reduce rank r's chunk of `gradients` on rank r, apply `change` to it, and write the weights to all.

        The weights of all ranks are new when the next update, or this one if it is the last, returns; `gradients`
        must not be written before that. The same bits as `reduce_scatter`, the update, `all_gather`.
        """

    def finish_updates(self) -> bool:
        """Make the weights of the update before new now, no other one follows at once; False: they wait."""

    def broadcast(self, buffer: Flat) -> None:
        """Overwrite `buffer` (1-d) with rank 0's on every rank."""

    def broadcast_object(self, value: Any, what: str) -> Any:
        """Return rank 0's JSON-safe `value` on every rank. `what` it is ranks compare."""

    def allgather_object(self, value: Any, what: str) -> list[Any]:
        """Return every rank's JSON-safe `value`, by rank. `what` it is ranks compare."""

    def gather_objects(self, value: Any, what: str) -> PendingCollective:
        """Begin `allgather_object`; `wait` returns what it returns."""


class ProcessGroup:
    """The ranks of a process set with a communicator of their own. `rank` and roots count within the set.

    In-place collectives take 1-d contiguous arrays in native byte order, cut at `bounds`: size + 1 offsets from 0
    to their length that never decrease. Raises ConfigurationError for others, MismatchError when ranks disagree,
    PeerLost when one is gone.
    """

    def __init__(
        self,
        communicator: Communicator,
        executor: ProcessGroupExecutor,
        open_beside: Callable[[], ProcessGroup],
        closed: Callable[[], None],
    ) -> None:
        """`open_beside`: makes another group of the same ranks, on an executor of its own; collective. `closed`:
        gives back what the group had, once nothing begins in it any more."""
        self._closed = closed
        self.communicator = communicator
        self._executor = executor
        self._open_parallel_group = open_beside
        self._parallel_groups: list[ProcessGroup] = []
        self.short_allreduce = short_allreduce(communicator, executor.turn)
        self.ranks = communicator.ranks
        self.rank = communicator.position
        self.size = len(communicator.ranks)

    def call(self, work: Callable[[Communicator], T]) -> T:
        """Do `work` after everything that was begun before it, and return its result."""
        return self._executor.call(work, self.communicator)

    def begin(self, work: Callable[[Communicator], T]) -> Handle[T]:
        """Do `work` after everything that was begun before it; return a handle for its result."""
        return self._executor.submit(lambda: work(self.communicator))

    def barrier(self) -> None:
        """Return when every rank has called it."""
        if not short_barrier(self.short_allreduce):
            self.call(barrier())

    def close(self) -> None:
        """Begin nothing any more, also in the groups beside this one, and give memory and descriptors back."""
        self._executor.stop()
        for group in self._parallel_groups:
            group.close()
        self._closed()

    def allocate(self, length: int, dtype: Any) -> Flat:
        kind = np.dtype(dtype)
        memory: Flat = self.call(lambda communicator: communicator.allocate(length * kind.itemsize))
        return memory.view(kind)

    def all_reduce(self, buffer: Flat, op: ReduceOp = Sum, name: str | None = None) -> Handle[None]:
        """Fold `buffer` of all ranks in place."""
        what = flat_signature("all_reduce", buffer, name, op)
        return self.begin(lambda communicator: communicator.all_reduce(what, buffer, buffer, op))

    def reduce_scatter(
        self, buffer: Flat, bounds: Sequence[int], op: ReduceOp = Sum, name: str | None = None
    ) -> Handle[None]:
        what = flat_signature("reduce_scatter", buffer, name, op)

        def work(communicator: Communicator) -> None:
            cuts = checked_collective_bounds(bounds, buffer, self.size)
            communicator.reduce_scatter(what, buffer, cuts, buffer[cuts[self.rank] : cuts[self.rank + 1]], op)

        return self.begin(work)

    def all_gather(self, buffer: Flat, bounds: Sequence[int], name: str | None = None) -> Handle[None]:
        what = flat_signature("all_gather", buffer, name, None)
        return self.begin(
            lambda communicator: communicator.all_gather(
                what, buffer, checked_collective_bounds(bounds, buffer, self.size)
            )
        )

    def all_to_all(self, parts: Sequence[Flat], origins: Sequence[int] | None = None) -> Handle[list[Flat]]:
        dtypes = dict.fromkeys(dtype_name(part.dtype) for part in parts)
        what = WireSignature("all_to_all", tuple(WireTensorSignature(None, dtype, (ANY_ROWS,)) for dtype in dtypes))
        return self.begin(lambda communicator: communicator.all_to_all(what, parts, origins))

    def send_receive(self, source: Flat, to: int, target: Flat, origin: int) -> Handle[None]:
        what = WireSignature("send_receive", (WireTensorSignature(None, dtype_name(source.dtype), (ANY_ROWS,)),))
        return self.begin(lambda communicator: communicator.send_receive(what, source, to, target, origin))

    def memory_of(self, rank: int, buffer: Flat) -> Flat | None:
        return self.call(lambda ring: ring.memory_of(rank, buffer) if isinstance(ring, MappingCommunicator) else None)

    def broadcast(self, buffer: Flat) -> None:
        what = flat_signature("broadcast", buffer, None, None)
        self.call(lambda communicator: communicator.broadcast(what, buffer, 0))

    def parallel_group(self) -> ProcessGroup | None:
        if self.size == 1 or not self.communicator.overlaps:
            return None
        beside = self._open_parallel_group()
        if isinstance(self.communicator, MemorySharingCommunicator) and isinstance(
            beside.communicator, MemorySharingCommunicator
        ):
            beside.communicator.use_memory_of(self.communicator)
        self._parallel_groups.append(beside)
        return beside

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return self.call(lambda ring: isinstance(ring, UpdatingCommunicator) and ring.can_update(gradients, weights))

    def update(self, gradients: Flat, bounds: Sequence[int], op: ReduceOp, change: ChunkUpdate) -> None:
        what = flat_signature("update", gradients, None, op)
        cuts = checked_collective_bounds(bounds, gradients, self.size)
        self.call(lambda communicator: _group_updater(communicator).update(what, gradients, cuts, op, change))

    def finish_updates(self) -> bool:
        return self.call(lambda communicator: _group_updater(communicator).finish_updates())

    def broadcast_object(self, value: Any, what: str) -> Any:
        return self.allgather_object(value if self.rank == 0 else None, what)[0]

    def allgather_object(self, value: Any, what: str) -> list[Any]:
        return self.call(_group_objects(value, what))

    def gather_objects(self, value: Any, what: str) -> Handle[list[Any]]:
        return self.begin(_group_objects(value, what))


def _group_objects(value: Any, what: str) -> Work[list[Any]]:
    return lambda communicator: exchange_values(communicator, value, what)


def _group_updater(communicator: Communicator) -> UpdatingCommunicator:
    """`communicator`, of which `can_update` was asked first: to look at its protocol again takes 10 us."""
    return cast(UpdatingCommunicator, communicator)
