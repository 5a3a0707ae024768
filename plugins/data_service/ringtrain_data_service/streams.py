"""Streams of batches that data workers load: in one order, each once, whatever becomes of a data worker."""

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
    """A shard that counts what was used, as `ringtrain.elastic.shard` does."""

    @property
    def worlds(self) -> int:
        """Grows with every world and position that iteration cannot go on from."""

    def batches(self) -> Iterator[Batch]:
        """The rest of the epoch, to be read ahead."""

    def used(self, batch: Batch) -> None:
        """The loop has got `batch`."""


class BatchStream:
    """Iterating yields `LoadedBatch`es in the order of the shard. Each iteration is a pass of its own."""

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
        """What is read ahead of a change of the world is dropped: it is given out again from the position on."""
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
    """Iterating yields `SplitBatch`es of this rank's splits, up to `prefetch` splits in turn, one item of each."""

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
        """Where each of this rank's splits goes on, by URI; None: nothing is left of it, as of all that an earlier
        stream has read to the end. Of all ranks together (`ringtrain.allgather_object`) it is what
        `distribute_splits` resumes from, again and again, at any world size."""

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
    """Have data workers load this rank's batches: `for batch in distribute("my_data:load", shard, epoch=e)`.

    `function`: `module:function`, imported in the loader processes of data workers. It is called with the indices
    of a batch, an int64 array, and returns a dict of arrays by name. `shard`: of `ringtrain.data.shard`, with
    `epoch`, and `consumed` to go on within it; or of `ringtrain.elastic.shard`, which has its own position.
    `prefetch`: batches that are asked for ahead of the loop, and so what is held in memory at most, beside the one
    in use.

    Batches come in the order of the shard, each once: a data worker that dies, hangs or is replaced changes
    nothing but the time. Iterating raises DataError where the function raises, with its traceback and the indices.
    Raises ConfigurationError for a wrong argument, or where there are no data workers.
    """
    _check_stream_arguments(function, prefetch)
    if isinstance(shard, Shard):
        if epoch is None:
            raise ConfigurationError("distribute: epoch is not given; expected the epoch to load, from 0")
    elif not (hasattr(shard, "batches") and hasattr(shard, "used")):
        raise ConfigurationError(
            f"distribute: shard is {kind_of(shard)}; expected one that ringtrain.data.shard or "
            "ringtrain.elastic.shard has made"
        )
    elif epoch is not None or consumed:
        raise ConfigurationError("distribute: epoch and consumed are the elastic shard's own; give it the shard alone")
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
    """Have data workers read files without random access: each of `uris` by one rank, item by item.

    `function`: `module:function`, called in a loader process with a URI and an offset (0 at first). It yields
    pairs: an offset, from which a later call goes on behind the item, and a dict of arrays by name. Offsets are
    the reader's own (bytes, records) and grow. Where a data worker is lost, another one calls the function with
    the last offset.

    `positions`: of an earlier stream (`SplitStream.positions`) of all ranks together, to go on from; it has each
    of `uris`. One rank's own would leave the others' splits to nobody.
    `prefetch`: splits that are read at a time, one item ahead of the loop each. `rank`, `size`: of
    `ringtrain.init()` unless given together. Ranks may get different numbers of items.

    Raises ConfigurationError for a wrong argument, or where there are no data workers; iterating, DataError.
    """
    _check_stream_arguments(function, prefetch)
    if isinstance(uris, str) or len(set(uris)) != len(uris) or not all(uris):
        raise ConfigurationError(f"distribute_splits: uris is {uris!r:.200}; expected a list of URIs, each once")
    if positions and (absent := [uri for uri in uris if uri not in positions]):
        raise ConfigurationError(
            f"distribute_splits: positions lacks {len(absent)} of {len(uris)} uris, {absent[0]!r:.200} first; "
            "expected those of all ranks' streams together (ringtrain.allgather_object), and 0 for one that is new"
        )
    if unknown := sorted((positions or {}).keys() - set(uris)):
        raise ConfigurationError(
            f"distribute_splits: positions has {len(unknown)} that are not in uris, {unknown[0]!r:.200} first; "
            "expected the same uris as before, or positions without those that are gone"
        )
    if rank is None and size is None:
        world = current_world().group()
        rank, size = world.rank, world.size
    if rank is None or size is None or not 0 <= rank < size:
        raise ConfigurationError(f"rank is {rank} and size is {size}; expected 0 <= rank < size, or neither")
    return SplitStream(list(uris), function, positions or {}, prefetch, (rank, size))


def _check_stream_arguments(function: str, prefetch: int) -> None:
    if not isinstance(function, str) or not _FUNCTION.fullmatch(function):
        raise ConfigurationError(
            f'the function is {function!r}; expected "module:function", which data workers import by that name'
        )
    if function.startswith("__main__:"):
        raise ConfigurationError(
            f"the function is {function!r}; data workers do not run the training script: put it into a module"
        )
    if not 1 <= prefetch <= _MOST_PREFETCH:
        raise ConfigurationError(f"prefetch is {prefetch}; expected 1 to {_MOST_PREFETCH} batches")
