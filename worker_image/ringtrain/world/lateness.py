"""Says while a rank waits whom it waits for: ranks that are there, and have not come to a collective.

Silence (a process that does not answer) is found by the connections, within the timeout. Lateness (one that is
there, and validates, writes a file or holds the interpreter) is no fault until the stall timeout, and is told.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ringtrain.errors import in_ranges
from ringtrain.world.offers import NETWORK_HALF, Begun, Key, OfferTable
from ringtrain.world.ring_config import RingConfig

log = logging.getLogger("ringtrain")

FIRST_WARNING_S: Final = 30.0
_LOOKS: Final = 6  # between two warnings
_NAMED_MOST: Final = 8  # ranks in a warning

Statuses = Callable[[tuple[int, ...]], Mapping[int, Any]]


class Lateness:
    """One thread that looks now and then at what this rank waits in. `statuses`: asks ranks what they do.
    `look_for_lost`: looks in a collective for those that do not come because they are gone.
    """

    def __init__(
        self,
        ring: RingConfig,
        offers: OfferTable,
        statuses: Statuses,
        look_for_lost: Callable[[Key], None],
        first_s: float = FIRST_WARNING_S,
    ) -> None:
        self._ring = ring
        self._offers = offers
        self._statuses = statuses
        self._look_for_lost = look_for_lost
        self._first_s = first_s
        self._due: dict[Key, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ringtrain-lateness", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(self._first_s / _LOOKS):
            now = time.monotonic()
            waiting = {key: begun for key, begun in self._offers.under_way() if now - begun.since >= self._first_s}
            self._due = {key: due for key, due in self._due.items() if key in waiting}
            for key, begun in _outermost(waiting).items():
                waited_s = now - begun.since
                if waited_s >= self._due.get(key, self._first_s):
                    self._due[key] = 2 * max(waited_s, self._first_s)
                    self._look_for_lost(key)
                    self._warn(key, begun, waited_s)

    def _warn(self, key: Key, begun: Begun, waited_s: float) -> None:
        answers = self._statuses(begun.others)
        reached = {rank: int(answer["reached"].get(str(key[0]), 0)) for rank, answer in answers.items()}
        late = [rank for rank in begun.others if reached.get(rank, 0) < key[1]]
        waiting = [rank for rank in begun.others if rank not in late]
        if not late or min([self._ring.rank, *waiting]) != self._ring.rank:
            return  # one of those who wait says it
        named = late[:_NAMED_MOST]
        doing = "; ".join(_described(rank, begun, answers.get(rank)) for rank in named)
        log.warning(
            "rank %d has waited %.0f s in %s for rank(s) %s, connected but not there: %s. After %g s "
            "(RINGTRAIN_STALL_TIMEOUT) the world ends",
            self._ring.rank, waited_s, self._offers.label(key, begun.what), in_ranges(late), doing,
            self._ring.stall_timeout_s,
        )  # fmt: skip


def _described(rank: int, begun: Begun, answer: Any) -> str:
    if answer is not None:
        return f"rank {rank} {answer['activity']}"
    last = f"; it has been in {begun.before.label}" if begun.before is not None else ""
    return f"rank {rank} does not answer: it is too busy, or gone{last}"


def _outermost(waiting: Mapping[Key, Begun]) -> dict[Key, Begun]:
    """Of collectives within each other, as of pods in shared memory or MPI, those that began first."""
    found: dict[int, tuple[Key, Begun]] = {}
    for key, begun in sorted(waiting.items(), key=lambda item: item[1].since):
        found.setdefault(key[0] & NETWORK_HALF, (key, begun))
    return dict(found.values())
