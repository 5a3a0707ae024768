"""Why requests of several ranks under one name cannot become one collective: pure, and equal on every rank."""

from collections.abc import Mapping
from typing import Any

from ringtrain.negotiation.request import CollectiveKind, Request

# What every kind demands to be equal, in the order in which a difference is reported.
_FIELDS = (
    ("kind", "collective"),
    ("device", "device"),
    ("dtypes", "dtype"),
    ("op", "op"),
    ("root", "root rank"),
    ("prescale", "prescale factor"),
    ("postscale", "postscale factor"),
)


def mismatch(requests: Mapping[int, Request], ranks: tuple[int, ...]) -> str:
    """Return the first reason that forbids the collective, naming two ranks and both values; empty if there is
    none.

    `requests`: by world rank. `ranks`: members of the process set, in order.
    """
    for rank in ranks:
        if rank in requests and requests[rank].error:
            return f"rank {rank}: {requests[rank].kind} {requests[rank].name!r}: {requests[rank].error}"
    members = [rank for rank in ranks if rank in requests]
    first = members[0]
    for rank in members[1:]:
        for field, label in _FIELDS:
            ours, theirs = getattr(requests[first], field), getattr(requests[rank], field)
            if ours != theirs:
                return _differs(requests[first].name, label, (first, _short(ours)), (rank, _short(theirs)))
        if reason := _shapes_differ(requests, first, rank):
            return reason
    return _alone(requests[first], ranks)


def joined_reason(request: Request, joined: list[int]) -> str:
    """Return why `request` cannot run while `joined` ranks have no data; empty if it can."""
    reduces = request.kind is CollectiveKind.ALLREDUCE and request.op in ("Sum", "Average", "Adasum")
    if reduces or request.kind is CollectiveKind.BARRIER:
        return ""
    what = f"{request.kind} with op {request.op}" if request.op else str(request.kind)
    return (
        f"{request.name!r}: {what} needs data from every rank, and rank {joined[0]} has called join(); after a "
        "rank "
        "has joined, only allreduce with Sum, Average or Adasum can go on"
    )


def _shapes_differ(requests: Mapping[int, Request], first: int, rank: int) -> str:
    ours, theirs = requests[first], requests[rank]
    rows_may_differ = ours.kind in (CollectiveKind.ALLGATHER, CollectiveKind.ALLTOALL)
    here = [shape[1:] if rows_may_differ else shape for shape in ours.shapes]
    there = [shape[1:] if rows_may_differ else shape for shape in theirs.shapes]
    if here == there and [len(s) for s in ours.shapes] == [len(s) for s in theirs.shapes]:
        return ""
    what = "shape after the first dimension" if rows_may_differ else "shape"
    return _differs(ours.name, what, (first, _short(ours.shapes)), (rank, _short(theirs.shapes)))


def _alone(request: Request, ranks: tuple[int, ...]) -> str:
    if request.kind is CollectiveKind.BROADCAST and request.root not in ranks:
        return (
            f"broadcast {request.name!r}: root rank is {request.root}; expected one of the process set's ranks "
            f"{list(ranks)}"
        )
    return ""


def _differs(name: str, what: str, ours: tuple[int, Any], theirs: tuple[int, Any]) -> str:
    return (
        f"{name!r}: {what} is {ours[1]} on rank {ours[0]} and {theirs[1]} on rank {theirs[0]}; every rank must "
        "submit "
        "the same"
    )


def _short(value: Any) -> Any:
    """The one element of a tuple of one: only grouped collectives have more."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value
