"""Shard of a data set for each rank, computed from (seed, epoch, rank, size) without communication."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Literal, SupportsIndex, get_args

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.process_groups.draws import note_process_group_epoch
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.errors import ConfigurationError, DataError, counted, kind_of

log = logging.getLogger(__name__)

Last = Literal["weighted", "padded", "dropped"]


@dataclass(frozen=True)
class Batch:
    """Samples of one rank in one step.

    `indices`: into the data set; never empty. `mask`: False for a sample that is only padding; over all ranks and steps
    of an epoch, `indices[mask]` contains every sample once.
    `weight`: pass it to `HostOptimizer.submit`, or multiply the batch's mean loss by it. It is 1 except with
    `last="weighted"`, in the last batch, where ranks have different numbers of samples.
    `consumed`: samples of the epoch that all ranks together have used after this step. If it is saved in a checkpoint
    with the epoch, `Shard.epoch` continues with exactly the remaining samples, at any world size.
    `passes`: number of backward passes of the step, equal on all ranks; each pass uses one of `micro_batches`.
    """

    indices: NDArray[np.int64]
    mask: NDArray[np.bool_]
    weight: float
    consumed: int
    passes: int = 1

    @property
    def micro_batches(self) -> tuple[Batch, ...]:
        """Return this batch divided into `passes` micro-batches, in order; the batch itself if `passes` is 1.

        The weights of micro-batches are such that the mean, over ranks and passes, of weight times mean gradient is the
        mean gradient of all samples of the step. If all parts have equally many samples, each weight is 1. A part
        without a sample repeats a sample, with weight 0.
        """
        if self.passes == 1:
            return (self,)
        return tuple(self._part(own) for own in np.array_split(self.indices[self.mask], self.passes))

    def _part(self, own: NDArray[np.int64]) -> Batch:
        if own.size == 0:
            return Batch(self.indices[:1], np.zeros(1, np.bool_), 0.0, self.consumed)
        weight = self.weight * (own.size * self.passes / self.count)
        return Batch(own, np.ones(own.size, np.bool_), weight, self.consumed)

    @property
    def count(self) -> int:
        """Return the number of samples without padding."""
        return int(self.mask.sum())


@dataclass(frozen=True)
class Shard:
    """One rank's part of a data set with `samples` samples.

    Step t of an epoch uses the t-th global batch of the epoch's order, and rank r the r-th part of it: any world size
    with the same global batch trains on the same samples at the same step.
    """

    samples: int
    batch_size: int
    rank: int
    size: int
    seed: int
    shuffle: bool
    last: Last

    @property
    def global_batch(self) -> int:
        """Return the number of samples per step over all ranks."""
        return self.batch_size * self.size

    @property
    def steps(self) -> int:
        """Return the number of steps per epoch, equal on all ranks."""
        whole, rest = divmod(self.samples, self.global_batch)
        return whole + (1 if rest and self.last != "dropped" else 0)

    def describe(self) -> str:
        """Return a line of text with the global batch, the number of steps, and the treatment of the last samples."""
        rest = self.samples % self.global_batch
        tail = f", the last of {counted(rest, 'sample')} {self.last}" if rest else ""
        return (
            f"global batch: {self.global_batch} = {self.batch_size} per rank x {counted(self.size, 'rank')}; "
            f"{counted(self.samples, 'sample')}, {counted(self.steps, 'step')} an epoch{tail}"
        )

    def epoch(self, epoch: int, start: int = 0, *, consumed: int = 0) -> Iterator[Batch]:
        """Yield this rank's batches of `epoch` (from 0), from step `start` on, without the first `consumed` samples.

        `consumed`: `Batch.consumed` of the last step to retain, which a world of another size may have done. Raises
        ConfigurationError for a number outside the epoch.
        """
        if epoch < 0 or not 0 <= start <= self.steps:
            raise ConfigurationError(
                f"epoch is {epoch} and start is {start}; expected an epoch of at least 0 and a start from "
                f"0 to {self.steps}, the steps of an epoch"
            )
        if not 0 <= consumed <= self.samples:
            raise ConfigurationError(f"consumed is {consumed}; expected 0 to {self.samples}, the size of the data set")
        first = consumed + start * self.global_batch
        note_process_group_epoch(self.rank, self.size, self._cut(), f"epoch {epoch} from sample {first} on")
        order = self.order(epoch)
        for begin in range(first, self.samples, self.global_batch):
            pool = order[begin : begin + self.global_batch]
            if pool.size == self.global_batch:
                yield self._whole(pool, begin + pool.size)
            elif self.last != "dropped":
                yield self._rest(pool, order)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order in which all ranks together use the samples in `epoch`.

        Samples are sorted by raw words of Philox (Salmon et al. 2011) keyed by (seed, epoch). Raw words are equal in
        every version of numpy, which numpy does not guarantee for its shuffles.
        """
        if not self.shuffle:
            return np.arange(self.samples, dtype=np.int64)
        words = np.random.Philox(np.random.SeedSequence((self.seed, epoch))).random_raw(self.samples)
        return np.argsort(words, kind="stable").astype(np.int64, copy=False)

    def _cut(self) -> str:
        size = f"{self.samples}, batch_size={self.batch_size}"
        seed = f"seed={self.seed}, " if self.shuffle else ""
        return f"shard({size}, {seed}shuffle={self.shuffle}, last={self.last!r})"

    def _whole(self, pool: NDArray[np.int64], consumed: int) -> Batch:
        indices = pool[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]
        return Batch(indices, np.ones(indices.size, np.bool_), 1.0, consumed)

    def _rest(self, pool: NDArray[np.int64], order: NDArray[np.int64]) -> Batch:
        if self.last == "padded":
            filled = np.resize(order, self.global_batch - pool.size)
            whole = self._whole(np.concatenate([pool, filled]), self.samples)
            position = self.rank * self.batch_size + np.arange(self.batch_size)
            return Batch(whole.indices, position < pool.size, 1.0, self.samples)
        mine = np.array_split(pool, self.size)[self.rank]
        if mine.size == 0:
            # One sample of weight 0, because a model may not accept an empty batch, and its mean is NaN.
            return Batch(pool[:1], np.zeros(1, np.bool_), 0.0, self.samples)
        return Batch(mine, np.ones(mine.size, np.bool_), mine.size * self.size / pool.size, self.samples)


