"""Interface to the compiled engine of shared memory (`kernels/native/shm.c`)."""

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
    """Return the adjacent chunks at `bounds`."""
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
    """Reduction that every rank computes by itself: prepared once for each signature, run many times."""

    struct: JobStruct
    what: WireSignature


@dataclass(frozen=True)
class ShmCollective:
    """One collective. Fields that it does not need are None.

    `chunks`: begin and end of every rank's chunk in the whole buffer. `source`: the whole buffer, read-only. `op`:
    reduction, or None if each rank only publishes its chunk of `source`. `own`: array that receives its chunk.
    `gathered`: the whole buffer, receives every rank's chunk; may be `source`. `before`: array to fold into this rank's
    chunk before rank 0's contribution. `partial`: array that receives the fold of this rank's chunk without division,
    in the accumulator's dtype, instead of `own`. `average_over`: number of contributions of an average. `whole`: the
    chunks cover the buffer, `own` and `gathered` are set, `op` is set unless the buffer is empty, and no other field
    is: such short buffers have a fast path. `pieces`: the parts of `source` if they are not contiguous; then only
    length and dtype of `source` are used.
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
    """One rank's end of a segment."""

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
        """Run `work` together with all other ranks. The channel is unusable after any result but DONE.

        `what` is compared between ranks: MISMATCH if it differs; use `WireSignature.compared`. `peers`: addresses of
        each rank's `work.source`, if this process maps them all. `timeout_s`: longest time without progress of the
        awaited rank, which `blamed` then names.
        """
        job = self._job(what, work, timeout_s)
        addresses = None if peers is None else self._addresses(peers)
        job.peers = None if addresses is None else ctypes.addressof(addresses)
        return self._repeat(self._library.ringtrain_shm_run, job, self.is_short(work.source) and work.whole)

    def is_short(self, buffer: Flat) -> bool:
        """Return whether it is faster if every rank folds all of `buffer` itself."""
        return buffer.nbytes <= self._small_bytes

    def short_job(self, what: WireSignature, like: Flat, op: ReduceOp | None, timeout_s: float) -> ShmShortReduction:
        """Return the arguments of compiled code for reductions of arrays like `like`, without addresses."""
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
        """Return the `ShortCalls` of `kernels/native/calls.c`; None if that is not compiled."""
        calls = native_calls()
        if calls is None:
            return None
        measured.follow(calls.take_spent)
        run = ctypes.cast(self._library.ringtrain_shm_run, ctypes.c_void_p).value
        channel = ctypes.addressof(self._channel)
        of_numpy = np.ndarray, np.empty, _lies_at
        return calls.ShortCalls(run, channel, turn, is_traced, find, go_on, give_up, *of_numpy, self)

    def go_on(self, job: ShmShortReduction, outcome: ShmResult) -> ShmResult:
        """Wait for other ranks after compiled code has returned AGAIN; the job's arrays must still exist."""
        if outcome is ShmResult.AGAIN:
            job.struct.hasty = 0
            return self._repeat(self._library.ringtrain_shm_run, job.struct, True)
        self.blamed = job.struct.blamed
        return outcome

    @property
    def collectives(self) -> int:
        """Return the number of completed collectives."""
        return int(self._channel.collective)

    def update(
        self,
        what: bytes,
        work: ShmCollective,
        change: ChunkUpdate,
        timeout_s: float,
        peers: tuple[Addresses, Addresses],
    ) -> ShmResult:
        """Reduce `work.source` and update this rank's chunk of the weights, on all ranks.

        `peers`: addresses of each rank's `work.source` and `change.weights`. Otherwise as `run`; `work.source` is
        undefined afterwards, and must not be written before the next barrier.
        """
        job = self._job(what, work, timeout_s)
        gradients, weights = map(self._addresses, peers)
        job.peers = ctypes.addressof(gradients)
        update = native_update(change, weights)
        return self._repeat(self._library.ringtrain_shm_update, job, ctypes.byref(update))

    def barrier_job(self, what: bytes, like: Flat, timeout_s: float) -> JobStruct:
        """Return the argument of `barrier`. `like`: any array of the compared dtype."""
        return self._job(what, ShmCollective(((0, 0),) * self._size, like), timeout_s)

    def barrier(self, job: JobStruct, waits: bool) -> ShmResult:
        """Run a barrier, after which the earlier writes of all ranks are visible. Otherwise as `run`.

        Returns AGAIN if others have not arrived and `waits` is False: it must then be called again, before any other
        collective.
        """
        job.hasty = not waits
        return self._repeat(self._library.ringtrain_shm_meet, job)

    def _repeat(self, function: Callable[..., int], job: JobStruct, *arguments: Any) -> ShmResult:
        """Call compiled code until it is done.

        It returns AGAIN after a signal, so that Python runs the handler, or for a hasty job.
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
        """Make `run` return STOPPED, from any thread, if it waits or would wait."""
        self._stop.value = 1

    def signature_of(self, rank: int) -> bytes:
        """Return the signature that `rank` published in the collective that ended with MISMATCH."""
        at = rank * RANK_HEAD_BYTES + COUNTERS_BYTES
        at += self._channel.collective % PARITIES * SIGNATURE_BYTES
        length = int.from_bytes(self._memory[at : at + 4], "little")
        return bytes(self._memory[at + 4 : at + 4 + length])

    def close(self, timeout_s: float) -> bool:
        """Report to waiting ranks that this one leaves, and end calls in other threads.

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
    """Return the required length of a segment."""
    library.ringtrain_shm_bytes.restype = ctypes.c_uint64
    return int(library.ringtrain_shm_bytes(ctypes.c_int(size), ctypes.c_uint64(chunk_bytes)))


@functools.lru_cache(maxsize=1024)  # the same buckets are needed in every step
def _chunks_array(chunks: Chunks) -> Any:
    return (ctypes.c_int64 * (2 * len(chunks)))(*(c[0] for c in chunks), *(c[1] for c in chunks))


def _lies_at(array: NDArray[Any]) -> int | None:
    """Return the address of an array whose dtype Python's buffers do not support; None if it can't be used directly."""
    return int(array.ctypes.data) if array.flags.carray else None


def _shm_buffer_address(buffer: Flat | None) -> int | None:
    return None if buffer is None else address_of(buffer)


def _shm_pieces(pieces: Sequence[Flat]) -> NDArray[np.int64]:
    """Return the offset in the buffer and the address of each piece; the row after the last has the end of the
    buffer.
    """
    table = np.zeros((len(pieces) + 1, 2), np.int64)
    np.cumsum([len(piece) for piece in pieces], out=table[1:, 0])
    table[:-1, 1] = [address_of(piece) for piece in pieces]
    return table


def _shm_spin_s(size: int) -> float:
    """Return the time to poll before sleeping: 0 if another rank needs this core.

    About as long as sleeping and waking take: with half of it, ranks that had slept in a barrier found each other
    asleep repeatedly. With four times as much, two ranks that shared a core took 230 us for 4 KiB instead of 70.
    """
    return 60e-6 if size <= len(os.sched_getaffinity(0)) else 0.0


def accumulator_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which `dtype` is folded."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype
