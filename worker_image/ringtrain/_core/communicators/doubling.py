"""All-gather in log2 N steps by the doubling of Bruck et al. 1997 ("Efficient Algorithms for All-to-All Communications
in Multiport Message-Passing Systems").

In step k rank r reads from rank r + 2**k all parts that it has by then: its own and those of the ranks behind it, up to
r + 2**(k + 1) - 1. So a rank reads from log2 N ranks instead of N - 1, with the same number of bytes.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.communicators.steps import ExchangeSteps
from ringtrain._core.reduction.cuts import Bounds, cut_segments, length_offsets
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.transport.base import TransportCaller
from ringtrain._core.wire.messages import WireFrame, WireStep
from ringtrain._core.wire.signature import WireSignature, with_layout

# More ranks have fewer partners this way: bench/README has the measurements.
RANKS_MOST_DIRECT: Final = 3
# Up to this number all ranks are connected anyway, and long parts are sent directly: see bench/scale/ring.md.
LONG_RANKS_MOST_DIRECT: Final = 16
# Longer parts are faster in one hop than in several.
PART_BYTES_MOST: Final = 16 << 10


class RecursiveDoubling:
    """All-gathers in log2 N steps: `gather` for parts of at most `PART_BYTES_MOST`, `gather_in_place` for longer ones.

    `steps`: exchange steps between the ranks of the process set.
    """

    def __init__(self, steps: ExchangeSteps) -> None:
        self._steps = steps
        self._size = len(steps.ranks)
        self._shifts = [1 << k for k in range((self._size - 1).bit_length())]

    def gather(self, what: WireSignature, part: Flat, lengths: Sequence[int]) -> list[Flat]:
        """Return the `part` of every rank, in the order of the set's ranks. `lengths`: elements of each part."""
        steps, size = self._steps, self._size
        order = [(steps.position + shift) % size for shift in range(size)]
        bounds = length_offsets([lengths[position] for position in order])
        buffer = np.empty(bounds[-1], part.dtype)
        buffer[: bounds[1]] = part
        held = 1

        def holds(count: int) -> bool:
            return held >= count

        def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
            for step, shift in enumerate(self._shifts):
                if rank == steps.ranks[order[-shift]]:
                    call.wait_until(partial(holds, shift), caller)
                    yield call.frame(WireStep.RESULT, step, buffer[: bounds[min(shift, size - shift)]])

        what = with_layout(what, (steps.segment_bytes, *what.layout))
        call = steps.call_among(self._peers(1), what, frames_for, buffer.nbytes, takers=self._peers(-1))
        with call:
            for step, shift in enumerate(self._shifts):
                end = min(2 * shift, size)
                call.read(steps.ranks[order[shift]], WireStep.RESULT, step, buffer[bounds[shift] : bounds[end]])
                held = end
                call.offer_changed()
        places = [(position - steps.position) % size for position in range(size)]
        return [buffer[bounds[place] : bounds[place + 1]] for place in places]

    def gather_in_place(self, what: WireSignature, buffer: Flat, bounds: Bounds) -> None:
        """Fill `buffer` with the chunks of all ranks, at `bounds`. Each segment is forwarded as soon as it arrives."""
        steps, size = self._steps, self._size
        length = max(1, steps.segment_bytes // buffer.itemsize)
        # Number of received elements, from this rank's chunk on, cyclic.
        held = bounds[steps.position + 1] - bounds[steps.position]

        def cuts(first: int, shift: int) -> list[slice]:
            """Return the slices that the rank at position `first` sends in the step with distance `shift`."""
            end = first + min(shift, size - shift)
            behind = cut_segments(0, bounds[end - size], length) if end > size else []
            return cut_segments(bounds[first], bounds[min(end, size)], length) + behind

        def holds(count: int) -> bool:
            return held >= count

        def frames_for(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
            shift = (steps.position - steps.ranks.index(rank)) % size
            count = 0
            for index, cut in enumerate(cuts(steps.position, shift)):
                count += cut.stop - cut.start
                call.wait_until(partial(holds, count), caller)
                yield call.frame(WireStep.RESULT, index, buffer[cut])

        what = with_layout(what, (steps.segment_bytes, *what.layout, *bounds))
        peers, takers = self._peers(1), self._peers(-1)
        call = steps.call_among(peers, what, frames_for, buffer.nbytes, takers=takers)
        with call:
            for peer, shift in zip(peers, self._shifts, strict=True):
                for index, cut in enumerate(cuts((steps.position + shift) % size, shift)):
                    call.read(peer, WireStep.RESULT, index, buffer[cut])
                    held += cut.stop - cut.start
                    call.offer_changed()

    def lengths(self, what: WireSignature, length: int) -> NDArray[np.int64]:
        """Return the `length` that each rank has passed, in the order of the set's ranks."""
        return np.concatenate(self.gather(what, np.array([length], np.int64), [1] * self._size))

    def _peers(self, sign: int) -> tuple[int, ...]:
        """Return the ranks from which this rank reads, one per step; with `sign` -1, the ranks that read from it."""
        steps = self._steps
        return tuple(steps.ranks[(steps.position + sign * shift) % self._size] for shift in self._shifts)
