"""Interface of what starts the ranks of an attempt and decides when it has ended.

`launcher/registry.py` finds them. The launcher names none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ringtrain_job.control.model import Verdict

AskWorkers = Callable[[int, Mapping[int, int]], None]


@dataclass(frozen=True)
class HandOver:
    """The answer to a stop request that leaves the ranks to the launcher which comes next."""


class Backend(Protocol):
    """Start the ranks of an attempt and decide when it has ended. Called on the main loop's thread, but for `ask`,
    `ranks` and `status`, which any thread may call."""

    @property
    def ranks(self) -> int:
        """Ranks of the world that was made last."""

    @property
    def ask(self) -> AskWorkers | None:
        """Asks for another number of workers, from PUT /workers: that number, and by worker the newest pod that has
        ended. None: the number is fixed."""

    def begin(self) -> None:
        """The launcher's ports are open, and agents may register."""

    def tick(self) -> Verdict | None:
        """Do what is due; return how the attempt ended, when it has."""

    def requested_to_stop(self, *, by_person: bool) -> Verdict | HandOver | None:
        """The launcher was asked to stop. Return how the attempt ends by that; None: it goes on for now, and this is
        called again. `by_person`: the whole job is meant, and not this pod alone."""

    def stop(self, verdict: Verdict) -> None:
        """Have all ranks stop."""

    def is_quiet(self) -> bool:
        """Return whether all ranks have stopped and all agents have sent their logs. Called again and again after
        `stop`."""

    def close(self) -> None:
        """End everything that was started, within some seconds."""

    def status(self) -> Mapping[str, Any]:
        """Return entries of /status."""
