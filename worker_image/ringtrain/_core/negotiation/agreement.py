"""Order of named collectives. Every rank computes it from the messages of all ranks, so all ranks get the same order.

Has no clock, thread or socket: `RequestNegotiation` receives the same rounds on every rank and returns the same
decisions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ringtrain._core.negotiation.request import KNOWN_MAX, CollectiveKind, NamedRequest, NegotiationRound

# Fields that must be equal on all ranks, in the order in which a difference is reported.
_FIELDS = (
    ("kind", "collective"),
    ("device", "device"),
    ("members", "bucket"),
    ("dtypes", "dtype"),
    ("op", "op"),
    ("root", "root rank"),
    ("prescale", "prescale factor"),
    ("postscale", "postscale factor"),
)
# Adapters gather sparse gradients and reduce dense ones.
_SPARSE_AND_DENSE: Final = {CollectiveKind.ALLGATHER, CollectiveKind.ALLREDUCE}
_SPARSE: Final = (
    ". A sparse gradient is gathered, and a dense one is reduced: if this is a gradient, make it sparse on all ranks "
    "or on none, or pass sparse_as_dense=True"
)


@dataclass(frozen=True)
class NegotiatedRequests:
    """Collective that every rank should run now; if `error` is set, every rank fails it with that message.

    `requests`: requests by world rank. A rank that has called `join` has no request and contributes zeros.
    """

    name: str
    requests: Mapping[int, NamedRequest]
    error: str = ""

    @property
    def any_request(self) -> NamedRequest:
        return next(iter(self.requests.values()))


@dataclass(frozen=True)
class NegotiationDecisions:
    """Result of one negotiation round. `all_joined`: the last rank to join, once every rank has joined."""

    agreed: tuple[NegotiatedRequests, ...] = ()
    all_joined: int | None = None


@dataclass
class RequestNegotiation:
    """State of a negotiation: which ranks have submitted which collective. `ranks`: world ranks of the process set."""

    ranks: tuple[int, ...]
    _submitted: dict[str, dict[int, NamedRequest]] = field(default_factory=dict)
    _known: list[NegotiatedRequests] = field(default_factory=list)
    _numbers: dict[NamedRequest, int] = field(default_factory=dict)
    _joined: list[int] = field(default_factory=list)
    _has_expired: bool = False

    @property
    def needs_round(self) -> bool:
        """Return whether this rank must take part in another round although it has no new requests.

        This is so if a name has expired and other names still wait, because a name can expire only in a round.
        """
        return self._has_expired and bool(self._submitted)

    def next_round(
        self, requests: Sequence[NamedRequest], joined: bool = False, expired: Sequence[str] = ()
    ) -> NegotiationRound:
        """Return this rank's message for the next round; requests that all ranks know are sent as numbers.

        `joined`: whether this rank has called `join`. `expired`: names for whose missing ranks this rank no longer
        waits.
        """
        numbers = [self._numbers.get(request, -1) for request in requests]
        new = tuple(request for request, number in zip(requests, numbers, strict=True) if number < 0)
        return NegotiationRound(new, tuple(number for number in numbers if number >= 0), joined, tuple(expired))

    def receive(self, rounds: Sequence[NegotiationRound]) -> NegotiationDecisions:
        """Process the messages of one round, one per rank. Return the decisions, which are the same on every rank."""
        if not self._submitted and not self._joined and _are_all_known(rounds):  # the usual step
            return NegotiationDecisions(tuple(self._known[number] for number in rounds[0].known))
        for rank, message in zip(self.ranks, rounds, strict=True):
            for request in (*(self._known[number].any_request for number in message.known), *message.requests):
                self._submitted.setdefault(request.name, {})[rank] = request
            if message.joined and rank not in self._joined:
                self._joined.append(rank)
        agreed = tuple(self._take(name) for name in [n for n in self._submitted if self._complete(n)])
        expired = dict.fromkeys(name for message in rounds for name in message.expired if name in self._submitted)
        agreed += tuple(self._expire(name) for name in expired)
        self._has_expired = bool(self._submitted) and (self._has_expired or bool(expired))
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
            self._numbers.clear()
        return NegotiationDecisions(agreed, self._take_joined())

    def submitters_of(self, name: str) -> tuple[list[int], list[int]]:
        """Return two lists: the ranks that have submitted `name`, and the ranks that have neither submitted it nor
        called `join`."""
        submitters = sorted(self._submitted.get(name, {}))
        return submitters, [rank for rank in self.ranks if rank not in submitters and rank not in self._joined]

    def _complete(self, name: str) -> bool:
        return all(rank in self._submitted[name] or rank in self._joined for rank in self.ranks)

    def _take(self, name: str) -> NegotiatedRequests:
        requests = self._submitted.pop(name)
        first = next(iter(requests.values()))
        absent = [rank for rank in self._joined if rank not in requests]
        error = _request_mismatch(requests, self.ranks)
        if absent:
            error = error or _joined_reason(first, absent)
        elif not error and first.same_everywhere and first not in self._numbers:
            self._numbers[first] = len(self._known)
            self._known.append(NegotiatedRequests(name, dict.fromkeys(self.ranks, first)))
        return NegotiatedRequests(name, requests, error)

    def _expire(self, name: str) -> NegotiatedRequests:
        requests = self._submitted.pop(name)
        missing = [rank for rank in self.ranks if rank not in requests and rank not in self._joined]
        return NegotiatedRequests(
            name,
            requests,
            f"{name!r}: submitted by ranks {sorted(requests)} and not by ranks {missing} within "
            "RINGTRAIN_STALL_TIMEOUT; every rank of the process set must submit it, or call join()",
        )

    def _take_joined(self) -> int | None:
        if len(self._joined) < len(self.ranks):
            return None
        last = self._joined[-1]
        self._joined.clear()
        return last


def _are_all_known(rounds: Sequence[NegotiationRound]) -> bool:
    """Return whether all messages are equal and contain only known requests, each once."""
    first = rounds[0]
    is_plain = not (first.requests or first.joined or first.expired)
    return is_plain and all(one == first for one in rounds) and len(set(first.known)) == len(first.known)


def _request_mismatch(requests: Mapping[int, NamedRequest], ranks: tuple[int, ...]) -> str:
    """Return the first reason that forbids the collective, such as a difference; empty if there is none.

    `requests`: requests by world rank. `ranks`: members of the process set, in order.
    """
    for rank in ranks:
        if rank in requests and (error := _own_error(requests[rank])):
            return f"rank {rank}: {requests[rank].kind} {requests[rank].name!r}: {error}"
    first, *others = (rank for rank in ranks if rank in requests)
    for rank in others:
        for attribute, label in _FIELDS:
            ours, theirs = getattr(requests[first], attribute), getattr(requests[rank], attribute)
            if ours != theirs:
                reason = _request_differs(
                    requests[first].name,
                    label,
                    (first, _short_request_value(ours)),
                    (rank, _short_request_value(theirs)),
                )
                return reason + (_SPARSE if {ours, theirs} == _SPARSE_AND_DENSE else "")
        if reason := _shapes_differ(requests, first, rank):
            return reason
    request = requests[first]
    if request.kind is CollectiveKind.BROADCAST and request.root not in ranks:
        return (
            f"broadcast {request.name!r}: root rank is {request.root}; expected one of the process set's ranks "
            f"{list(ranks)}"
        )
    return ""


def _own_error(request: NamedRequest) -> str:
    if not request.dtypes and request.kind is not CollectiveKind.BARRIER:
        return "got no tensor; expected at least one"
    return request.error


def _joined_reason(request: NamedRequest, joined: list[int]) -> str:
    """Return why `request` cannot run without data of the ranks in `joined`; empty if it can."""
    reduces = request.kind is CollectiveKind.ALLREDUCE and request.op in ("Sum", "Average", "Adasum")
    if reduces or request.kind is CollectiveKind.BARRIER:
        return ""
    what = f"{request.kind} with op {request.op}" if request.op else str(request.kind)
    return (
        f"{request.name!r}: {what} needs data from every rank, and rank {joined[0]} has called join(); after a "
        "rank has joined, only allreduce with Sum, Average or Adasum is possible. In an elastic job ranks join "
        "while they wait for newcomers: call it only in the function that elastic.run calls"
    )


def _shapes_differ(requests: Mapping[int, NamedRequest], first: int, rank: int) -> str:
    ours, theirs = requests[first], requests[rank]
    if ours.shapes == theirs.shapes:
        return ""
    for name, own, other in zip(ours.members, ours.shapes, theirs.shapes, strict=False):
        if own != other:
            return _request_differs(name, "shape", (first, own), (rank, other))
    rows_may_differ = ours.kind in (CollectiveKind.ALLGATHER, CollectiveKind.ALLTOALL)
    here = [shape[1:] if rows_may_differ else shape for shape in ours.shapes]
    there = [shape[1:] if rows_may_differ else shape for shape in theirs.shapes]
    if here == there and [len(s) for s in ours.shapes] == [len(s) for s in theirs.shapes]:
        return ""
    what = "shape after the first dimension" if rows_may_differ else "shape"
    return _request_differs(
        ours.name, what, (first, _short_request_value(ours.shapes)), (rank, _short_request_value(theirs.shapes))
    )


def _request_differs(name: str, what: str, ours: tuple[int, Any], theirs: tuple[int, Any]) -> str:
    return (
        f"{name!r}: {what} is {ours[1]} on rank {ours[0]} and {theirs[1]} on rank {theirs[0]}; every rank must "
        "submit the same"
    )


def _short_request_value(value: Any) -> Any:
    """Return the element of a tuple with one element; any other value unchanged. For messages."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value
