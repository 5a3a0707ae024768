"""Process group: a communicator, and the executor that runs its collectives in the order of submission.

The host optimizer, the public collectives and the named queue use it. `CollectiveGroup` is the interface for optimizer,
input and checkpoints; tests run the same code on a `CollectiveGroup` of threads.
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
from ringtrain.step_time import REDUCTION, mark_background_thread

P = ParamSpec("P")
T = TypeVar("T")


class Handle(Generic[T]):
    """Collective in progress, returned by the `_async` functions.

    `synchronize` returns its result or raises its error.
    """

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def poll(self) -> bool:
        """Return whether `synchronize` would return or raise at once."""
        return self._future.done()

    def synchronize(self) -> T:
        """Wait for the result. Raises the collective's error, on every rank; bounded by the collective's timeout."""
        with REDUCTION:
            return self._future.result()

    wait = synchronize


def poll(handle: Handle[Any]) -> bool:
    """Return whether the collective of `handle` has ended."""
    return handle.poll()


def synchronize(handle: Handle[T]) -> T:
    """Wait for the collective of `handle`; return its result or raise its error."""
    return handle.synchronize()


class ProcessGroupTurn:
    """Lock and wait count for the collectives of some groups: one runs at a time, in the order that peers expect."""

    def __init__(self) -> None:
        self.held = threading.Lock()
        self.wanted = 0
        self._counting = threading.Lock()
        self._holder = 0  # the thread that owns the lock

    def want(self, step: int = 1) -> None:
        """Add `step` to the number of waiting threads."""
        with self._counting:
            self.wanted += step

    def disown(self) -> None:
        """Disable the lock in a forked process."""
        self._counting = threading.Lock()
        self.wanted = 1

    def take_if_free(self) -> bool:
        """Lock it unless it is locked or another thread waits. Return whether it is locked; unlock it by `pass_on`."""
        with self._counting:
            if self.wanted:
                return False
            self.wanted = 1
        self.held.acquire()  # compiled code may own it without being counted
        self._holder = threading.get_ident()
        return True

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the calling thread as waiting, for a collective that compiled code began under the lock and has not
        ended.
        """
        self.want()
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = 0
            self.want(-1)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Lock it for the context; for threads that are counted already."""
        with self.held:
            self._holder = threading.get_ident()
            yield
            self._holder = 0

    def pass_on(self) -> None:
        self._holder = 0
        self.held.release()
        self.want(-1)

    def await_end(self, timeout_s: float) -> None:
        """Wait until the running collective has ended; not if it runs in this thread, which a signal has
        interrupted.
        """
        if self._holder != threading.get_ident() and self.held.acquire(timeout=timeout_s):
            self.held.release()


class ProcessGroupExecutor:
    """Executor of one collective at a time, in the order of submission, which peers expect.

    Submitted work runs on the executor's thread. `call` runs in the calling thread if nothing is pending, because
    switching threads twice costs as much as a small collective.
    """

    def __init__(self) -> None:
        self.turn = ProcessGroupTurn()
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._refusal = ""  # why no more work is accepted

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
        """Accept no more work, and fail the work that has not begun."""
        with self._lock:
            self._refusal = self._refusal or "ringtrain has been shut down; call ringtrain.init() first"
            self.turn.want()  # every later call checks whether this has stopped
            self._queue.put(None)

    def disown(self) -> None:
        """Refuse all work in a forked process. Threads that do not exist there may have owned the locks."""
        self._lock = threading.Lock()
        self._refusal = "this process was forked from a rank, and is none: only the rank can call its collectives"
        self.turn.disown()

    def wait_stopped(self, timeout_s: float) -> None:
        """Wait for work in progress, in any thread. The world must have been left, so that it ends.

        Does not wait for work of the calling thread, because a signal handler may leave the world during it.
        """
        self.turn.await_end(timeout_s)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def in_flight(self) -> str:
        """Return an empty description: its collectives have no names, and later ones wait for them."""
        return ""

    def _run(self) -> None:
        mark_background_thread()
        while (item := self._queue.get()) is not None:
            work, future = item
            with self.turn.taken():
                self._run_one(work, future)
            del item, work, future  # else the last result would stay alive while this thread is idle
            self.turn.want(-1)

    def _run_one(self, work: Callable[[], Any], future: Future[Any]) -> None:
        if self._refusal:
            future.set_exception(NotInitializedError("ringtrain was shut down before this collective began"))
            return
        try:
            future.set_result(work())
        except BaseException as error:  # raised by `synchronize`
            future.set_exception(error)


Flat = NDArray[Any]


class PendingCollective(Protocol):
    """Collective in progress."""

    def wait(self) -> Any:
        """Wait until the collective is done on this rank, and return its result or raise its error."""


class CollectiveGroup(Protocol):
    """Ranks that train one model. Every rank calls the same collectives in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allocate(self, length: int, dtype: Any) -> Flat:
        """Return a zeroed buffer for the collectives below. All ranks call it with the same arguments."""

    def all_reduce(self, buffer: Flat, op: ReduceOp = Sum) -> PendingCollective:
        """Reduce `buffer` over all ranks in place."""

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], op: ReduceOp = Sum) -> PendingCollective:
        """Reduce `buffer[bounds[r]:bounds[r + 1]]` over ranks to rank r, in place.

        Every element is folded in one order of the ranks, so its bits do not depend on `bounds`. The rest of `buffer`
        is undefined afterwards.
        """

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> PendingCollective:
        """Send `buffer[bounds[r]:bounds[r + 1]]` of rank r to every rank, in place."""

    def parallel_group(self) -> CollectiveGroup | None:
        """Return a group of the same ranks whose collectives need not wait for this one's; None if that is not faster.

        Collective.
        """

    def all_to_all(self, parts: Sequence[Flat], origins: Sequence[int] | None = None) -> PendingCollective:
        """Send `parts[r]` (1-d) to rank r; `wait` returns the received arrays by rank.

        `origins`: ranks from which this rank receives data, if all ranks know theirs.
        """

    def send_receive(self, source: Flat, to: int, target: Flat, origin: int) -> PendingCollective:
        """Send `source` (1-d) to rank `to`, and fill `target` with data from rank `origin`.

        Every rank sends to one rank and receives from one. Lengths may differ between pairs.
        """

    def memory_of(self, rank: int, buffer: Flat) -> Flat | None:
        """Return `rank`'s memory for the same `allocate` as `buffer`; writable. None if this process does not map it.

        The same on all ranks.
        """

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        """Return whether `update` accepts slices of these results of `allocate`. The same on all ranks. Collective."""

    def update(self, gradients: Flat, bounds: Sequence[int], op: ReduceOp, change: ChunkUpdate) -> None:
        """Reduce rank r's chunk of `gradients` on rank r, apply `change` to it, and write the weights to all ranks.

        The weights of all ranks are new when the next update, or this one if it is the last, returns; do not write to
        `gradients` before that. Bitwise equal to `reduce_scatter`, the update, `all_gather`.
        """

    def finish_updates(self) -> bool:
        """Complete the weights of the previous update now, if no update follows at once.

        Return False if they still wait.
        """

    def broadcast(self, buffer: Flat) -> None:
        """Overwrite `buffer` (1-d) with rank 0's on every rank."""

    def broadcast_object(self, value: Any, what: str) -> Any:
        """Return rank 0's JSON-safe `value` on every rank. `what`: a description that ranks compare."""

    def allgather_object(self, value: Any, what: str) -> list[Any]:
        """Return every rank's JSON-safe `value`, by rank. `what`: a description that ranks compare."""

    def gather_objects(self, value: Any, what: str) -> PendingCollective:
        """Begin `allgather_object`; `wait` returns its result."""