def shard(
    samples: int | Sized,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    last: Last = "padded",
    rank: int | None = None,
    size: int | None = None,
) -> Shard:
    """Return a shard that gives each rank a distinct part of a data set, every sample once per epoch, at any world
    size.

    `samples`: number of samples, or the data set itself. `batch_size`: batch size of each rank. `shuffle`: whether each
    epoch has another order, which depends on `seed`; if False, the order is that of the data set.
    `last`: an incomplete global batch is "padded" (filled with samples from the start of the epoch, marked in
    `Batch.mask`: no change of the loop is needed), "dropped", or "weighted": split evenly, with `Batch.weight` such
    that the averaged gradient is that of one process on the pooled batch. A loop over weighted batches must use the
    weight: `optimizer.submit(name, gradient, batch.weight)`.
    `rank`, `size`: pass both or neither; the default is the rank and size of `ringtrain.init()`.

    Sends nothing. With a HostOptimizer or a DistributedOptimizer, ranks periodically compare the epochs that they
    began, and raise MismatchError if their parts do not belong to one data set.

    Raises ConfigurationError for invalid arguments, DataError for a data set that is too small for one step.
    """
    count, batch_size = number_of(samples), whole_shard_argument("batch_size", batch_size)
    rank, size = _shard_place(rank, size)
    if batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size}; expected at least 1 sample per rank")
    if seed < 0:
        raise ConfigurationError(f"seed is {seed}; expected 0 or more")
    if last not in get_args(Last):
        raise ConfigurationError(f'last is "{last}"; expected one of {", ".join(get_args(Last))}')
    made = Shard(count, batch_size, rank, size, seed, shuffle, last)
    if made.steps < 1:
        raise DataError(
            f"{counted(count, 'sample')} can't fill a step: the global batch is {made.global_batch} ({batch_size} on "
            f'each of {counted(size, "rank")}), and last is "{last}"; use last="padded", a smaller batch_size or more '
            "data"
        )
    log.debug("rank %d: %s", rank, made.describe())
    return made


def number_of(samples: int | Sized) -> int:
    """Return the number of samples: the length of a data set, or `samples` itself if it is a number. Raises
    ConfigurationError for a number that is not an integer."""
    return len(samples) if isinstance(samples, Sized) else whole_shard_argument("samples", samples)


def whole_shard_argument(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int. Raises ConfigurationError if it is not whole, such as 48 / 2."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise ConfigurationError(f"{name} is {value!r}, {kind_of(value)}; expected a whole number") from error


def _shard_place(rank: int | None, size: int | None) -> tuple[int, int]:
    if rank is None and size is None:
        world = group_of()
        return world.rank, world.size
    if rank is None or size is None or not 0 <= rank < size:
        raise ConfigurationError(f"rank is {rank} and size is {size}; expected 0 <= rank < size, or neither of them")
    return rank, size
