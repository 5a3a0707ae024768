"""Detection of memory corruption: each update checks another part of a rank's weights and state.

Between two updates nothing may change. If the digest of a part before an update differs from the one after the previous
update, this rank's memory is wrong. Owners and replicas also compare their digests of each part of a shard. If these
differ and no rank's memory changed, one of them has been wrong for longer, or has computed wrongly. With two copies it
is unknown which; of three it is the one that differs from two equal ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from ringtrain._core.process_groups.group import Flat
from ringtrain.errors import StateCorrupt
from ringtrain.optim.mirror import OptimizerShardMirror
from ringtrain.optim.pipeline import UpdateContext

# One part per update, read twice: 7 MB of 0.36 GB, with Adam's state of 25.6 million parameters on 2 ranks.
PARTS: Final = 100
# Number of updates between two exchanges of digests: an exchange takes as long as a short collective.
EVERY: Final = 20


@dataclass(frozen=True)
class _PartDigests:
    """Digests of the part that was checked after update `number`.

    `version`: the update of the replicas. `copies`, `gradients`: digests of the replicas here, and of the gradients to
    be applied to them.
    """

    number: int
    version: int
    own: int
    copies: tuple[int, ...]
    gradients: tuple[int, ...]


class MemoryCheck:
    """Memory checks of one rank. Every rank makes them at the same updates."""

    def __init__(self, context: UpdateContext) -> None:
        """Prepare the parts. `context` must have mirrors."""
        self._context = context
        self._mirrors = context.copies.mirrors
        self._own_parts = cut_update_in_parts(_shard_arrays(context, self._mirrors[0]))
        self._copy_parts = [cut_update_in_parts(mirror.all_values()) for mirror in self._mirrors]
        self._gradient_parts = [
            [cut_update_in_parts(mirror.gradients(number)) for number in (0, 1)] for mirror in self._mirrors
        ]
        self.begin()

    def begin(self) -> None:
        """Discard all digests, after weights and state were set from outside."""
        self._last_digests: _PartDigests | None = None
        self._changed_after: int | None = None  # first update after which memory changed here
        self._own: dict[int, int] = {}  # digest of a part of the own shard, by update
        # Digests of the replicas here, by the update of the replicas.
        self._copies: dict[int, tuple[int, ...]] = {}

    def after(self, number: int) -> None:
        """Compute the digests after update `number`. Nothing may change until the next update begins."""
        self._last_digests = noted = self._part_digests(number)
        self._own[number], self._copies[noted.version] = noted.own, noted.copies

    def before(self, number: int) -> None:
        """Check the digests before update `number`. Collective after each `EVERY` updates.

        Raises StateCorrupt, on every rank.
        """
        done, noted = number - 1, self._last_digests
        if noted is not None and (noted.number, noted.version) != (done, self._version):
            noted = None  # rolled back meanwhile
        if noted is not None and noted != self._part_digests(done) and self._changed_after is None:
            self._changed_after = done
        if done and done % EVERY == 0:
            self._compare(done)

    def _compare(self, done: int) -> None:
        """Exchange the digests since the last comparison with all ranks, and compare them."""
        seen = [self._changed_after, sorted(self._own.items()), sorted(self._copies.items())]
        reported: list[Any] = self._context.group.allgather_object(seen, "memory check")
        wrong = {rank: one[0] for rank, one in enumerate(reported) if one[0] is not None}
        if wrong:
            raise StateCorrupt(
                tuple(wrong),
                f"memory of the optimizer on ranks {list(wrong)} changed after update {min(wrong.values())} and "
                "before the next one, when nothing may write to it: replace their nodes, or find the code "
                "that writes to weights",
            )
        for rank in range(len(reported)):
            replica_ranks = [mirror.replica_ranks[rank] for mirror in self._mirrors]
            copies = [dict(reported[replica_rank][2]) for replica_rank in replica_ranks]
            for number, own in reported[rank][1]:
                digests = [own, *(of[number][copy] for copy, of in enumerate(copies) if number in of)]
                if len(digests) == len(replica_ranks) + 1 and len(set(digests)) > 1:
                    raise _shard_differs(number, (rank, *replica_ranks), digests)
        self._own = {number: digest for number, digest in self._own.items() if number == done}
        self._copies.clear()

    @property
    def _version(self) -> int:
        return self._mirrors[0].version

    def _part_digests(self, number: int) -> _PartDigests:
        """Return digests of a part of all that must not change between updates: own shard, replicas, pending gradients.

        Replicas are one update behind: their part is the one of the owner's shard that was checked then.
        """
        part, part_of_copy = number % PARTS, self._version % PARTS
        return _PartDigests(
            number,
            self._version,
            digest_of(self._own_parts[part]),
            tuple(digest_of(parts[part_of_copy]) for parts in self._copy_parts),
            tuple(digest_of(parts[number % 2][part]) for parts in self._gradient_parts),
        )


def _shard_differs(number: int, replica_ranks: Sequence[int], digests: Sequence[int]) -> StateCorrupt:
    """Build the error for different `digests` of one shard on `replica_ranks`, of which the first is the owner."""
    common = max(digests, key=digests.count)
    odd = [replica_rank for replica_rank, digest in zip(replica_ranks, digests, strict=True) if digest != common]
    is_known = digests.count(common) > 1
    ranks = ", ".join(f"rank {rank}" for rank in replica_ranks[1:])
    said = f"rank {', '.join(map(str, odd))} differs from the others: its" if is_known else "one's"
    return StateCorrupt(
        tuple(odd if is_known else replica_ranks),
        f"after update {number} rank {replica_ranks[0]} and {ranks}, which has its replica, have different bits of "
        f"it, {said} memory or arithmetic is wrong, or a program wrote to weights. Load a checkpoint from before "
        f"update {max(0, number - PARTS)}, and test {'that node' if is_known else 'both nodes'}",
    )


def _shard_arrays(context: UpdateContext, mirror: OptimizerShardMirror) -> list[Flat]:
    """Return the arrays of the own shard, in the order of its replica."""
    arrays: list[Flat] = []
    for bucket in mirror.buckets:
        arrays += context.arenas.own_values(bucket).values()
        if (wire := context.wire_of(bucket)) is not None:
            arrays.append(wire.lost_change(bucket))
    return arrays


def cut_update_in_parts(arrays: Sequence[Flat]) -> list[list[Flat]]:
    """Cut the bytes of `arrays`, one after the other, into PARTS equally long parts."""
    parts: list[list[Flat]] = [[] for _ in range(PARTS)]
    total, start = sum(array.nbytes for array in arrays), 0
    bounds = [*(total * part // PARTS // 64 * 64 for part in range(PARTS)), total]
    for array in arrays:
        octets, end = array.view(np.uint8), start + array.nbytes
        for part, (begin, stop) in zip(parts, pairwise(bounds), strict=True):
            if begin < end and start < stop:
                part.append(octets[max(begin - start, 0) : stop - start])
        start = end
    return parts


def digest_of(arrays: Iterable[Flat]) -> int:
    """Return the sum of all bytes as 64-bit numbers, which changes if any single word changes."""
    total = 0
    for octets in arrays:
        whole = len(octets) // 8 * 8
        words = np.add.reduce(octets[:whole].view(np.uint64), dtype=np.uint64)
        total += int(words) + int.from_bytes(octets[whole:].tobytes(), "little")
    return total % 2**64
