"""Notification of other ranks about a failure."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future


def await_peer_answers(answers: "Sequence[Future[bytes]]", timeout_s: float) -> None:
    """Wait until all `answers` have arrived or failed, at most `timeout_s`."""
    lock, over, missing = threading.Lock(), threading.Event(), len(answers)

    def came(_: object) -> None:
        nonlocal missing
        with lock:
            missing -= 1
        if not missing:
            over.set()

    for answer in answers:
        answer.add_done_callback(came)
    if answers:
        over.wait(timeout_s)


def is_peer_answered(answer: "Future[bytes]") -> bool:
    """Return whether the reply has arrived and is not an error."""
    return answer.done() and answer.exception() is None


class FailureSpread:
    """Sender of a failure to one rank of each group: the first, or all others if the first does not answer.

    `ask`: sends the failure to one rank, with a deadline. `ended`: called when all groups were notified. This object
    has no thread: replies are processed on threads of the transport.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        ask: "Callable[[int], Future[bytes]]",
        ended: Callable[[], None],
    ) -> None:
        self._groups = [group for group in groups if group]
        self._ask = ask
        self._ended = ended
        self._lock = threading.Lock()
        self._missing = 1  # pending answers, plus one until all groups were notified
        self._over = threading.Event()
        self._given_up = False

    def begin(self) -> None:
        """Send the failure to the first rank of each group. Returns at once."""
        for first, *others in self._groups:
            self._tell(first, others)
        self._came()

    def wait(self, timeout_s: float) -> None:
        """Wait until every group has been notified, at most `timeout_s`."""
        self._over.wait(timeout_s)

    def give_up(self) -> None:
        """Send the failure to no further ranks, because this rank closes its connections."""
        self._given_up = True

    def _tell(self, peer: int, instead: Sequence[int]) -> None:
        with self._lock:
            self._missing += 1

        def answered(answer: "Future[bytes]") -> None:
            if not is_peer_answered(answer) and not self._given_up:
                for other in instead:
                    self._tell(other, ())
            self._came()

        self._ask(peer).add_done_callback(answered)

    def _came(self) -> None:
        with self._lock:
            self._missing -= 1
            is_over = not self._missing
        if is_over:
            self._ended()
            self._over.set()
