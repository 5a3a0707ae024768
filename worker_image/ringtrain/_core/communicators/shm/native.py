"""Python interface to the compiled shared-memory collectives (`kernels/native/shm.c`)."""

import ctypes
import functools
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.communicators.base import SharedCommunicatorTurn
from ringtrain._core.kernels.library import address_of, native_calls
from ringtrain._core.kernels.structures import (
    COUNTERS_BYTES,
    PARITIES,
    RANK_HEAD_BYTES,
    SIGNATURE_BYTES,
    ChannelStruct,
    JobStruct,
)
from ringtrain._core.kernels.update import ChunkUpdate, native_update
from ringtrain._core.reduction.cuts import Bounds, even_bounds
from ringtrain._core.reduction.fold import OP_CODES, Flat
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain._core.wire.dtypes import CODES, dtype_name
from ringtrain._core.wire.signature import WireSignature
from ringtrain.step_time import measured

_SMALL_BYTES: Final = 64 << 10

Chunks = tuple[tuple[int, int], ...]
Addresses = Sequence[int]  # one for each rank


@functools.lru_cache(maxsize=4096)
def chunks_of(bounds: Bounds) -> Chunks:
    """Return the (begin, end) pairs of the chunks between successive `bounds`."""
    return tuple(itertools.pairwise(bounds))


class ShmResult(IntEnum):
    DONE = 0
    AGAIN = 1
    TIMEOUT = 2
    STOPPED = 3
    MISMATCH = 4
    LEFT = 5


_RESULTS: Final = tuple(ShmResult)  # by value: a lookup in the class takes longer


class ShmShortReduction(NamedTuple):
    """Prepared arguments of a short reduction, reused in each call with the same signature."""

    struct: JobStruct
    what: WireSignature


@dataclass(frozen=True)
class ShmCollective:
    """Description of one shared-memory collective. Fields that it does not need are None.

    `chunks`: begin and end of every rank's chunk in the whole buffer. `source`: the whole buffer, read-only. `op`:
    reduction, or None if each rank only publishes its chunk of `source`. `own`: array that receives this rank's chunk.
    `gathered`: the whole buffer, receives every rank's chunk; may be `source`. `before`: array to fold into this rank's
    chunk before rank 0's contribution. `partial`: array that receives the fold of this rank's chunk without division,
    in the accumulator's dtype, instead of `own`. `average_over`: number of contributions of an average. `whole`:
    whether the chunks cover the buffer, `own`, `gathered` and (unless the buffer is empty) `op` are set, and all other
    fields are None; if such a buffer is short, it has a fast path. `pieces`: the parts of `source` if they are not
    contiguous; then only length and dtype of `source` are used.
    """

    chunks: Chunks
    source: Flat
    op: ReduceOp | None = None
    own: Flat | None = None
    gathered: Flat | None = None
    before: Flat | None = None
    partial: Flat | None = None
    average_over: int = 0
    whole: bool = False
    pieces: Sequence[Flat] | None = None


