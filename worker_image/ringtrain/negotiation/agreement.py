"""In which order named collectives run: decided from what every rank said, so every rank decides the same.

No clock, thread or socket in here: `Agreement` is fed the same rounds on every rank and returns the same
decisions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringtrain.negotiation.mismatch import joined_reason, mismatch
from ringtrain.negotiation.request import Request, Round

# Numbers given to agreed requests are all forgotten beyond this: names made up for single calls never come back.
KNOWN_MAX = 4096


@dataclass(frozen=True)
class Agreed:
    """All ranks asked for it: run it, or fail it with `error`. `requests` by world rank; a rank that has joined is
    absent from it and contributes zeros."""

    name: str
    requests: Mapping[int, Request]
    error: str = ""

    @property
    def any_request(self) -> Request:
        return next(iter(self.requests.values()))


@dataclass(frozen=True)
class Decisions:
    """What follows from one round. `all_joined`: the last rank to join, once every rank has."""

    agreed: tuple[Agreed, ...] = ()
    all_joined: int | None = None


@dataclass
class Agreement:
    """Requests of which some rank's part is still missing. `ranks`: members of the process set by world rank."""

    ranks: tuple[int, ...]
    _asked: dict[str, dict[int, Request]] = field(default_factory=dict)
    _known: list[Request] = field(default_factory=list)
    _numbers: dict[Request, int] = field(default_factory=dict)
    _joined: list[int] = field(default_factory=list)

    def next_round(self, requests: Sequence[Request], joined: bool = False, expired: Sequence[str] = ()) -> Round:
        """Put this rank's new requests into the fewest bytes that the others understand."""
        new = tuple(request for request in requests if request not in self._numbers)
        known = tuple(self._numbers[request] for request in requests if request in self._numbers)
        return Round(new, known, joined, tuple(expired))

    def receive(self, rounds: Sequence[Round]) -> Decisions:
        """Take in one round (one entry a rank, in the set's order) and return what every rank does now."""
        for rank, said in zip(self.ranks, rounds, strict=True):
            for request in (*(self._known[number] for number in said.known), *said.requests):
                self._asked.setdefault(request.name, {})[rank] = request
            if said.joined and rank not in self._joined:
                self._joined.append(rank)
        agreed = tuple(self._take(name) for name in [n for n in self._asked if self._complete(n)])
        expired = dict.fromkeys(name for said in rounds for name in said.expired if name in self._asked)
        agreed += tuple(self._expire(name) for name in expired)
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
            self._numbers.clear()
        return Decisions(agreed, self._take_joined())

    def asked_by(self, name: str) -> tuple[list[int], list[int]]:
        """Which ranks have submitted `name`, and which have not and have not joined either."""
        asked = sorted(self._asked.get(name, {}))
        return asked, [rank for rank in self.ranks if rank not in asked and rank not in self._joined]

    def _complete(self, name: str) -> bool:
        return all(rank in self._asked[name] or rank in self._joined for rank in self.ranks)

    def _take(self, name: str) -> Agreed:
        requests = self._asked.pop(name)
        error = mismatch(requests, self.ranks)
        agreed = Agreed(name, requests, error)
        absent = [rank for rank in self._joined if rank not in requests]
        if absent and not error:
            return Agreed(name, requests, joined_reason(agreed.any_request, absent))
        if not error and agreed.any_request.same_everywhere and agreed.any_request not in self._numbers:
            self._numbers[agreed.any_request] = len(self._known)
            self._known.append(agreed.any_request)
        return agreed

    def _expire(self, name: str) -> Agreed:
        requests = self._asked.pop(name)
        missing = [rank for rank in self.ranks if rank not in requests and rank not in self._joined]
        return Agreed(
            name,
            requests,
            f"{name!r}: submitted by ranks {sorted(requests)} and not by ranks {missing} within the time that "
            "RINGTRAIN_STALL_TIMEOUT allows; every rank of the process set must submit it, or call join()",
        )

    def _take_joined(self) -> int | None:
        if len(self._joined) < len(self.ranks):
            return None
        last = self._joined[-1]
        self._joined.clear()
        return last
