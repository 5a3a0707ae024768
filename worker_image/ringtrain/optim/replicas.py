"""Detection of ranks of a `DistributedOptimizer` whose weights, learning rates or data sets differ from others.

Every rank applies the reduced gradients itself, and no other code compares the weights. So ranks periodically compare a
digest of a part of them before an update, during the reduction of gradients. `optim.replica_check` does the same for
weights of the host optimizer.
"""

import contextlib
import functools
import platform
import re
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ringtrain._core.negotiation.collective import NamedCollective, NamedReduction
from ringtrain._core.negotiation.objects import allgather_object
from ringtrain._core.negotiation.queues import joins, queue_of
from ringtrain._core.process_groups.context import current, joins_survivors
from ringtrain._core.process_groups.draws import ProcessGroupEpochs, process_group_epochs_of
from ringtrain._core.process_groups.group import Flat
from ringtrain._core.process_groups.process_sets import ProcessSet, members, trains_alone
from ringtrain._core.reduction.ops import Sum
from ringtrain.optim.memory_check import EVERY, digest_of
from ringtrain.optim.replica_check import FIRST, odd_ranks, other_learning_rates, other_weights

# One comparison reads one of this many parts of the weights: all are read in 100 updates. 20 MB of 102 take 5 ms of a
# core.
PARTS: Final = 5
_MOST_RATES: Final = 8
# Columns of a rank's row in the exchanged table: presence, identity of weights and platform, digests of weights, rates
# and data sets. Rates follow.
_HERE, _CUT, _PLATFORM, _WEIGHTS, _RATES, _DRAWS, _COLUMNS = range(7)