class ShmNativeChannel:
    """One rank's access to a shared-memory segment through compiled code."""

    def __init__(self, library: ctypes.CDLL, memory: mmap.mmap, rank: int, size: int, chunk_bytes: int) -> None:
        self._library = library
        self._stop = ctypes.c_uint32(0)
        self._memory = memory
        self._view = (ctypes.c_char * len(memory)).from_buffer(memory)
        self._size = size
        # If every rank folds everything, size × bytes are folded but one barrier is saved; see bench/README.
        self._small_bytes = min(chunk_bytes, _SMALL_BYTES // size)
        self._channel = ChannelStruct(
            base=ctypes.addressof(self._view), rank=rank, size=size, chunk_bytes=chunk_bytes,
            spin_s=_shm_spin_s(size), stop=ctypes.addressof(self._stop),
        )  # fmt: skip
        self._reference = ctypes.byref(self._channel)
        self.blamed = -1
        self._in_use = threading.Lock()  # locked while compiled code uses the segment
        self._user = 0  # the thread that owns it
        self._closed = False

    def run(self, what: bytes, work: ShmCollective, timeout_s: float, peers: Addresses | None = None) -> ShmResult:
        """Run the collective `work` together with all other ranks. After any result but DONE this object is unusable.

        `what` is compared between ranks: MISMATCH if it differs; use `WireSignature.compared`. `peers`: addresses of
        each rank's `work.source`, if this process maps them all. `timeout_s`: longest time without progress of the
        awaited rank, which `blamed` then names.
        """
        job = self._job(what, work, timeout_s)
        addresses = None if peers is None else self._addresses(peers)
        job.peers = None if addresses is None else ctypes.addressof(addresses)
        return self._repeat(self._library.ringtrain_shm_run, job, self.is_short(work.source) and work.whole)

    def is_short(self, buffer: Flat) -> bool:
        """Return whether `buffer` is so short that folding all of it on every rank is faster than another barrier."""
        return buffer.nbytes <= self._small_bytes

    def short_job(self, what: WireSignature, like: Flat, op: ReduceOp | None, timeout_s: float) -> ShmShortReduction:
        """Return the prepared arguments for short reductions of arrays with the shape and dtype of `like`."""
        chunks, flat = chunks_of(even_bounds(like.size, self._size)), like.reshape(-1)
        work = ShmCollective(chunks, flat, op, own=flat, gathered=flat, average_over=self._size, whole=True)
        return ShmShortReduction(self._job(what.compared, work, timeout_s), what)

    def short_calls(
        self,
        turn: SharedCommunicatorTurn,
        is_traced: Callable[[], bool],
        find: Callable[[NDArray[Any], ReduceOp, str | None], tuple[int, ShmShortReduction] | None],
        go_on: Callable[[ShmShortReduction, int], None],
        give_up: Callable[[ShmShortReduction, BaseException], None],
    ) -> Any:
        """Return the object that runs short reductions in compiled code; None if `calls.c` is not compiled.

        `turn`: lock for collectives. `is_traced`: returns whether a timeline is written. `find`: returns the address
        and the object of the prepared arguments for an array, operation and name, or None for the normal path. `go_on`:
        waits for late ranks. `give_up`: ends the world after an error.
        """
        calls = native_calls()
        if calls is None:
            return None
        measured.follow(calls.take_spent)
        run = ctypes.cast(self._library.ringtrain_shm_run, ctypes.c_void_p).value
        channel = ctypes.addressof(self._channel)
        of_numpy = np.ndarray, np.empty, _lies_at
        return calls.ShortCalls(run, channel, turn, is_traced, find, go_on, give_up, *of_numpy, self)

    def go_on(self, job: ShmShortReduction, outcome: ShmResult) -> ShmResult:
        """Wait for late ranks after compiled code has returned AGAIN. The job's arrays must still exist."""
        if outcome is ShmResult.AGAIN:
            job.struct.hasty = 0
            return self._repeat(self._library.ringtrain_shm_run, job.struct, True)
        self.blamed = job.struct.blamed
        return outcome

    @property
    def collectives(self) -> int:
        """Return the number of collectives that this rank has completed in the segment."""
        return int(self._channel.collective)

    def update(
        self,
        what: bytes,
        work: ShmCollective,
        change: ChunkUpdate,
        timeout_s: float,
        peers: tuple[Addresses, Addresses],
    ) -> ShmResult:
        """Reduce `work.source`, update this rank's chunk of the weights by `change`, and write the chunk to all ranks.

        `peers`: addresses of each rank's `work.source` and `change.weights`. The other arguments and the result are
        those of `run`. Afterwards `work.source` is undefined, and must not be written before the next barrier.
        """
        job = self._job(what, work, timeout_s)
        gradients, weights = map(self._addresses, peers)
        job.peers = ctypes.addressof(gradients)
        update = native_update(change, weights)
        return self._repeat(self._library.ringtrain_shm_update, job, ctypes.byref(update))

    def barrier_job(self, what: bytes, like: Flat, timeout_s: float) -> JobStruct:
        """Return the prepared arguments of `barrier`. `like`: any array of the dtype that ranks compare."""
        return self._job(what, ShmCollective(((0, 0),) * self._size, like), timeout_s)

    def barrier(self, job: JobStruct, waits: bool) -> ShmResult:
        """Run a barrier, after which earlier writes of all ranks are visible. Returns the same results as `run`.

        Returns AGAIN if others have not arrived and `waits` is False: call `barrier` again then, before any other
        collective.
        """
        job.hasty = not waits
        return self._repeat(self._library.ringtrain_shm_meet, job)

    def _repeat(self, function: Callable[..., int], job: JobStruct, *arguments: Any) -> ShmResult:
        """Call compiled code until it returns another result than AGAIN, and return that result.

        Compiled code returns AGAIN after a signal, so that Python runs the handler. It also returns AGAIN for a hasty
        job, whose ranks have not all arrived; AGAIN is then the result.
        """
        with self._in_use:
            if self._closed:
                return ShmResult.STOPPED
            self._user = threading.get_ident()
            reference = ctypes.byref(job)
            try:
                while (outcome := function(self._reference, reference, *arguments)) == ShmResult.AGAIN:
                    if job.hasty:
                        break
            finally:  # a signal handler may have raised
                self._user = 0
            self.blamed = job.blamed
            return _RESULTS[outcome]

    def _addresses(self, of_ranks: Addresses) -> Any:
        return (ctypes.c_void_p * self._size)(*of_ranks)

    def stop(self) -> None:
        """Make every call of `run` that waits, now or later, return STOPPED. Any thread may call this."""
        self._stop.value = 1

    def signature_of(self, rank: int) -> bytes:
        """Return the signature of `rank` in the collective that ended with MISMATCH."""
        at = rank * RANK_HEAD_BYTES + COUNTERS_BYTES
        at += self._channel.collective % PARITIES * SIGNATURE_BYTES
        length = int.from_bytes(self._memory[at : at + 4], "little")
        return bytes(self._memory[at + 4 : at + 4 + length])

    def close(self, timeout_s: float) -> bool:
        """Leave the segment: waiting ranks are notified, and calls in other threads end.

        The channel can't be used afterwards. Return whether the segment is unused: False if a call has not ended within
        `timeout_s`, or runs in this thread, whose signal handler closes the world.
        """
        if self._closed:
            return True
        self.stop()
        self._library.ringtrain_shm_leave(ctypes.byref(self._channel))
        if self._user == threading.get_ident() or not self._in_use.acquire(timeout=timeout_s):
            return False
        self._closed = True
        self._channel.base = None
        del self._view
        self._in_use.release()
        return True

    def _job(self, what: bytes, work: ShmCollective, timeout_s: float) -> JobStruct:
        if len(what) > SIGNATURE_BYTES - 4:  # a truncated signature must not be compared
            raise ValueError(
                f"the signature has {len(what)} bytes; a slot of the shared memory holds {SIGNATURE_BYTES - 4}"
            )
        chunks = _chunks_array(work.chunks)
        job = JobStruct(
            what=what,
            what_bytes=len(what),
            dtype=CODES[dtype_name(work.source.dtype)],
            op=OP_CODES[work.op] if work.op is not None else 0,
            divisor=work.average_over if work.op is ReduceOp.Average else 0,
            reduces=work.op is not None,
            chunks=ctypes.addressof(chunks),
            source=address_of(work.source),
            own=_shm_buffer_address(work.own),
            gathered=_shm_buffer_address(work.gathered),
            before=_shm_buffer_address(work.before),
            partial=_shm_buffer_address(work.partial),
            timeout_s=timeout_s,
        )
        job.keeps = [chunks]  # alive as long as the job
        if work.pieces is not None:
            pieces = _shm_pieces(work.pieces)
            job.keeps.append(pieces)
            job.pieces = address_of(pieces)
        return job


def shm_bytes(library: ctypes.CDLL, size: int, chunk_bytes: int) -> int:
    """Return the length in bytes of a shared-memory segment for `size` ranks and chunks of `chunk_bytes` bytes."""
    library.ringtrain_shm_bytes.restype = ctypes.c_uint64
    return int(library.ringtrain_shm_bytes(ctypes.c_int(size), ctypes.c_uint64(chunk_bytes)))


@functools.lru_cache(maxsize=1024)  # the same buckets are needed in every step
def _chunks_array(chunks: Chunks) -> Any:
    return (ctypes.c_int64 * (2 * len(chunks)))(*(c[0] for c in chunks), *(c[1] for c in chunks))


def _lies_at(array: NDArray[Any]) -> int | None:
    """Return the address of an array's data; None if it is not contiguous, aligned and writable."""
    return int(array.ctypes.data) if array.flags.carray else None


def _shm_buffer_address(buffer: Flat | None) -> int | None:
    return None if buffer is None else address_of(buffer)


def _shm_pieces(pieces: Sequence[Flat]) -> NDArray[np.int64]:
    """Return a table with offset and address of each piece, and a last row with the total length."""
    table = np.zeros((len(pieces) + 1, 2), np.int64)
    np.cumsum([len(piece) for piece in pieces], out=table[1:, 0])
    table[:-1, 1] = [address_of(piece) for piece in pieces]
    return table


def _shm_spin_s(size: int) -> float:
    """Return how long a rank polls before it sleeps, in seconds: 0 if there are fewer cores than ranks.

    The time is about as long as sleeping and waking take: with half of it, ranks that had slept in a barrier found each
    other asleep repeatedly. With four times as much, two ranks that shared a core took 230 us for 4 KiB instead of 70.
    """
    return 60e-6 if size <= len(os.sched_getaffinity(0)) else 0.0


def accumulator_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which contributions of `dtype` are folded: float32 for 16-bit types, else `dtype`."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype
