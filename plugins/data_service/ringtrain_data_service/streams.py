"""Iterables over data that data workers load. Order and content do not change if a data worker is lost."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from typing import Final, Protocol

from ringtrain.adapter import current_world
from ringtrain.data import Batch, Shard
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_data_service.batches import LoadedBatch, SplitBatch, loaded
from ringtrain_data_service.config import DataStreamSettings
from ringtrain_data_service.frames import DataWorkerRequest
from ringtrain_data_service.session import DataWorkerSession

_FUNCTION: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_MOST_PREFETCH: Final = 1024


class PositionedShard(Protocol):
    """Interface of a shard that records how far training has read the epoch, like the result of
    `ringtrain.elastic.shard`."""

    @property
    def worlds(self) -> int:
        """Counter that increases when a new world or a new position makes running iterations invalid."""

    def batches(self) -> Iterator[Batch]:
        """Return the remaining batches of the epoch. Taking a batch does not change the position in the epoch; `used`
        does."""

    def used(self, batch: Batch) -> None:
        """Record that the training loop has received `batch`, which advances the position in the epoch."""


class BatchStream:
    """Iterable of loaded batches (`LoadedBatch`) in the order of the shard. Each `iter()` starts a separate pass."""

    def __init__(
        self, function: str, shard: Shard | PositionedShard, epoch: int | None, consumed: int, prefetch: int
    ) -> None:
        self._function = function
        self._shard = shard
        self._epoch = epoch
        self._consumed = consumed
        self._prefetch = prefetch
        self._settings = DataStreamSettings.from_env(os.environ)

    def __iter__(self) -> Generator[LoadedBatch, None, None]:
        if isinstance(self._shard, Shard):
            assert self._epoch is not None
            return self._load(self._shard.epoch(self._epoch, consumed=self._consumed))
        return self._load_positioned(self._shard)

    def _load_positioned(self, shard: PositionedShard) -> Generator[LoadedBatch, None, None]:
        """Yield loaded batches of an elastic shard until its world changes. Batches read ahead by then are dropped; the
        next pass loads them again."""
        begun = shard.worlds
        with closing(self._load(shard.batches())) as batches:
            for batch in batches:
                if shard.worlds != begun:
                    return
                shard.used(batch)
                yield batch

    def _load(self, batches: Iterable[Batch]) -> Generator[LoadedBatch, None, None]:
        waiting: deque[tuple[int, Batch]] = deque()
        keyed = zip(count(), batches, strict=False)
        with closing(DataWorkerSession(self._settings)) as session:
            while True:
                while len(waiting) < self._prefetch and (following := next(keyed, None)) is not None:
                    key, batch = following
                    session.ask(DataWorkerRequest(key, self._function, batch.indices))
                    waiting.append(following)
                if not waiting:
                    return
                key, batch = waiting.popleft()
                answer, _ = session.take(key)
                yield loaded(batch, answer.arrays)


class SplitStream:
    """Iterable over items of this rank's splits (files). Up to `prefetch` open splits yield one item each in turn."""

    def __init__(
        self,
        uris: Sequence[str],
        function: str,
        positions: Mapping[str, int | None],
        prefetch: int,
        place: tuple[int, int],
    ) -> None:
        self._function = function
        self._prefetch = prefetch
        self._settings = DataStreamSettings.from_env(os.environ)
        rank, size = place
        left = [uri for uri in uris if positions.get(uri, 0) is not None]
        done = dict.fromkeys(uri for uri in uris if positions.get(uri, 0) is None)
        self.positions: dict[str, int | None] = done | {uri: positions.get(uri, 0) for uri in left[rank::size]}
        """Position of each of this rank's splits, by URI; None for a split that is complete, also by an earlier stream.
        `distribute_splits` resumes from the positions of all ranks together (`ringtrain.allgather_object`), repeatedly
        and with any world size."""

    def __iter__(self) -> Generator[SplitBatch, None, None]:
        left = deque((uri, offset) for uri, offset in self.positions.items() if offset is not None)
        turns: deque[tuple[str, int]] = deque()
        keys = count()
        with closing(DataWorkerSession(self._settings)) as session:

            def begin() -> None:
                while left and len(turns) < self._prefetch:
                    uri, offset = left.popleft()
                    turns.append((uri, key := next(keys)))
                    session.ask(DataWorkerRequest(key, self._function, uri=uri, offset=offset))

            begin()
            while turns:
                uri, key = turns.popleft()
                answer, link = session.take(key)
                if answer.kind == "ended":
                    self.positions[uri] = None
                    begin()
                    continue
                turns.append((uri, key := next(keys)))
                session.ask(DataWorkerRequest(key, self._function, uri=uri, offset=answer.offset), near=link)
                self.positions[uri] = answer.offset
                yield SplitBatch(uri, answer.offset, answer.arrays)


def distribute(
    function: str,
    shard: Shard | PositionedShard,
    *,
    epoch: int | None = None,
    consumed: int = 0,
    prefetch: int = 8,
) -> BatchStream:
    """Return this rank's batches, loaded by data workers: `for batch in distribute("my_data:load", shard, epoch=e)`.

    `function`: `module:function`, imported in the loader processes of data workers. It is called with the indices of a
    batch, an int64 array, and returns a dict of arrays by name. `shard`: result of `ringtrain.data.shard`, with
    `epoch`, and `consumed` to continue within it; or of `ringtrain.elastic.shard`, which has a position. `prefetch`:
    number of batches requested ahead of the loop, which limits the memory, in addition to the batch in use.

    Batches are in the order of the shard, each once: a data worker that dies, hangs or is replaced only costs time.
    Iterating raises DataError if the function raises, with its traceback and the indices. Raises ConfigurationError for
    a wrong argument, or if there are no data workers.
    """
    _check_stream_arguments(function, prefetch)
    if isinstance(shard, Shard):
        if epoch is None:
            raise ConfigurationError("distribute: epoch is missing; pass the number of the epoch, from 0")
    elif not (hasattr(shard, "batches") and hasattr(shard, "used")):
        raise ConfigurationError(
            f"distribute: shard is {kind_of(shard)}; expected a result of ringtrain.data.shard or "
            "ringtrain.elastic.shard"
        )
    elif epoch is not None or consumed:
        raise ConfigurationError(
            "distribute: an elastic shard has its own epoch and consumed; do not pass these arguments"
        )
    return BatchStream(function, shard, epoch, consumed, prefetch)


def distribute_splits(
    uris: Sequence[str],
    function: str,
    *,
    positions: Mapping[str, int | None] | None = None,
    prefetch: int = 8,
    rank: int | None = None,
    size: int | None = None,
) -> SplitStream:
    """Return items that data workers read from files without random access. Each of `uris` is read for one rank.

    `function`: `module:function`, called in a loader process with a URI and an offset (0 at first). It yields pairs: an
    offset, from which a later call continues after the item, and a dict of arrays by name. The reader defines the
    offsets (bytes, records), which must grow. If a data worker is lost, another one calls the function with the last
    offset.

    `positions`: positions of an earlier stream (`SplitStream.positions`) of all ranks together, from which to resume;
    it must contain each of `uris`. With one rank's positions alone, the others' splits would not be read. `prefetch`:
    number of splits that are read at a time, one item ahead of the loop each. `rank`, `size`: rank and number of ranks;
    unless both are passed, the rank and size of `ringtrain.init()`. Ranks may get different numbers of items.

    Raises ConfigurationError for a wrong argument, or if there are no data workers; iterating raises DataError.
    """
    _check_stream_arguments(function, prefetch)
    if isinstance(uris, str) or len(set(uris)) != len(uris) or not all(uris):
        raise ConfigurationError(f"distribute_splits: uris is {uris!r:.200}; expected a list of different URIs")
    if positions and (absent := [uri for uri in uris if uri not in positions]):
        raise ConfigurationError(
            f"distribute_splits: positions has no entry for {len(absent)} of {len(uris)} uris, such as "
            f"{absent[0]!r:.200}; merge the positions of all ranks (ringtrain.allgather_object), with 0 for a new URI"
        )
    if unknown := sorted((positions or {}).keys() - set(uris)):
        raise ConfigurationError(
            f"distribute_splits: positions has {len(unknown)} URIs that are not in uris, such as "
            f"{unknown[0]!r:.200}; pass the same uris as before, or remove these URIs from positions"
        )
    if rank is None and size is None:
        world = current_world().group()
        rank, size = world.rank, world.size
    if rank is None or size is None or not 0 <= rank < size:
        raise ConfigurationError(f"rank={rank}, size={size}; expected 0 <= rank < size, or None for both")
    return SplitStream(list(uris), function, positions or {}, prefetch, (rank, size))


def _check_stream_arguments(function: str, prefetch: int) -> None:
    if not isinstance(function, str) or not _FUNCTION.fullmatch(function):
        raise ConfigurationError(f'function={function!r}; expected "module:function", which data workers can import')
    if function.startswith("__main__:"):
        raise ConfigurationError(
            f"function={function!r}: data workers cannot import functions of the training script; "
            "define the function in a module"
        )
    if not 1 <= prefetch <= _MOST_PREFETCH:
        raise ConfigurationError(f"prefetch={prefetch}; expected 1 to {_MOST_PREFETCH} batches")
