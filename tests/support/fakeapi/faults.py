"""Scripted faults: what goes wrong, on which request, how often; a test asserts that each one fired."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from support.fakeapi.errors import StatusError

REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass
class Fault:
    """One fault. It waits for `after` matching requests, then fires `times` times.

    `method` is an HTTP method, `WATCH`, or `*` for every write; `plural` names the kind (`*`: any).
    `when="before"`: the request is refused and nothing changed. `when="after"`: it is carried out and the
    answer is lost. `code=0` drops the connection without an answer. With `hold` nothing is refused: the request is
    carried out when that is set.
    """

    method: str
    plural: str
    code: int
    times: int = 1
    after: int = 0
    when: Literal["before", "after"] = "before"
    retry_after_s: int | None = None
    message: str = "scripted fault"
    name: str = ""
    hold: asyncio.Event | None = None
    fired: int = 0

    def matches(self, method: str, plural: str, name: str) -> bool:
        """Whether this fault is meant for such a request (it may still be waiting, or spent)."""
        of_method = method not in ("GET", "WATCH") if self.method == "*" else method == self.method
        return of_method and self.plural in ("*", plural) and (not self.name or self.name == name)


@dataclass
class FaultPlan:
    """The faults of one test, in the order they are tried."""

    faults: list[Fault] = field(default_factory=list)

    def add(self, method: str, plural: str, code: int, **more: object) -> Fault:
        """Script one fault and return it, so that the test can assert `fault.fired`."""
        fault = Fault(method, plural, code, **more)  # type: ignore[arg-type]
        self.faults.append(fault)
        return fault

    def next(self, method: str, plural: str, name: str) -> Fault | None:
        """The fault that fires on this request, counted as fired."""
        for fault in self.faults:
            if not fault.matches(method, plural, name):
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            if fault.fired < fault.times:
                fault.fired += 1
                return fault
        return None


def as_error(fault: Fault) -> StatusError:
    """The Status that a fault answers with."""
    return StatusError(fault.code, REASONS.get(fault.code, "Unknown"), fault.message)
