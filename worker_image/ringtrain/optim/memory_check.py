"""Detection of memory corruption by checksums: each update checks another part of weights and state.

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
from ringtrain.optim.update_context import UpdateContext

# One part per update, read twice: 7 MB of 0.36 GB, with Adam's state of 25.6 million parameters on 2 ranks.
PARTS: Final = 100
# Number of updates between two exchanges of digests: an exchange takes as long as a short collective.
EVERY: Final = 20


@dataclass(frozen=True)
class _PartDigests:
    """Checksums of one part of memory, computed after update `number`.

    `version`: number of the update that the replicas contain. `own`: digest of this rank's shard. `copies`: digests of
    the replicas on this rank. `gradients`: digests of the gradients that are not in the replicas yet.
    """

    number: int
    version: int
    own: int
    copies: tuple[int, ...]
    gradients: tuple[int, ...]


class MemoryCheck:
    """Detection of memory corruption on one rank. All ranks compare after the same updates."""

    def __init__(self, context: UpdateContext) -> None:
        """Divide memory into parts for the checks. `context` must have replicas of shards."""
        self._context = context
        self._mirrors = context.copies.mirrors
        self._own_parts = cut_update_in_parts(_shard_arrays(context, self._mirrors[0]))
        self._copy_parts = [cut_update_in_parts(mirror.all_values()) for mirror in self._mirrors]
        self._gradient_parts = [
            [cut_update_in_parts(mirror.gradients(number)) for number in (0, 1)] for mirror in self._mirrors
        ]
        self.begin()

    def begin(self) -> None:
        """Discard all checksums, because weights and state were set by other code than an update."""
        self._last_digests: _PartDigests | None = None
        self._changed_after: int | None = None  # first update after which memory changed here
        self._own: dict[int, int] = {}  # digest of a part of the own shard, by update
        # Digests of the replicas here, by the update of the replicas.
        self._copies: dict[int, tuple[int, ...]] = {}

    def after(self, number: int) -> None:
        """Store the checksums after update `number`. Nothing may change until the next update begins."""
        self._last_digests = noted = self._part_digests(number)
        self._own[number], self._copies[noted.version] = noted.own, noted.copies

    def before(self, number: int) -> None:
        """Compare the checksums before update `number` with the stored ones. Collective after each `EVERY` updates.

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
        """Exchange all checksums since the last comparison between ranks, and compare them. `done`: number of the last
        update."""
        seen = [self._changed_after, sorted(self._own.items()), sorted(self._copies.items())]
        reported: list[Any] = self._context.group.allgather_object(seen, "memory check")
        wrong = {rank: one[0] for rank, one in enumerate(reported) if one[0] is not None}
        if wrong:
            raise StateCorrupt(
                tuple(wrong),
                f"memory of the optimizer on ranks {list(wrong)} changed after update "
                f"{min(wrong.values())} and before the next one, when nothing may write to it: "
                "replace the nodes of these ranks, or find the code that writes to weights",
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
        """Return checksums of a part of this rank's shard, of its replicas, and of gradients not yet in replicas.

        Replicas are one update behind, so the part of a replica is the part of the owner's shard that was checked one
        update before.
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
    """Build the error for a shard whose copies have different `digests` after update `number`.

    `replica_ranks`: the ranks with the copies, the owner first.
    """
    common = max(digests, key=digests.count)
    odd = [replica_rank for replica_rank, digest in zip(replica_ranks, digests, strict=True) if digest != common]
    is_known = digests.count(common) > 1
    ranks = ", ".join(f"rank {rank}" for rank in replica_ranks[1:])
    wrong = f"rank {', '.join(map(str, odd))}" if is_known else "one of them"
    return StateCorrupt(
        tuple(odd if is_known else replica_ranks),
        f"after update {number} the shard of rank {replica_ranks[0]} differs from its replica on {ranks}: memory or "
        f"arithmetic of {wrong} is wrong, or a program wrote to weights. Load a checkpoint from before update "
        f"{max(0, number - PARTS)}, and test {'that node' if is_known else 'both nodes'}",
    )


def _shard_arrays(context: UpdateContext, mirror: OptimizerShardMirror) -> list[Flat]:
    """Return the arrays of this rank's shard, in the order in which its replica has them."""
    arrays: list[Flat] = []
    for bucket in mirror.buckets:
        arrays += context.arenas.own_values(bucket).values()
        if (wire := context.wire_of(bucket)) is not None:
            arrays.append(wire.lost_change(bucket))
    return arrays


def cut_update_in_parts(arrays: Sequence[Flat]) -> list[list[Flat]]:
    """Divide the bytes of all `arrays` into PARTS parts of equal length, each a list of slices."""
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
    """Return the sum of all bytes as 64-bit numbers. It changes if any single 8-byte word changes."""
    total = 0
    for octets in arrays:
        whole = len(octets) // 8 * 8
        words = np.add.reduce(octets[:whole].view(np.uint64), dtype=np.uint64)
        total += int(words) + int.from_bytes(octets[whole:].tobytes(), "little")
    return total % 2**64
