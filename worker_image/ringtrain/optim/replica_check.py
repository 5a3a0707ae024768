"""Detection of ranks whose weights, learning rates or data sets differ from those of the other ranks.

Ranks update alike, and no other code compares the results: if one rank has loaded another state or set another rate, or
if a bit has flipped, the model silently differs. So each update records digests of a hundredth of the weights, another
one each time, and the rates that it used. Ranks compare them periodically.

An update hides a change that only one rank has made: each rank sends its shard to all others, and all end with the same
mixture. So there is also a digest from right before the update, with a sample of each parameter.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np

from ringtrain._core.process_groups.draws import process_group_epochs_of
from ringtrain._core.process_groups.group import Flat
from ringtrain.errors import MismatchError, StateCorrupt
from ringtrain.optim.layout import Bucket
from ringtrain.optim.memory_check import EVERY, PARTS, cut_update_in_parts, digest_of
from ringtrain.optim.update_context import UpdateContext

# Updates after which ranks compare in addition to each `EVERY`: they find differences from the beginning.
FIRST: Final = (1, 2)
# Elements of each parameter that are checked before each update: 161 parameters take 30 µs.
_SAMPLED: Final = 16
# Weights of at most this many bytes are checked completely before each update: 10 µs.
_SMALL: Final = 64 << 10


class WeightReplicaCheck:
    """Comparison of one rank's weights with the weights of other ranks. All ranks compare after the same updates.

    `weights`: whether to compare weights, in addition to rates. It is False if every rank applies a library's rule,
    such as torch's, to all weights, because processors of different types may then correctly differ in the last bit.
    """

    def __init__(self, context: UpdateContext, weights: bool = True) -> None:
        self._group = context.group
        buckets = [bucket for bucket in context.layout.buckets if weights and bucket.size and not bucket.local]
        arrays = [context.arenas.weights(bucket) for bucket in buckets]
        self._parts = cut_update_in_parts(arrays)
        self._samples = [_WeightSample(bucket, array) for bucket, array in zip(buckets, arrays, strict=True)]
        self._is_small = sum(array.nbytes for array in arrays) <= _SMALL
        self.begin()

    def begin(self) -> None:
        """Discard all digests, because the weights were set to new values that are equal on all ranks."""
        self._begun = self.digest()
        self._digests: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._rates: dict[int, list[float]] = {}

    def uses(self, number: int, rates: Sequence[float]) -> None:
        """Record the learning rates of update `number`, one for each parameter group."""
        self._rates[number] = list(rates)

    def starts(self, number: int) -> None:
        """Record a digest of the weights right before update `number` changes the first weight."""
        samples = sum(sample.digest(number) for sample in self._samples)
        part = self.digest() if self._is_small else digest_of(self._parts[number % PARTS])
        self._starts[number] = (part + samples) % 2**64

    def after(self, number: int) -> None:
        """Record a digest of the weights after update `number`, when they should be equal on all ranks."""
        self._digests[number] = digest_of(self._parts[number % PARTS])

    def before(self, number: int) -> None:
        """Compare digests and rates of all ranks. Collective after each `EVERY` updates, and after those in `FIRST`.

        Raises MismatchError or StateCorrupt, on every rank.
        """
        done = number - 1
        self._digests = {n: digest for n, digest in self._digests.items() if n <= done}  # an update may be repeated
        if not done or (done % EVERY and done not in FIRST) or self._group.size == 1:
            return
        rates = sorted((n, rate) for n, rate in self._rates.items() if n <= done)
        # The first digest is that of the weights when they were set.
        draws = process_group_epochs_of(self._group.size)
        starts = sorted((n, digest) for n, digest in self._starts.items() if n <= done)
        seen = [[(-1, self._begun), *sorted(self._digests.items())], rates, draws.summary(), starts]
        reported = self._group.allgather_object(seen, "replica check")
        draws.compare(self._group.rank, [one[2] for one in reported])
        self._compare_rates([dict(map(tuple, one[1])) for one in reported])
        compare_weights([dict(map(tuple, one[0])) for one in reported])
        compare_weights([dict(map(tuple, one[3])) for one in reported], "before")
        self._digests.clear()
        self._starts = {n: digest for n, digest in self._starts.items() if n > done}
        self._rates = {n: rates for n, rates in self._rates.items() if n > done}

    def digest(self) -> int:
        """Return the digest of all weights that ranks compare."""
        return digest_of(chain.from_iterable(self._parts))

    def _compare_rates(self, reported: Sequence[dict[int, list[float]]]) -> None:
        for rank, rates in enumerate(reported):
            for number in sorted(rates.keys() & reported[0].keys()):
                if rates[number] != reported[0][number]:
                    raise other_learning_rates(number, (0, reported[0][number]), (rank, rates[number]))


class _WeightSample:
    """Digest of a few elements of each parameter of a bucket, chosen anew for each update."""

    def __init__(self, bucket: Bucket, weights: Flat) -> None:
        self._words = weights.view(f"u{weights.itemsize}")
        locations = [at for at in bucket.locations if at.stop > at.start]
        self._first = np.array([at.start for at in locations], np.int64)[:, None]
        self._sizes = np.array([at.stop - at.start for at in locations], np.int64)[:, None]
        self._places = np.arange(_SAMPLED) * self._sizes // _SAMPLED

    def digest(self, number: int) -> int:
        """Return the sum of the bits of the elements that are sampled for update `number`."""
        chosen = self._first + (self._places + number * 7919) % self._sizes
        return int(self._words[chosen].sum(dtype=np.uint64))


def compare_weights(reported: Sequence[dict[int, int]], when: str = "after") -> None:
    """Compare digests: `reported[rank]` maps update to digest. Raises StateCorrupt on every rank if they differ.

    `when`: "before" or "after" the update, for the message.
    """
    for number in sorted(set.intersection(*(set(one) for one in reported))):
        if odd := odd_ranks([one[number] for one in reported]):
            time = f"{when} update {number}" if number >= 0 else "when they were last set or loaded"
            raise other_weights(odd, len(reported), time, PARTS)


def odd_ranks(digests: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of `digests` that differ from the majority: all indices if there is no majority, none if all
    are equal."""
    usual, count = Counter(digests).most_common(1)[0]
    if count == len(digests):
        return ()
    return tuple(at for at, one in enumerate(digests) if one != usual or 2 * count <= len(digests))


