"""Memory for what is read from the network and folded at once."""

import numpy as np
from numpy.typing import NDArray

from ringtrain.reduction.fold import Flat


class Rooms:
    """Buffers that are used again for segment after segment: fresh memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._rooms: dict[int, NDArray[np.uint8]] = {}

    def like(self, segment: Flat, number: int) -> Flat:
        """Return room `number` as an array of `segment`'s length and dtype. What was in it is lost."""
        room = self._rooms.get(number)
        if room is None or room.nbytes < segment.nbytes:
            room = self._rooms[number] = np.empty(segment.nbytes, np.uint8)
        return room[: segment.nbytes].view(segment.dtype)
