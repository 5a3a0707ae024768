"""Request of a rank for a named collective, and its JSON format between ranks."""

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from ringtrain.errors import counted

# Beyond this number all known requests are forgotten, because generated names of single calls never recur.
KNOWN_MAX = 4096


class CollectiveKind(StrEnum):
    """The collectives that can be submitted by name."""

    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"
    ALLTOALL = "alltoall"
    REDUCESCATTER = "reducescatter"
    BARRIER = "barrier"


@dataclass(frozen=True)
class NamedRequest:
    """One rank's part in a named collective. Only grouped collectives have several tensors; a barrier has none.

    `dtypes`, `shapes`: one for each tensor. `op`: name of the reduction, empty for other collectives. `root`: rank
    within the world. `splits`: rows for each rank of the set, for alltoall. `device`: kind of the tensors' device.
    `members`: the names of a bucket's tensors, of one dtype; a bucket is never fused with other requests. `error`: why
    this rank cannot take part; the collective then fails on every rank with this message.
    """

    kind: CollectiveKind
    name: str
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    op: str = ""
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] | None = None
    device: str = "cpu"
    members: tuple[str, ...] = ()
    error: str = ""

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:  # used in every round, and hashing all fields takes microseconds
        return hash((self.kind, self.name, self.dtypes, self.shapes, self.op))

    @property
    def same_everywhere(self) -> bool:
        """Return whether all ranks' requests of this kind must be equal; later rounds then send only a number."""
        return self.kind not in (CollectiveKind.ALLGATHER, CollectiveKind.ALLTOALL) and not self.error


@dataclass(frozen=True)
class NegotiationRound:
    """Message of one rank to all others in a negotiation round.

    `known`: numbers of requests that were agreed on before. `expired`: names for whose missing ranks this one no longer
    waits.
    """

    requests: tuple[NamedRequest, ...] = ()
    known: tuple[int, ...] = ()
    joined: bool = False
    expired: tuple[str, ...] = ()

    def encode(self) -> bytes:
        fields = {"r": [asdict(request) for request in self.requests], "k": self.known}
        return json.dumps({**fields, "j": self.joined, "x": self.expired}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, message: bytes) -> "NegotiationRound":
        data = json.loads(message)
        requests = tuple(_request_from(fields) for fields in data["r"])
        return cls(requests, tuple(data["k"]), data["j"], tuple(data["x"]))


@functools.lru_cache(maxsize=KNOWN_MAX)  # the same ones are needed in every step
def described(
    request: NamedRequest, dtypes: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], device: str
) -> NamedRequest:
    """Return `request` with dtypes, shapes and device of its tensors. Cached: equal arguments give the same object."""
    return replace(request, dtypes=dtypes, shapes=tuple(map(tuple, shapes)), device=device)


def _request_from(fields: dict[str, Any]) -> NamedRequest:
    fields["kind"] = CollectiveKind(fields["kind"])
    fields["dtypes"] = tuple(fields["dtypes"])
    fields["shapes"] = tuple(tuple(shape) for shape in fields["shapes"])
    fields["members"] = tuple(fields["members"])
    fields["splits"] = None if fields["splits"] is None else tuple(fields["splits"])
    return NamedRequest(**fields)


def splits_of(requests: Sequence[NamedRequest]) -> list[tuple[int, ...]]:
    """Return the numbers of rows that each rank sends to each rank, from the alltoall `requests` of all ranks."""
    size = len(requests)
    return [one.splits or (one.shapes[0][0] // size,) * size for one in requests]


def request_splits_error(shape: Sequence[int], splits: Sequence[float] | None, size: int) -> str:
    """Return why `splits` do not divide the rows of a tensor of `shape` among `size` ranks; empty if they do."""
    if not shape:
        return "the tensor is a scalar; expected at least one dimension to cut along"
    if splits is None:
        if shape[0] % size:
            return f"{counted(shape[0], 'row')} can't be divided equally among {size} ranks; pass splits"
        return ""
    if len(splits) != size:
        return (
            f"splits has {counted(len(splits), 'entry', 'entries')} {list(splits)}; expected one for each of "
            f"{counted(size, 'rank')}"
        )
    if not all(float(rows).is_integer() for rows in splits):
        return f"splits is {list(splits)}; expected whole numbers"
    if min(splits) < 0:
        return f"splits is {list(splits)}; expected no negative entry"
    if sum(splits) != shape[0]:
        rows = counted(int(sum(splits)), "row")
        return f"splits {list(splits)} add up to {rows}; expected {shape[0]}, those of the tensor"
    return ""


def scalar_error(shapes: Sequence[Sequence[int]]) -> str:
    """Return an error for the first scalar among tensors of these `shapes`; empty if none is a scalar."""
    for index, shape in enumerate(shapes):
        if not shape:
            return f"tensor {index} is a scalar; expected at least one dimension"
    return ""
