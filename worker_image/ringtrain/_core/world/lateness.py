"""Warnings about ranks that are connected but have not joined a collective for which this rank waits.

A silent process is detected by its connections, within the timeout. Lateness (a process that runs validation, writes a
file or does not release the GIL) is not an error until the stall timeout, and is logged.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ringtrain._core.world import neighbours
from ringtrain._core.world.offers import NETWORK_HALF, BegunCollective, Key, WorldOfferTable
from ringtrain._core.world.ring_config import RingConfig
from ringtrain.errors import in_ranges

log = logging.getLogger("ringtrain")

FIRST_WARNING_S: Final = 30.0
_LOOKS: Final = 6  # checks between two warnings
_NAMED_MOST: Final = 8  # number of ranks named in a warning

Statuses = Callable[[Sequence[int]], Mapping[int, Any]]


class WorldLateness:
    """Thread that logs ranks for which this rank's collectives have waited too long.

    `statuses`: requests the status of ranks. `look_for_lost`: reports ranks that do not join a collective because they
    are lost.
    """

    def __init__(
        self,
        ring: RingConfig,
        offers: WorldOfferTable,
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
        """Start the thread."""
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
            for key, begun in _outermost_wait(waiting).items():
                waited_s = now - begun.since
                if waited_s >= self._due.get(key, self._first_s):
                    self._due[key] = 2 * max(waited_s, self._first_s)
                    self._look_for_lost(key)
                    self._warn(key, begun, waited_s)

    def _warn(self, key: Key, begun: BegunCollective, waited_s: float) -> None:
        own, ranks = self._ring.rank, {self._ring.rank, *begun.others}
        near = neighbours.near_ranks(own, ranks)
        answers = self._statuses(near)
        late = [rank for rank in near if _is_peer_late(answers.get(rank), key)]
        if not late:
            return
        before = [rank for rank in neighbours.near_ranks(late[0], ranks) if rank < own]
        theirs = {**self._statuses([rank for rank in before if rank not in near]), **answers}
        if not all(_is_peer_late(theirs.get(rank), key) for rank in before):
            return  # of the waiting ranks near the first late one, only the first logs it
        named = late[:_NAMED_MOST]
        of_near = "" if len(near) == len(begun.others) else f" (of {len(near)} ranks asked)"
        doing = "; ".join(_described_lateness(rank, begun, answers.get(rank)) for rank in named)
        log.warning(
            "rank %d has waited %.0f s in %s for rank(s) %s, which are connected but late: %s. "
            "After %g s (RINGTRAIN_STALL_TIMEOUT) the world ends",
            own, waited_s, self._offers.label(key, begun.what), in_ranges(late) + of_near, doing,
            self._ring.stall_timeout_s,
        )  # fmt: skip


def _is_peer_late(answer: Any, key: Key) -> bool:
    return answer is None or int(answer["reached"].get(str(key[0]), 0)) < key[1]


def _described_lateness(rank: int, begun: BegunCollective, answer: Any) -> str:
    if answer is not None:
        return f"rank {rank} {answer['activity']}"
    last = f"; it has been in {begun.before.label}" if begun.before is not None else ""
    return f"rank {rank} does not answer: it is too busy, or lost{last}"


def _outermost_wait(waiting: Mapping[Key, BegunCollective]) -> dict[Key, BegunCollective]:
    """Return, of collectives that run inside others (such as in shared memory), only the outermost."""
    found: dict[int, tuple[Key, BegunCollective]] = {}
    for key, begun in sorted(waiting.items(), key=lambda item: item[1].since):
        found.setdefault(key[0] & NETWORK_HALF, (key, begun))
    return dict(found.values())
