"""Memory for what is read from the network and folded at once."""

import numpy as np
from numpy.typing import NDArray

from ringtrain.reduction.fold import Flat


class ScratchBuffers:
    """Buffers that are used again for segment after segment: fresh memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._buffers: dict[int, NDArray[np.uint8]] = {}

    def like(self, segment: Flat, number: int) -> Flat:
        """Return buffer `number` as an array of `segment`'s length and dtype. What was in it is lost."""
        buffer = self._buffers.get(number)
        if buffer is None or buffer.nbytes < segment.nbytes:
            buffer = self._buffers[number] = np.empty(segment.nbytes, np.uint8)
        return buffer[: segment.nbytes].view(segment.dtype)
