"""Interface of a backend: the part of the launcher that starts the ranks and decides when the attempt has ended.

Backends are plugins, found by `launcher/registry.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ringtrain_job.control.model import Verdict

RequestWorkers = Callable[[int, Mapping[int, int]], None]


@dataclass(frozen=True)
class HandOver:
    """Result of a stop request: this launcher exits, but ranks continue for the next launcher."""


class Backend(Protocol):
    """Interface of a backend. The main loop's thread calls all methods, except `request_workers`, `ranks` and `status`,
    which any thread may call."""

    @property
    def ranks(self) -> int:
        """Number of ranks in the current world."""

    @property
    def request_workers(self) -> RequestWorkers | None:
        """Function that changes the number of workers (PUT /workers); None if it is fixed. Arguments: the wanted number
        of workers, and the newest ended pod of each worker."""

    def begin(self) -> None:
        """Start the backend. The launcher's ports are open, and agents may register."""

    def tick(self) -> Verdict | None:
        """Do what is due; return the verdict once the attempt has ended, otherwise None."""

    def handle_stop_request(self, *, by_person: bool) -> Verdict | HandOver | None:
        """Handle a request to stop this launcher; return a verdict if the request ends the attempt.

        Return None if the attempt continues; this method is then called again. `by_person`: whether the request is for
        the whole job, rather than for this pod alone.
        """

    def stop(self, verdict: Verdict) -> None:
        """Order all ranks to stop."""

    def is_quiet(self) -> bool:
        """Return whether all ranks have stopped and all agents have sent their logs. Polled after `stop`."""

    def close(self) -> None:
        """End all processes and threads of the backend within some seconds."""

    def status(self) -> Mapping[str, Any]:
        """Return the backend's entries of `/status`."""
