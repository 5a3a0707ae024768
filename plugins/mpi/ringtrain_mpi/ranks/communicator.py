"""Collectives by an MPI library, with the same results as those over the network.

MPI moves the bytes (all-to-all and all-gather: for a reduction the same 2(N - 1)/N of the payload as a ring), and this
module folds them in rank order. So every dtype works, and results are bitwise equal to other transports, except for
worlds of many pods (docs/decisions/0046-many-pods.md). MPI_Allreduce would fold in an order of the library's choice,
and does not support bfloat16.
"""

import hashlib
import itertools
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ringtrain.adapter.communicators import (
    Bounds,
    ExchangeCommunicator,
    Flat,
    PeersStalled,
    RankActivity,
    ReduceOp,
    ReductionFold,
    WireSignature,
    WorldMembership,
    cut_segments,
    even_bounds,
    inside_communicator_number,
    length_offsets,
    with_layout,
)
from ringtrain.errors import RingtrainError
from ringtrain_mpi.ranks.library import give_up, load_mpi_of_world, load_world

# Contributions are folded in pieces of this size, which limits scratch memory and fits the caches.
_PIECE_BYTES: Final = 4 << 20
# Most libraries store the number of elements of a buffer, and offsets in it, in a C int.
COUNT_MOST = 2**31 - 1
# MPI progresses only while it is called: first without a pause, then with one that uses no core.
_EAGER_S: Final = 1e-3
_PAUSE_S: Final = 50e-6
# Open requests of failed collectives: MPI may still write to their buffers.
_ABANDONED: list[tuple[Any, ...]] = []


Piece = list[tuple[int, int]]  # (start, end) of a part of every rank's chunk