@dataclass(frozen=True)
class OptimizerReplica:
    """Digest of a rank's weights before an update, and further values to compare between ranks.

    `cut`: names and shapes of the weights. `platform`: the processor or device that computes updates; other processors
    may round differently. `weights`: the digest of a part of the weights. `rates`: one for each group.
    """

    cut: str
    platform: str
    weights: int
    rates: Sequence[float] = ()

    @staticmethod
    def rows(sizes: Sequence[tuple[int, int]], part: int) -> Iterator[tuple[int, int, int]]:
        """Yield the rows of tensors that are in part `part`: index of the tensor, first row, and end (exclusive).

        `sizes` has the number of rows (the length of the first dimension; 1 for a scalar) and of bytes of each tensor.
        All parts have nearly equal numbers of bytes: a part ends at the end of a row.
        """
        total, start = sum(octets for _, octets in sizes), 0
        low, high = total * part // PARTS, total * (part + 1) // PARTS
        for index, (rows, octets) in enumerate(sizes):
            if octets:
                first, behind = (min(max(-(-(at - start) * rows // octets), 0), rows) for at in (low, high))
                if first < behind:
                    yield index, first, behind
            start += octets

    @staticmethod
    def digest(arrays: Iterable[Flat]) -> int:
        """Return the digest of byte arrays, for the field `weights`."""
        return digest_of(arrays)

    @staticmethod
    def processor() -> str:
        """Return a description of this host's processor, for the field `platform`: processors may round differently."""
        return _processor()


@functools.cache
def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = dict(reversed(re.findall(r"^(model name|flags|Features|CPU part)\s*: (.*)$", text, re.MULTILINE)))
    return f"{platform.machine()} {sorted(found.items())}"


class OptimizerReplicas:
    """Periodic comparison of an optimizer's weights between ranks, on all ranks before the same updates.

    A difference is an error only if it remains before the next update, because scripts of Horovod's broadcast the
    weights of one rank after their first step.
    """

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self._name, self._process_set = f"{name}.replicas", process_set
        self._since: tuple[Any, int] = lambda: None, 0
        self._updates = 0
        self._doubted: int | None = None  # part in which the last comparison found a difference

    @contextlib.contextmanager
    def compared(self, look: Callable[[int], OptimizerReplica]) -> Iterator[None]:
        """Compare the ranks while gradients are reduced in this context. `look(part)` returns this rank's replica.

        Collective with the gradients. `look` gets the number of the part, of `PARTS`. Raises MismatchError or
        StateCorrupt, on every rank that trains.
        """
        part = None if trains_alone(self._process_set) or joins_survivors() else self._next_part()
        if part is None:
            yield
            return
        again, draws = self._doubted is not None, process_group_epochs_of(members(self._process_set))
        seen, reported = look(part), draws.summary()
        begun = self._begin(seen, reported)
        yield
        (table,) = begun.result()
        if again:
            self._judge(table)
        else:
            self._compare_draws(table, draws, reported)
        self._doubted = None if _are_replicas_equal(table) else part

    def seen_now(self, look: Callable[[int], OptimizerReplica]) -> Callable[[int], OptimizerReplica]:
        """Read, before the step changes it, the part of the weights that is due for comparison. Return a function that
        `compared` takes as `look`. Not collective.

        Nothing is counted, because the step may fail before its update.
        """
        part = None if trains_alone(self._process_set) or joins_survivors() else self._coming_part()
        if part is None:
            return look
        seen = look(part)
        return lambda wanted: seen if wanted == part else look(wanted)

    def _next_part(self) -> int | None:
        """Count the coming update; return the same as `_coming_part`."""
        part = self._coming_part()
        self._updates += 1
        return part

    def _coming_part(self) -> int | None:
        """Return the part of the weights to compare before the next update; None if no comparison is due.

        A new world, and a join, restart the count: ranks may have made different numbers of updates before.
        """
        world, joined = self._since
        if world() is not current() or joined != joins():
            self._since = weakref.ref(current()), joins()
            self._updates, self._doubted = 0, None
        update = self._updates + 1
        if self._doubted is not None:
            return self._doubted
        if update in FIRST:
            return update % PARTS
        return update // EVERY % PARTS if update % EVERY == 0 else None

    def _begin(self, seen: OptimizerReplica, reported: Any) -> Any:
        """Begin to sum a table over ranks, in which each rank fills its own row with its digest. Rows of ranks that
        called join() stay empty."""
        queue = queue_of(self._process_set)
        table = np.zeros((len(queue.ranks), _COLUMNS + _MOST_RATES), np.int64)
        row = table[queue.ranks.index(queue.rank)]
        draws = repr([sorted(str(one) for one in reported["drawn"]), sorted(reported["cuts"])])
        where, weights = (
            (_weight_replica_hash(seen.cut), _weight_replica_hash(seen.platform)),
            seen.weights & (2**63 - 1),
        )
        row[:_COLUMNS] = 1, *where, weights, _weight_replica_hash(repr(list(seen.rates))), _weight_replica_hash(draws)
        rates = np.array(seen.rates[:_MOST_RATES], np.float64)
        row[_COLUMNS : _COLUMNS + len(rates)] = rates.view(np.int64)
        # One of a series: the sum of a failed step may still be in flight.
        total = NamedReduction(Sum.value, self._process_set)
        return NamedCollective.allreduce(total, None, self._name).begin([table])

    def _judge(self, table: Any) -> None:
        ranks = queue_of(self._process_set).ranks
        here = [at for at in range(len(ranks)) if table[at, _HERE]]
        for at in here:
            if table[at, _RATES] != table[here[0], _RATES]:
                first, other = (table[one, _COLUMNS:].view(np.float64).tolist() for one in (here[0], at))
                length = max(index + 1 for one in (first, other) for index, rate in enumerate(one) if rate or not index)
                raise other_learning_rates(self._updates, (ranks[here[0]], first[:length]), (ranks[at], other[:length]))
        for same in _weight_replica_groups(table):
            if odd := odd_ranks(table[same, _WEIGHTS].tolist()):
                when = f"before update {self._updates} of this world"
                differing = tuple(ranks[same[at]] for at in odd)
                # A difference is compared a second time before the next update.
                raise other_weights(differing, len(same), when, PARTS * EVERY, self._updates <= max(FIRST) + 1)

    def _compare_draws(self, table: Any, draws: ProcessGroupEpochs, reported: Any) -> None:
        position = queue_of(self._process_set).ranks.index(queue_of(self._process_set).rank)
        if len(set(table[:, _DRAWS].tolist())) == 1:
            draws.compare(position, [reported] * len(table))
        elif table[:, _HERE].all():
            draws.compare(position, allgather_object(reported, f"{self._name}.draws", self._process_set))


def _are_replicas_equal(table: Any) -> bool:
    rates = {row[_RATES] for row in table if row[_HERE]}
    return len(rates) < 2 and not any(
        odd_ranks(table[same, _WEIGHTS].tolist()) for same in _weight_replica_groups(table)
    )


def _weight_replica_groups(table: Any) -> list[list[int]]:
    """Return groups of ranks, as indexes in the process set, that train the same weights on the same platform and must
    be equal."""
    found: dict[tuple[int, int], list[int]] = {}
    for at, row in enumerate(table):
        if row[_HERE]:
            found.setdefault((row[_CUT], row[_PLATFORM]), []).append(at)
    return list(found.values())


def _weight_replica_hash(text: str) -> int:
    return zlib.crc32(text.encode())
