"""Interface of observers: plugins of the launcher that show, send or copy the data of an attempt.

Observers are plugins, found by `launcher/registry.py`.
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
    """Paths on the launcher's HTTP port that an observer serves."""

    def serves(self, path: str) -> bool:
        """Return whether the observer serves `path`."""

    def get(self, request: BaseHTTPRequestHandler, admitted: Callable[[], None]) -> None:
        """Answer a GET request. Call `admitted` once the client has been authenticated."""

    def close(self, timeout_s: float) -> None:
        """End open requests within `timeout_s`."""


class AttemptObserver:
    """Base class of observers of an attempt. Override the methods that you need.

    `wrote`, `reported` and `measured` are called in order on threads that write logs, and must not block; the others on
    the main thread. An observer that raises is logged once and gets no more calls except `close`: it never delays or
    fails training.
    """

    order: ClassVar[int] = 50  # order of the calls: an observer that reads other observers' files comes later
    routes: HttpRoutes | None = None

    def listening(self, port: int) -> None:
        """Called when the launcher's HTTP port is open."""

    def wrote(self, lines: bytes) -> None:
        """Called with complete lines that were added to `job.log`."""

    def reported(self, rank: int, report: dict[str, Any]) -> None:
        """Called with each stored report of `rank`, except samples and descriptions of the run."""

    def measured(self, sample: MachineSample) -> None:
        """Called with a sample of a worker's resource use."""

    def world_changed(self, ranks: Collection[int]) -> None:
        """Called when the world has changed. `ranks`: ranks of the new world."""

    def changed(self, view: GangView) -> None:
        """Called when states of ranks may have changed, at most five times a second."""

    def ended(self, verdict: Verdict | None) -> None:
        """Called when the attempt has ended and its outcome is stored. `verdict` None: another launcher will continue
        it."""

    def close(self) -> None:
        """Release all resources within some seconds."""

    def status(self) -> Mapping[str, Any]:
        """Return this observer's entries in the field `logs` of the answer to `/status`."""
        return {}

    def unfinished(self) -> Mapping[str, Any] | None:
        """Return what could not be completed in `ended`, as entries for the termination message; None if all was
        completed."""
        return None


class Observers(AttemptObserver):
    """All observers of an attempt as one object. Each call is passed to all, by their `order`."""

    def __init__(self, observers: Collection[AttemptObserver] = ()) -> None:
        self._observers = sorted(observers, key=lambda observer: observer.order)
        self._failed: set[int] = set()

    @property
    def follows_gang(self) -> bool:
        """Whether any observer implements `changed`. If none does, the states of all ranks need not be collected."""
        return any(type(observer).changed is not AttemptObserver.changed for observer in self._observers)

    @property
    def all_routes(self) -> list[HttpRoutes]:
        """HTTP paths of all observers that serve any."""
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
            except Exception:  # a failing feature must not end training
                self._failed.add(id(observer))
                log.exception("%s failed and is disabled; the job continues", type(observer).__name__)
