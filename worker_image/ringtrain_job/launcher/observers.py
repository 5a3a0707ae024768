"""Features that watch an attempt: what shows, draws, sends or copies it.

`launcher/registry.py` finds them. The launcher names none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ringtrain_job.control.model import Verdict
from ringtrain_job.launcher.verdict import GangView
from ringtrain_job.logs.samples import MachineSample

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

log = logging.getLogger(__name__)


class HttpRoutes(Protocol):
    """Paths that an observer serves on the status port."""

    def serves(self, path: str) -> bool:
        """Return whether `path` is one of them."""

    def get(self, request: BaseHTTPRequestHandler, admitted: Callable[[], None]) -> None:
        """Answer a GET request; call `admitted` once the client is authenticated."""

    def close(self, timeout_s: float) -> None:
        """End requests that are open, after at most `timeout_s`."""


class AttemptObserver:
    """Watch an attempt. Implement the methods that you need.

    `wrote`, `reported` and `measured` are called on threads that write logs, in order, and must not wait; the others
    on the main thread. An observer that raises is logged once and gets no more calls but `close`: it never delays or
    fails training.
    """

    order: ClassVar[int] = 50  # of the calls: who needs the files of others comes later
    routes: HttpRoutes | None = None

    def listening(self, port: int) -> None:
        """The status port is open."""

    def wrote(self, lines: bytes) -> None:
        """Whole lines were added to `job.log`."""

    def reported(self, rank: int, report: dict[str, Any]) -> None:
        """A report of `rank` was stored, and the launcher's status has it."""

    def measured(self, sample: MachineSample) -> None:
        """An agent has measured its machine."""

    def world_changed(self, ranks: Collection[int]) -> None:
        """From now on the world has these ranks alone."""

    def changed(self, view: GangView) -> None:
        """The gang may have changed; at most five times a second."""

    def ended(self, verdict: Verdict | None) -> None:
        """The attempt is over and its outcome is stored. None: another launcher goes on with it."""

    def close(self) -> None:
        """End, within some seconds."""

    def status(self) -> Mapping[str, Any]:
        """Return entries of `logs` in /status."""
        return {}

    def unfinished(self) -> Mapping[str, Any] | None:
        """Return, after `ended`, which of its work is not done, for the termination message; None: all is."""
        return None


class Observers(AttemptObserver):
    """All observers of an attempt, as one. Calls go to each in its order."""

    def __init__(self, observers: Collection[AttemptObserver] = ()) -> None:
        self._observers = sorted(observers, key=lambda observer: observer.order)
        self._failed: set[int] = set()

    @property
    def follows_gang(self) -> bool:
        """Whether an observer implements `changed`: a view of thousands of ranks is not made for none."""
        return any(type(observer).changed is not AttemptObserver.changed for observer in self._observers)

    @property
    def all_routes(self) -> list[HttpRoutes]:
        """The routes of all observers that have some."""
        return [observer.routes for observer in self._observers if observer.routes is not None]

    def listening(self, port: int) -> None:
        self._each(lambda observer: observer.listening(port))

    def wrote(self, lines: bytes) -> None:
        self._each(lambda observer: observer.wrote(lines))

    def reported(self, rank: int, report: dict[str, Any]) -> None:
        self._each(lambda observer: observer.reported(rank, report))

    def measured(self, sample: MachineSample) -> None:
        self._each(lambda observer: observer.measured(sample))

    def world_changed(self, ranks: Collection[int]) -> None:
        self._each(lambda observer: observer.world_changed(ranks))

    def changed(self, view: GangView) -> None:
        self._each(lambda observer: observer.changed(view))

    def ended(self, verdict: Verdict | None) -> None:
        self._each(lambda observer: observer.ended(verdict))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._each(lambda observer: found.update(observer.status()))
        return found

    def unfinished(self) -> dict[str, Any] | None:
        found: list[Mapping[str, Any]] = []
        self._each(lambda observer: found.extend(filter(None, [observer.unfinished()])))
        return {key: value for one in found for key, value in one.items()} or None

    def _each(self, call: Callable[[AttemptObserver], None]) -> None:
        for observer in self._observers:
            if id(observer) in self._failed:
                continue
            try:
                call(observer)
            except Exception:  # a feature beside training must not end it
                self._failed.add(id(observer))
                log.exception("%s failed and is off from now on; the job goes on", type(observer).__name__)
