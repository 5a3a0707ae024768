"""A small adapter that is no framework's: it imports `ringtrain.adapter` and public modules alone.

Its arrays are strips: a row of real numbers, or of amounts, which are stored as whole hundredths.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ringtrain import ProcessSet, global_process_set
from ringtrain import adapter as core
from ringtrain.adapter import (
    Array,
    ForeignWireValues,
    HostOptimizerGroups,
    NamedCollective,
    NamedReduction,
    NamedSubmission,
    OnHostOptimizer,
    OptimizerReplica,
    queue_of,
)
from ringtrain.adapter.state import participants_by_type
from ringtrain.elastic import Participant, StateExtension, StateHandler
from ringtrain.errors import ConfigurationError
from ringtrain.optim import HostOptimizer, Rule

DTYPES = {"real": np.float32, "amount": np.int32}


class Strip:
    """A row of numbers. Of the dtype "amount" each is a number of hundredths."""

    def __init__(self, values: list[Any], dtype: str = "real") -> None:
        self.values, self.dtype = values, dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Strip) and (self.values, self.dtype) == (other.values, other.dtype)

    def __repr__(self) -> str:
        return f"Strip({self.values}, {self.dtype!r})"

    __hash__ = None  # type: ignore[assignment]  # values change


def to_array(strip: Strip) -> Array:
    return np.array(strip.values, DTYPES[strip.dtype])


def to_strip(array: Array, dtype: str) -> Strip:
    return Strip(array.tolist(), dtype)


def allreduce(strip: Strip, op: Any = None, name: str | None = None, ranks: ProcessSet = global_process_set) -> Strip:
    """Return the strips of all ranks, reduced."""
    how = NamedReduction.of(op, None, 1.0, 1.0, ranks)
    (reduced,) = NamedCollective.allreduce(how, name).run([to_array(strip)])
    return to_strip(reduced, strip.dtype)


def allreduce_async(strip: Strip, name: str) -> NamedSubmission:
    """Begin to sum strips; the result is a strip, which the queue's own thread makes."""
    collective = NamedCollective.allreduce(NamedReduction.of("Sum", None, 1.0, 1.0, global_process_set), name)
    array = to_array(strip)
    request = collective.request_of((array.dtype.name,), (array.shape,))

    def finish(results: list[Array]) -> Strip:
        return to_strip(results[0], strip.dtype)

    return queue_of(collective.process_set).submit(request, lambda: [array], finish)


def allgather(strip: Strip) -> Strip:
    """Return the strips of all ranks, one behind the other."""
    (gathered,) = NamedCollective.allgather(global_process_set).run([to_array(strip)])
    return to_strip(gathered, strip.dtype)


def broadcast(strip: Strip, root: int) -> Strip:
    """Return the strip of rank `root`."""
    (received,) = NamedCollective.broadcast(root, global_process_set).run([to_array(strip)])
    return to_strip(received, strip.dtype)


def alltoall(strip: Strip, splits: Sequence[int] | None) -> tuple[Strip, list[int]]:
    """Send `splits[i]` numbers to rank i; return what came, and how much from each rank."""
    received, counts = NamedCollective.alltoall(splits, global_process_set).run([to_array(strip)])
    return to_strip(received, strip.dtype), counts.tolist()


def broadcast_object(value: Any, root: int) -> Any:
    """Return the object of rank `root`, with strips in it."""
    return core.broadcast_object(value, root, None, global_process_set, foreign=VALUES)


def _packed(value: Any) -> bytes:
    if not isinstance(value, Strip):
        raise ConfigurationError(f"{type(value).__name__} is no strip")
    return core.encode_value((value.values, value.dtype))


VALUES = ForeignWireValues(_packed, lambda data: Strip(*core.decode_value(data)))


class StripOptimizer(OnHostOptimizer):
    """Update strips of real numbers in host memory, by the mean gradient of the ranks of `ranks`."""

    def __init__(self, strips: Mapping[str, Strip], rule: Rule, ranks: ProcessSet = global_process_set) -> None:
        self._strips = strips
        self._groups = HostOptimizerGroups(ranks)
        arrays = {name: to_array(strip) for name, strip in strips.items()}
        self._host = HostOptimizer(arrays, rule, group=self._groups.first(elastic=True), elastic=True)
        self._write()

    def step(self, grads: Mapping[str, Strip]) -> None:
        """Make an update; the strips have the new weights then."""
        for name, grad in grads.items():
            self._host.submit(name, to_array(grad))
        self._host.step()
        self._write()

    def adopt(self) -> None:
        super().adopt()
        self._write()

    def close(self) -> None:
        self._host.close()
        self._groups.close()

    def _write(self) -> None:
        for name, strip in self._strips.items():
            strip.values = self._host.weights[name].tolist()


def replica_of(strips: Sequence[Strip]) -> Callable[[int], OptimizerReplica]:
    """Return what looks at a part of `strips` before an update."""

    def look(part: int) -> OptimizerReplica:
        arrays = [to_array(strip) for strip in strips]
        sizes = [(len(array), array.nbytes) for array in arrays]
        rows = [arrays[at][first:behind].view(np.uint8) for at, first, behind in OptimizerReplica.rows(sizes, part)]
        return OptimizerReplica(repr(sizes), OptimizerReplica.processor(), OptimizerReplica.digest(rows))

    return look


class StripHandler(StateHandler):
    """Keeps a strip in an elastic state."""

    def __init__(self, value: Strip) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value)

    def restore(self) -> None:
        self.value.values = list(self._saved.values)

    def sync(self, root: int = 0) -> None:
        self.value.values = broadcast(self.value, root).values
        self.save()


class StripCodec:
    """Writes strips into checkpoints."""

    def encode(self, value: Any, keep: Callable[[Array], str]) -> Mapping[str, Any] | None:
        return {"$strip": keep(to_array(value)), "dtype": value.dtype} if isinstance(value, Strip) else None

    def decode(self, tag: str, tree: Mapping[str, Any], content: Any) -> Strip:
        return to_strip(content, tree["dtype"])


CODEC = StripCodec()


def _strip_participants(left: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Participant]:
    return participants_by_type(left, [(Strip, StripHandler)])


EXTENSION = StateExtension(_strip_participants)