class ProcessGroup:
    """Ranks of a process set with a separate communicator. `rank` and roots count within the set.

    In-place collectives accept 1-d contiguous arrays in native byte order, cut at `bounds`: size + 1 ascending offsets
    from 0 to their length. Raises ConfigurationError for others, MismatchError if ranks disagree, PeerLost if one is
    lost.
    """

    def __init__(
        self,
        communicator: Communicator,
        executor: ProcessGroupExecutor,
        open_beside: Callable[[], ProcessGroup],
        closed: Callable[[], None],
    ) -> None:
        """Use an open communicator and executor.

        `open_beside`: opens another group of the same ranks with another executor; collective. `closed`: releases the
        group's resources after it accepts no more work.
        """
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
        """Run `work` after all work begun before, and return its result."""
        return self._executor.call(work, self.communicator)

    def begin(self, work: Callable[[Communicator], T]) -> Handle[T]:
        """Run `work` after all work begun before; return a handle for its result."""
        return self._executor.submit(lambda: work(self.communicator))

    def barrier(self) -> None:
        """Wait until every rank has called it."""
        if not short_barrier(self.short_allreduce):
            self.call(barrier())

    def close(self) -> None:
        """Accept no more work, also in the parallel groups, and release memory and descriptors."""
        self._executor.stop()
        for group in self._parallel_groups:
            group.close()
        self._closed()

    def allocate(self, length: int, dtype: Any) -> Flat:
        kind = np.dtype(dtype)
        memory: Flat = self.call(lambda communicator: communicator.allocate(length * kind.itemsize))
        return memory.view(kind)

    def all_reduce(self, buffer: Flat, op: ReduceOp = Sum, name: str | None = None) -> Handle[None]:
        """Reduce `buffer` over all ranks in place."""
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
        parallel = self._open_parallel_group()
        if isinstance(self.communicator, MemorySharingCommunicator) and isinstance(
            parallel.communicator, MemorySharingCommunicator
        ):
            parallel.communicator.use_memory_of(self.communicator)
        self._parallel_groups.append(parallel)
        return parallel

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
    """Cast `communicator`, for which `can_update` was called before; checking its protocol again would take 10 us."""
    return cast(UpdatingCommunicator, communicator)
