"""Interface of the code that starts the ranks of an attempt and decides when the attempt has ended.

Backends are plugins, found by `launcher/registry.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ringtrain_job.control.model import Verdict

RequestWorkers = Callable[[int, Mapping[int, int]], None]


@dataclass(frozen=True)
class HandOver:
    """Answer to a stop request: leave the ranks to the launcher that comes next."""


class Backend(Protocol):
    """Start the ranks of an attempt and decide when it has ended. All methods run on the main loop's thread, except
    `ask`, `ranks` and `status`, which any thread may call."""

    @property
    def ranks(self) -> int:
        """Number of ranks of the current world."""

    @property
    def request_workers(self) -> RequestWorkers | None:
        """Callable that requests another number of workers (PUT /workers), or None if the number is fixed. Arguments:
        the number of workers and, by worker, the newest pod that has ended."""

    def begin(self) -> None:
        """Begin; the launcher's ports are open, and agents may register."""

    def tick(self) -> Verdict | None:
        """Do the work that is due; return the verdict once the attempt has ended."""

    def handle_stop_request(self, *, by_person: bool) -> Verdict | HandOver | None:
        """Handle a stop request; return the verdict if it ends the attempt.

        None if the attempt continues; this method is then called again. `by_person`: the request is for the whole
        job, not for this pod alone.
        """

    def stop(self, verdict: Verdict) -> None:
        """Order all ranks to stop."""

    def is_quiet(self) -> bool:
        """Return whether all ranks have stopped and all agents have sent their logs. Polled after `stop`."""

    def close(self) -> None:
        """End every started process and thread within some seconds."""

    def status(self) -> Mapping[str, Any]:
        """Return this backend's entries of /status."""
