"""Data shards of an elastic world. Each sample is used once per epoch, counted in committed steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ringtrain._core.process_groups.context import current, current_or_none
from ringtrain.data.shard import Batch, Shard, number_of
from ringtrain.errors import ConfigurationError, DataError, counted


@dataclass(frozen=True)
class FixedGlobal:
    """Batch rule with `samples` per step in total, so that training does not depend on the number of ranks.

    Each rank takes an equal part. If parts differ by a sample, the averaged gradient is that of the whole batch only if
    the loop uses `Batch.weight`.

    `micro_batch`: largest number of samples that fits into a rank's memory. If a rank's part is larger, a step needs
    several backward passes: one for each of `Batch.micro_batches`, `ElasticShard.passes` in all. Set this number on the
    optimizer in each world:

        state.optimizer.set_backward_passes_per_step(state.shard.passes)
        for batch in state.shard:
            for part in batch.micro_batches:
                ...  # gradients of `part.indices`, times `part.weight`
    """

    samples: int
    micro_batch: int | None = None

    def global_batch(self, size: int) -> int:
        """Return the number of samples per step in a world of `size` ranks."""
        return self.samples

    def passes(self, size: int) -> int:
        """Return the number of micro-batches per step in a world of `size` ranks, the same on every rank."""
        largest_part = -(-self.samples // size)
        return 1 if self.micro_batch is None else -(-largest_part // self.micro_batch)


@dataclass(frozen=True)
class PerRank:
    """Batch rule with `samples` per rank and step, so that a larger world has a larger global batch.

    `scale_rate`: function that every rank calls in each world with the factor between its global batch and the first
    world's, to scale the learning rate.
    """

    samples: int
    scale_rate: Callable[[float], Any] | None = None

    def global_batch(self, size: int) -> int:
        """Return the number of samples per step in a world of `size` ranks."""
        return self.samples * size

    def passes(self, size: int) -> int:
        """Return 1: the whole batch is one micro-batch."""
        return 1


class ElasticShard:
    """This rank's part of a data set in the current world. Iterating yields the batches of the rest of the epoch.

    A batch counts as used when the loop has received it; a commit of the state makes that permanent. After a change of
    the world, iteration continues behind the last committed step, so that batches of later steps are repeated and all
    ranks together get each sample once per epoch.
    """

    def __init__(self, order: Shard, batch: FixedGlobal | PerRank) -> None:
        """Set the position to the beginning of epoch 0.

        `order`: the data set and its order. The rank, size and batch size in `order` are ignored.
        """
        self._order = order
        self.batch = batch
        self._lock = threading.Lock()
        self._epoch = 0
        self._consumed = 0
        self._first_global = 0  # global batch of the first world
        self._step = 0  # global batch of the last world in which it was iterated
        self._entered = 0  # number of worlds and loaded positions: an iterator of an earlier one ends

    @property
    def worlds(self) -> int:
        """Return a number that grows with every new world, loaded state and `next_epoch`. Earlier iterators end."""
        return self._entered

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch, counted from 0."""
        return self._epoch

    @property
    def consumed(self) -> int:
        """Return the number of samples that all ranks together have used in this epoch."""
        return self._consumed

    def steps_since(self, state: Mapping[str, Any]) -> int:
        """Return the number of steps since the saved `state`; 1 if `state` is from another epoch."""
        if self._epoch != state["epoch"]:
            return 1
        return -(-(self._consumed - int(state["consumed"])) // max(1, self._step))

    @property
    def steps_left(self) -> int:
        """Return the number of steps to the end of the epoch, in a world of the current size."""
        return len(range(*self._starts(self._global_batch())))

    @property
    def passes(self) -> int:
        """Return the number of micro-batches per step in this world, equal on all ranks: see `FixedGlobal`."""
        return self.batch.passes(current().config.place.size)

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs from the current one up to `count`. Each begins when the loop requests it."""
        while self._epoch < count:
            yield self._epoch
            self.next_epoch()

    def next_epoch(self) -> None:
        """Go to the next epoch and skip the rest of this one. The next commit makes that permanent."""
        with self._lock:
            self._epoch, self._consumed = self._epoch + 1, 0
            self._entered += 1

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's batches of the rest of the epoch. A batch counts as used when the loop receives it."""
        for batch in self.batches():
            self.used(batch)
            yield batch

    def batches(self) -> Iterator[Batch]:
        """Yield the same batches as iteration, for a loop that reads ahead. A batch counts only after `used(batch)`."""
        world = current().config
        begun, epoch = self._entered, self._epoch
        step = self._step = self._global_batch()
        order = self._order.order(epoch)
        for start in range(*self._starts(step)):
            if begun != self._entered:
                return  # the world or the position has changed
            yield self._cut(order[start : start + step], start, (world.place.rank, world.place.size))

    def used(self, batch: Batch) -> None:
        """Count `batch` and those before it as used by all ranks. Raises ConfigurationError if it was already used."""
        with self._lock:
            if batch.consumed <= self._consumed:
                raise ConfigurationError(
                    f"used: the batch ends at sample {batch.consumed} of the epoch, which is used up to sample "
                    f"{self._consumed} already; pass each batch of batches() once, in order"
                )
            self._consumed = batch.consumed

    @property
    def cut(self) -> str:
        """Return a text of the data set, batch and order, which must be the same on all ranks.

        Omits the position.
        """
        order, micro_batch = self._order, getattr(self.batch, "micro_batch", None)
        batch = f"{type(self.batch).__name__}({self.batch.samples}{f', {micro_batch}' if micro_batch else ''})"
        return f"shard({order.samples}, {batch}, seed={order.seed}, shuffle={order.shuffle}, last={order.last!r})"

    def describe(self) -> str:
        """Return the position in the epoch, global batch and world size in one line."""
        return (
            f"epoch {self._epoch}, {self._consumed} of {counted(self._order.samples, 'sample')} used, global batch "
            f"{self._global_batch()} on {counted(current().config.place.size, 'rank')}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data set, for a commit or a checkpoint.

        Any world continues from it with exactly the remaining samples.
        """
        return {
            "epoch": self._epoch,
            "consumed": self._consumed,
            "first_global": self._first_global,
            "samples": self._order.samples,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the position in `state`. Raises ConfigurationError if `state` is of another data set or
        order."""
        for name in ("samples", "seed", "shuffle"):
            if state[name] != getattr(self._order, name):
                raise ConfigurationError(
                    f"the shard's {name} is {getattr(self._order, name)} on this rank, but {state[name]} "
                    "in the loaded state; every rank needs the same data set, seed and shuffle"
                )
        with self._lock:
            self._epoch, self._consumed = int(state["epoch"]), int(state["consumed"])
            self._first_global = int(state["first_global"])
            self._entered += 1
        if current_or_none() is None:
            return  # between two worlds: the state is loaded again in the next one
        self._first_global = self._first_global or self._global_batch()
        if isinstance(self.batch, PerRank) and self.batch.scale_rate is not None:
            self.batch.scale_rate(self._global_batch() / self._first_global)

    def _global_batch(self) -> int:
        return self.batch.global_batch(current().config.place.size)

    def _starts(self, step: int) -> tuple[int, int, int]:
        """Return (start, stop, step) of a `range`. It contains, for each remaining step of the epoch, the index of its
        first sample."""
        samples = self._order.samples
        return self._consumed, samples - (step - 1 if self._order.last == "dropped" else 0), step

    def _cut(self, pool: Any, start: int, place: tuple[int, int]) -> Batch:
        """Return this rank's part of `pool`, the samples of a step. `place`: this rank and the number of ranks."""
        rank, size = place
        consumed = start + pool.size
        mine = np.array_split(pool, size)[rank]
        passes = self.batch.passes(size)
        if mine.size == 0:  # one sample of weight 0: a mean over none is NaN
            return Batch(pool[:1], np.zeros(1, np.bool_), 0.0, consumed, passes)
        return Batch(mine, np.ones(mine.size, np.bool_), mine.size * size / pool.size, consumed, passes)


def shard(
    samples: int | Sized,
    batch: FixedGlobal | PerRank,
    *,
    seed: int = 0,
    shuffle: bool = True,
    last: Literal["weighted", "dropped"] = "weighted",
) -> ElasticShard:
    """Return a shard for `State`. In each world, every rank gets a distinct part; a sample is used once per epoch.

    `samples`: number of samples, or the data set itself. `batch`: the rule for the step's size in a world. `shuffle`:
    whether each epoch has another order, which depends on `seed`. `last`: treatment of the samples at the end of an
    epoch that do not fill a step: "weighted" or "dropped", as in `ringtrain.data.shard`.

    Raises ConfigurationError for invalid arguments, DataError for a data set that is too small for one step.
    """
    count = number_of(samples)
    if not isinstance(batch, FixedGlobal | PerRank) or batch.samples < 1:
        raise ConfigurationError(
            f"shard: batch={batch!r}; expected FixedGlobal(samples) or PerRank(samples), at least 1"
        )
    if isinstance(batch, FixedGlobal) and batch.micro_batch is not None and batch.micro_batch < 1:
        raise ConfigurationError(f"shard: batch={batch!r}: micro_batch must be at least 1 sample, or None for no limit")
    if seed < 0:
        raise ConfigurationError(f"seed is {seed}; expected 0 or more")
    if last not in ("weighted", "dropped"):
        raise ConfigurationError(f'last is "{last}"; expected weighted or dropped')
    if count < (batch.samples if last == "dropped" else 1):
        raise DataError(
            f"{counted(count, 'sample')} can't fill a step of {batch.samples}; use more data or a smaller batch"
        )
    return ElasticShard(Shard(count, 1, 0, 1, seed, shuffle, last), batch)
