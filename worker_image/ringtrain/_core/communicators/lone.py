"""A pod of one rank, where a tree of pods asks for a group that shares memory."""

from typing import Final

from ringtrain._core.communicators.shm.native import Work
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.wire.signature import Signature


class LoneRank:
    """In the place of a `SharedGroup`. It meets nobody: what differs between ranks is found between pods."""

    position: Final = 0

    def __init__(self, rank: int) -> None:
        self.ranks = (rank,)

    def run(self, what: Signature, work: Work) -> None:
        """Copy this rank's contribution to `work.partial`; what is gathered is in its place already."""
        if work.partial is not None:
            ((start, end),) = work.chunks
            work.partial[...] = work.source[start:end]

    def mapped(self, what: Signature, buffer: Flat) -> None:
        """Nobody else is here who could read `buffer`."""

    def close(self) -> None:
        """There is nothing to give back."""