def other_weights(odd: tuple[int, ...], size: int, when: str, updates: int, begins: bool = False) -> StateCorrupt:
    """Build the error for ranks `odd`, of `size` ranks, whose weights differ from those of the others.

    `when`: time of the comparison, at the beginning of the message. `updates`: number of updates within which all parts
    are compared. `begins`: whether only the first updates have been made.
    """
    differ = f"{when} the weights on ranks {list(odd)} differed from those of the others"
    if len(odd) == size:
        differ = f"{when} ranks {list(odd)} had different weights"
    if begins:
        return StateCorrupt(
            odd,
            f"{differ}: they started with different weights, or only one rank has loaded or changed weights; "
            "call broadcast_parameters or broadcast_variables, which send the weights of rank 0, before the first step",
        )
    return StateCorrupt(
        odd,
        f"{differ}: only one rank has loaded a state or changed weights (do it on all ranks), or its memory or "
        f"arithmetic is wrong (test its node). Each part is compared once in {updates} updates: load a checkpoint from "
        "before the last of these",
    )


def other_learning_rates(
    number: int, ours: tuple[int, Sequence[float]], theirs: tuple[int, Sequence[float]]
) -> MismatchError:
    """Build the error for different learning rates in update `number`. `ours`, `theirs`: a rank and its rates."""
    return MismatchError(
        f"update {number} was made with the learning rates {ours[1]} on rank {ours[0]} and "
        f"{theirs[1]} on rank {theirs[0]}; a schedule must return equal rates on all ranks: if it "
        "follows a metric, average the metric over the ranks"
    )