class MpiCommunicator:
    """Communicator that moves data by MPI. `network`, a second connection between the ranks, finds lost peers and
    mismatches."""

    overlaps: Final = False
    # An exchange costs milliseconds; see bench/README.
    fusion_bytes: Final = 64 << 20

    def __init__(self, member: WorldMembership, process_set: int, network: ExchangeCommunicator) -> None:
        """Open the MPI communicator. Collective over the ranks of `network`.

        Raises ConfigurationError if MPI is missing or its world has other ranks.
        """
        world = load_world(member.ring.rank, member.ring.size)
        group = world.group.Incl(list(network.ranks))
        self._comm = world.Create_group(group, process_set % 32768)
        group.Free()
        self._member = member
        self._network = network
        self.ranks, self.position = network.ranks, network.position
        self._others = tuple(rank for rank in self.ranks if rank != member.ring.rank)
        self._set = inside_communicator_number(process_set)
        self._sequence = 0

    def all_reduce(self, what: WireSignature, source: Flat, target: Flat, op: ReduceOp) -> None:
        bounds = even_bounds(len(source), len(self.ranks))
        activity = self._begin(what)
        for piece in self._pieces(bounds, source.itemsize):
            own = target[slice(*piece[self.position])]
            self._fold(activity, source, piece, own, op)
            self._gather(activity, target, piece)

    def reduce_scatter(self, what: WireSignature, source: Flat, bounds: Bounds, target: Flat, op: ReduceOp) -> None:
        start = bounds[self.position]
        activity = self._begin(with_layout(what, bounds))
        for piece in self._pieces(bounds, source.itemsize):
            first, last = piece[self.position]
            self._fold(activity, source, piece, target[first - start : last - start], op)

    def all_gather(self, what: WireSignature, buffer: Flat, bounds: Bounds) -> None:
        activity = self._begin(with_layout(what, bounds))
        self._gather(activity, buffer, list(itertools.pairwise(bounds)))

    def all_gather_parts(self, what: WireSignature, part: Flat) -> list[Flat]:
        activity = self._begin(what)
        lengths = np.empty(len(self.ranks), np.int64)
        self._wait(activity, self._comm.Iallgather(np.array([len(part)], np.int64), lengths))
        whole = np.empty(int(lengths.sum()), part.dtype)
        cuts = length_offsets([int(length) for length in lengths])
        whole[cuts[self.position] : cuts[self.position + 1]] = part
        self._gather(activity, whole, list(itertools.pairwise(cuts)))
        return [whole[start:end] for start, end in itertools.pairwise(cuts)]

    def broadcast(self, what: WireSignature, buffer: Flat, root: int) -> None:
        activity = self._begin(what)
        self._broadcast_chunk(activity, buffer, root)

    def all_to_all(
        self, what: WireSignature, parts: Sequence[Flat], origins: Sequence[int] | None = None
    ) -> list[Flat]:
        activity = self._begin(what)
        sent = np.array([len(part) for part in parts], np.int64)
        received = np.empty_like(sent)
        self._wait(activity, self._comm.Ialltoall(sent, received), sent, received)
        # Sender and receiver of a long part both know its length.
        most, kind = COUNT_MOST // len(self.ranks), _mpi_type_of(parts[0])
        short_sent, short_received = (np.where(lengths <= most, lengths, 0) for lengths in (sent, received))
        outgoing = np.concatenate(
            [_mpi_raw_buffer(part[:length]) for part, length in zip(parts, short_sent, strict=True)]
        )
        incoming = np.empty(int(short_received.sum()), outgoing.dtype)
        cuts = length_offsets(short_received.tolist())
        sending = [outgoing, short_sent.tolist(), length_offsets(short_sent.tolist())[:-1], kind]
        receiving = [incoming, short_received.tolist(), cuts[:-1], kind]
        self._wait(activity, self._comm.Ialltoallv(sending, receiving), outgoing, incoming)
        result = [incoming[start:end] for start, end in itertools.pairwise(cuts)]
        long_sent = {p: _mpi_raw_buffer(parts[p]) for p in np.flatnonzero(sent > most).tolist()}
        long_received = {p: np.empty(received[p], outgoing.dtype) for p in np.flatnonzero(received > most).tolist()}
        self._exchange(activity, long_sent, long_received, kind)
        return [long_received.get(p, part).view(parts[0].dtype) for p, part in enumerate(result)]

    def send_receive(self, what: WireSignature, source: Flat, to: int, target: Flat, origin: int) -> None:
        parts = [source if position == to else source[:0] for position in range(len(self.ranks))]
        target[...] = self.all_to_all(what, parts)[origin]

    def barrier(self, what: WireSignature) -> None:
        self._begin(what)

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        return np.zeros(nbytes, np.uint8)

    def close(self) -> None:
        if self._member.failure_state.failure is None:
            self._comm.Free()
        self._network.close()

    def _begin(self, what: WireSignature) -> RankActivity:
        """Begin a collective: check in one MPI call of 16 bytes that all ranks have the same signature `what`."""
        self._member.failure_state.check()
        self._sequence += 1
        key = (self._set, self._sequence)
        activity = self._member.activity(key, what)
        self._member.offers.begin(key, what, self._others)
        mine = np.array([_mpi_signature_digest(what), -_mpi_signature_digest(what)], np.int64)
        all_of_us = np.empty_like(mine)
        self._wait(activity, self._comm.Iallreduce(mine, all_of_us, load_mpi_of_world().MAX), mine, all_of_us)
        self._member.offers.end(key)  # all ranks have joined
        if (all_of_us != mine).any():
            # The network compares the full signatures, and makes all ranks raise the same error.
            self._network.compare(what, self._sequence)
            raise RingtrainError(
                f"{activity.label}: MPI reports that ranks differ, but a comparison finds no difference: a defect in "
                "ringtrain or MPI"
            )
        return activity

    def _pieces(self, bounds: Bounds, itemsize: int) -> Iterator[Piece]:
        """Yield pieces of bounded size; each has the begin and end of a part of every rank's chunk."""
        step = max(1, _PIECE_BYTES // itemsize // len(self.ranks))
        chunks = list(itertools.pairwise(bounds))
        longest = max(end - start for start, end in chunks)
        for at in range(0, longest, step):
            yield [(min(start + at, end), min(start + at + step, end)) for start, end in chunks]

    def _fold(self, activity: RankActivity, source: Flat, piece: Piece, out: Flat, op: ReduceOp) -> None:
        """Fold every rank's contribution to this rank's part of `piece` into `out`."""
        size, length = len(self.ranks), len(out)
        arrived = np.empty((size, length), source.dtype)
        kind, raw, places = _mpi_type_of(source), _mpi_raw_buffer(source), [start for start, _ in piece]
        lengths = [end - start for start, end in piece]
        if len(raw) > COUNT_MOST:
            raw = np.concatenate([raw[start:end] for start, end in piece])
            places = list(length_offsets(lengths)[:-1])
        sending = [raw, lengths, places, kind]
        receiving = [
            _mpi_raw_buffer(arrived.reshape(-1)),
            [length] * size,
            [p * length for p in range(size)],
            kind,
        ]
        self._wait(activity, self._comm.Ialltoallv(sending, receiving), raw, arrived)
        ReductionFold(op, source.dtype, size, self.position).fold(iter(arrived), out)

    def _gather(self, activity: RankActivity, buffer: Flat, piece: Piece) -> None:
        """Send each rank's part of `piece` to all other ranks."""
        if len(buffer) > COUNT_MOST:
            for position, (start, end) in enumerate(piece):
                self._broadcast_chunk(activity, buffer[start:end], position)
            return
        raw = _mpi_raw_buffer(buffer)
        layout = [raw, [end - start for start, end in piece], [start for start, _ in piece], _mpi_type_of(buffer)]
        self._wait(activity, self._comm.Iallgatherv(load_mpi_of_world().IN_PLACE, layout), raw)

    def _exchange(self, activity: RankActivity, sent: dict[int, Flat], received: dict[int, Flat], kind: Any) -> None:
        """Send each buffer in `sent` and fill each buffer in `received`. The keys are positions of ranks in the process
        set.

        A buffer in `sent` goes to the rank at its key; a buffer in `received` is filled by the rank at its key.
        """
        ways = [(self._comm.Irecv, received), (self._comm.Isend, sent)]
        requests = [
            begin([buffer[cut], kind], position)
            for begin, buffers in ways
            for position, buffer in buffers.items()
            for cut in _mpi_counted_buffer(buffer)
        ]
        for request in requests:
            self._wait(activity, request, *received.values(), *sent.values())

    def _broadcast_chunk(self, activity: RankActivity, buffer: Flat, root: int) -> None:
        """Fill `buffer` on all ranks with the buffer of the rank at position `root`."""
        raw = _mpi_raw_buffer(buffer)
        for cut in _mpi_counted_buffer(raw):
            part = raw[cut]
            self._wait(activity, self._comm.Ibcast([part, len(part), _mpi_type_of(buffer)], root), part)

    def _wait(self, activity: RankActivity, request: Any, *buffers: Flat) -> None:
        """Wait until the MPI `request` is done. Raises the world's failure, on all ranks, if a peer is lost."""
        started = time.monotonic()
        while not request.Test():
            waited_s = time.monotonic() - started
            if self._member.failure_state.failure is not None or waited_s >= self._member.ring.stall_timeout_s:
                _ABANDONED.append((request, *buffers))
                self._fail(activity, waited_s)
            if waited_s > _EAGER_S:
                time.sleep(_PAUSE_S)

    def _fail(self, activity: RankActivity, waited_s: float) -> NoReturn:
        if self._member.failure_state.failure is None:
            self._member.monitor.report(PeersStalled(self._others, waited_s, activity))
        try:
            self._member.raise_failure(activity)
        finally:
            failure = self._member.failure_state.failure
            if (
                failure is None or failure.kind == "lost"
            ):  # after a mismatch all ranks can still take part in MPI_Finalize
                give_up()


@lru_cache(maxsize=4096)  # the same signatures are needed in every step
def _mpi_signature_digest(what: WireSignature) -> int:
    """Return a digest of 63 bits of a signature, so that MPI can compare signatures between ranks."""
    return int.from_bytes(hashlib.blake2b(what.encode(), digest_size=8).digest(), "big") >> 1


def _mpi_counted_buffer(array: Flat) -> list[slice]:
    """Return slices of `array`, each short enough for MPI, whose counts are 32-bit integers."""
    return cut_segments(0, len(array), COUNT_MOST)


def _mpi_raw_buffer(array: Flat) -> Flat:
    """Return the bits of `array` as unsigned integers of its item size, because MPI does not support bfloat16."""
    return array.view(f"u{array.itemsize}")


def _mpi_type_of(array: Flat) -> Any:
    mpi = load_mpi_of_world()
    return {1: mpi.UINT8_T, 2: mpi.UINT16_T, 4: mpi.UINT32_T, 8: mpi.UINT64_T}[array.itemsize]
