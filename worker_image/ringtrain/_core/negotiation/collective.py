"""Description of a named collective, which an adapter builds before it knows the tensors, and then submits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringtrain._core.negotiation.execution import request_tensors_error
from ringtrain._core.negotiation.queues import name_for, queue_of
from ringtrain._core.negotiation.request import KNOWN_MAX, CollectiveKind, NamedRequest, described, request_splits_error
from ringtrain._core.negotiation.submission import NamedSubmission
from ringtrain._core.process_groups.process_sets import ProcessSet, members
from ringtrain._core.process_groups.tensors import Array
from ringtrain._core.reduction.arithmetic import adasum_error
from ringtrain._core.reduction.ops import ReduceOp, only_sums
from ringtrain._core.wire.dtypes import name_of


@dataclass(frozen=True)
class NamedReduction:
    """Operation, scale factors and process set of a named reduction. `op`: name of a `ringtrain.ReduceOp`."""

    op: str
    process_set: ProcessSet
    prescale: float = 1.0
    postscale: float = 1.0

    @classmethod
    def of(
        cls, op: Any, average: bool | None, prescale: float, postscale: float, process_set: ProcessSet
    ) -> NamedReduction:
        """Return the reduction for an allreduce's arguments. Raises ConfigurationError for invalid ones."""
        return _named_reduction(ReduceOp.of(op, average), float(prescale), float(postscale), process_set)

    @classmethod
    def of_sums(
        cls, series: str, op: Any, prescale: float, postscale: float, process_set: ProcessSet
    ) -> NamedReduction:
        """Return the reduction if `op` is Average or Sum. Raises ConfigurationError for any other `op`, naming
        `series`."""
        return _named_reduction(only_sums(ReduceOp.of(op), series), float(prescale), float(postscale), process_set)


@functools.lru_cache(maxsize=KNOWN_MAX)  # the same ones are needed in every step
def _named_reduction(op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet) -> NamedReduction:
    return NamedReduction(op.value, process_set, prescale, postscale)


@dataclass(frozen=True)
class NamedCollective:
    """One rank's part in a named collective, before its tensors are known.

    The class methods create an object. Their argument `name` is the user's name. If it is None, the collective gets the
    next name of `series`, which is numbered equally on every rank. Grouped collectives have several tensors. `splits`:
    number of rows for each rank in an alltoall, or None for equal parts. `error`: why this rank's arguments are wrong;
    the collective then fails on every rank with this message.
    """

    request: NamedRequest
    process_set: ProcessSet
    error: str = ""
    splits: tuple[float, ...] | None = None

    @classmethod
    def allreduce(
        cls, how: NamedReduction, name: str | None = None, series: str = "allreduce", bucket: Sequence[str] = ()
    ) -> NamedCollective:
        """Return an allreduce of one or more tensors.

        `bucket`: names of tensors of one dtype that are reduced as one and never fused with others.
        """
        full = name_for(series, name, how.process_set)
        made = _reducing(how, full, CollectiveKind.ALLREDUCE, tuple(bucket))
        return made if how.op != "Adasum" else replace(made, error=adasum_error(members(how.process_set)))

    @classmethod
    def reducescatter(
        cls, how: NamedReduction, name: str | None = None, series: str = "reducescatter"
    ) -> NamedCollective:
        """Return a reduce-scatter of one or more tensors; its results are this rank's rows."""
        full = name_for(series, name, how.process_set)
        return _reducing(how, full, CollectiveKind.REDUCESCATTER)

    @classmethod
    def allgather(cls, process_set: ProcessSet, name: str | None = None, series: str = "allgather") -> NamedCollective:
        """Return an allgather of the rows of one or more tensors."""
        return cls(NamedRequest(CollectiveKind.ALLGATHER, name_for(series, name, process_set)), process_set)

    @classmethod
    def broadcast(cls, root: int, process_set: ProcessSet, name: str | None = None) -> NamedCollective:
        """Return a broadcast of the tensors of world rank `root`."""
        full = name_for("broadcast", name, process_set)
        return cls(NamedRequest(CollectiveKind.BROADCAST, full, root=int(root)), process_set)

    @classmethod
    def alltoall(
        cls, splits: Sequence[float] | None, process_set: ProcessSet, name: str | None = None
    ) -> NamedCollective:
        """Return an alltoall that sends `splits[i]` rows of one tensor to rank i of the process set.

        Its results are the received rows and the number from each rank.
        """
        request = NamedRequest(CollectiveKind.ALLTOALL, name_for("alltoall", name, process_set))
        return cls(request, process_set, splits=None if splits is None else tuple(splits))

    @property
    def name(self) -> str:
        """Return the name that ranks compare."""
        return self.request.name

    def request_of(
        self, dtypes: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], device: str = "cpu", error: str = ""
    ) -> NamedRequest:
        """Return the request to submit for tensors of these dtypes and shapes. `error`: why the tensors are invalid."""
        full = described(self.request, dtypes, shapes, device)
        wrong = self.error or error or request_tensors_error(full)
        if not wrong and full.kind is not CollectiveKind.ALLTOALL:
            return full
        if wrong := wrong or request_splits_error(full.shapes[0], self.splits, members(self.process_set)):
            return replace(full, error=wrong)
        return replace(full, splits=None if self.splits is None else tuple(int(rows) for rows in self.splits))

    def begin(self, arrays: Sequence[Array]) -> NamedSubmission:
        """Submit the collective with `arrays`, which must not change before the result is available."""
        held = [np.asarray(array) for array in arrays]
        request = self.request_of(tuple(name_of(one.dtype) for one in held), tuple(one.shape for one in held))
        return queue_of(self.process_set).submit(request, lambda: held)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Submit the collective with `arrays`, wait, and return the results."""
        return list(self.begin(arrays).result())


@functools.lru_cache(maxsize=KNOWN_MAX)
def _reducing(how: NamedReduction, name: str, kind: CollectiveKind, bucket: tuple[str, ...] = ()) -> NamedCollective:
    prescale, postscale = float(how.prescale), float(how.postscale)
    request = NamedRequest(kind, name, op=how.op, prescale=prescale, postscale=postscale, members=bucket)
    return NamedCollective(request, how.process_set)
