"""Queue of named collectives, which ranks may submit in any order and from any thread; all run them in one order.

In a *round* (one small exchange among the ranks of the set) each rank sends the requests submitted since the last one.
Requests that every rank has submitted are agreed and run, fused if possible, before the next round. During a round or a
collective, new submissions accumulate for the next: a backward pass costs a few rounds, not one per tensor. Requests
that were agreed on before are sent as numbers.
"""

import logging
import struct
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from ringtrain import timeline
from ringtrain._core.communicators.base import Communicator
from ringtrain._core.negotiation.agreement import NegotiatedRequests, RequestNegotiation
from ringtrain._core.negotiation.execution import (
    FusedRequestBatch,
    Result,
    SubmittedTensors,
    fused_request_batches,
    run_batch,
)
from ringtrain._core.negotiation.request import KNOWN_MAX, NamedRequest, NegotiationRound
from ringtrain._core.negotiation.submission import Arrays, Finish, NamedSubmission
from ringtrain._core.wire.signature import WireSignature
from ringtrain.errors import ConfigurationError, MismatchError, NotInitializedError, RingtrainError

# After a round without progress, a rank without new requests pauses, doubling from the first to the second value,
# before the next round. Its own next submission ends the pause.
PAUSE_FIRST_S, PAUSE_MAX_S = 0.0005, 0.02

# Ranks that wait for a late rank log a warning after this time.
FIRST_WARNING_S = 30.0
_NAME_CHARACTERS = 300

# Space for a thousand known names. The length is fixed, because ranks of one pod exchange it through shared memory.
# Longer messages, such as in the first step, need a second exchange.
_SLOT_BYTES: Final = 4096
_LENGTH: Final = struct.Struct("<Q")
_AGREEMENT: Final = WireSignature("agreement")

log = logging.getLogger("ringtrain")


class NamedQueue:
    """Queue of one process set's named collectives."""

    def __init__(
        self,
        rank: int,
        ranks: tuple[int, ...],
        open_communicator: Callable[[], Communicator],
        timeout_s: float,
        give_up: Callable[[Exception], None],
        warning_s: float = FIRST_WARNING_S,
    ) -> None:
        """Start the queue's thread.

        `open_communicator` is called on that thread, so ranks need not create their queues together. `give_up`
        makes all ranks fail because this one can't continue. After `warning_s` of waiting, late ranks are logged; after
        `timeout_s`, the collective fails.
        """
        self.rank = rank
        self.ranks = ranks
        self.remembered: dict[Hashable, NamedRequest] = {}  # by the arguments that determine them
        self._open_communicator = open_communicator
        self._timeout_s, self._warning_s = timeout_s, warning_s
        self._give_up = give_up
        self._communicator: Communicator | None = None
        self._agreement = RequestNegotiation(ranks)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._completed = threading.Condition()  # shared by all submissions
        self._last: tuple[list[NegotiatedRequests], list[FusedRequestBatch]] = (
            [],
            [],
        )  # the last agreed requests, and their batches
        self._new: list[NamedRequest] = []
        self._in_flight: dict[str, NamedSubmission] = {}
        self._joining: Future[int] | None = None
        self._due: dict[str, float] = {}  # seconds after which late ranks are logged again
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="ringtrain-named-queue", daemon=True)
        self._thread.start()

    def submit(self, request: NamedRequest, arrays: Arrays = tuple, finish: Finish = list) -> NamedSubmission:
        """Submit a request. Return the promise of `finish(result)`, where `finish` runs on the queue's thread.

        `arrays` is called by that thread too; its result must not change before the promise is done. The promise raises
        MismatchError if ranks disagree and PeerLost if a rank is lost. Raises ConfigurationError for a name that is
        still in flight on this rank.
        """
        return self.submit_prepared(NamedSubmission(request, arrays, finish))

    def submit_prepared(self, submission: NamedSubmission) -> NamedSubmission:
        """Submit `submission`, which the caller has constructed, and return it. Raises the same errors as `submit`."""
        request = submission.request
        submission.completed = self._completed
        submission.since_ns = time.perf_counter_ns()
        with self._lock:  # entering the condition itself would be a call of a Python function
            if self._closed:
                raise NotInitializedError(f"{request.kind} {request.name!r}: ringtrain is shut down; call init() first")
            if request.name in self._in_flight:
                raise ConfigurationError(
                    f"rank {self.rank}: {request.kind} {request.name!r}: a collective of the same name is still in "
                    "flight; give each collective a different name, or call synchronize() for the earlier one first"
                )
            self._in_flight[request.name] = submission
            self._new.append(request)
            if len(self._new) == 1:  # otherwise the thread is already awake
                self._changed.notify_all()
        if timeline.active is not None:
            timeline.mark("SUBMIT", "named", submission.since_ns, request.name, tensor=request.name)
        return submission

    def remember(self, key: Hashable, request: NamedRequest) -> None:
        """Store `request` in `remembered` under `key`, so that an adapter can reuse it in a later call with the same
        arguments."""
        if len(self.remembered) >= KNOWN_MAX:
            self.remembered.clear()
        self.remembered[key] = request

    def join(self) -> int:
        """Contribute zeros to the other ranks' collectives from now on, and wait until every rank has called `join`.

        Returns the world rank of the last rank to join, the same on all ranks.
        """
        with self._changed:
            if self._closed:
                raise NotInitializedError("join: ringtrain is shut down; call init() first")
            joining = self._joining = self._joining or Future()
            self._changed.notify_all()
        return joining.result()

    def stop(self) -> None:
        """Fail the collectives in flight, and end the thread once the communicator returns."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._fail_all(NotInitializedError("ringtrain was shut down while this collective was in flight"))

    def wait_stopped(self, timeout_s: float) -> None:
        """Wait until the queue's thread has ended; it ends when its world does."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _loop(self) -> None:
        pause_s = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._in_flight or self._joining or self._agreement.needs_round
                )
                if pause_s and not self._new and not self._closed:
                    self._changed.wait(pause_s)
                if self._closed:
                    return
                own_round = self._next_round()
            try:
                moved = self._run_round(own_round)
            except Exception as error:  # every waiting thread must get the error, whatever it is
                if not isinstance(error, RingtrainError) and len(self.ranks) > 1:
                    # Other ranks wait for this one, or continue without the requests that it drops now.
                    self._give_up(error)
                self._agreement, self._last = RequestNegotiation(self.ranks), ([], [])
                self._fail_all(error if isinstance(error, RingtrainError) else _named_queue_error(error))
                moved = True
            pause_s = 0.0 if moved else min(max(2 * pause_s, PAUSE_FIRST_S), PAUSE_MAX_S)

    def in_flight(self) -> str:
        """Return the name of a collective for which this rank waits, and the number of others; empty if none."""
        with self._changed:
            waited_for = [repr(name[:_NAME_CHARACTERS]) for name in self._in_flight]
            if self._joining is not None:
                waited_for.append("join()")
        more = f" and {len(waited_for) - 1} more" if len(waited_for) > 1 else ""
        return f"{waited_for[0]}{more}" if waited_for else ""

    def _warn_of_late(self) -> None:
        """Log the ranks that have not submitted a collective in time. Only the lowest waiting rank logs them."""
        now_ns = time.perf_counter_ns()
        with self._changed:
            if not self._due and self._oldest_ns(now_ns) > now_ns - self._warning_s * 1e9:
                return
            waiting = [(name, (now_ns - one.since_ns) / 1e9) for name, one in self._in_flight.items()]
        self._due = {name: due for name, due in self._due.items() if name in self._in_flight}
        for name, waited_s in waiting:
            if waited_s < self._due.get(name, self._warning_s):
                continue
            self._due[name] = 2 * waited_s
            submitters, late = self._agreement.submitters_of(name)
            if late and submitters and submitters[0] == self.rank:
                log.warning(
                    "collective %r was submitted %.0f s ago by rank(s) %s, but not yet by rank(s) %s, "
            "which continue with other collectives; the collective fails after %g s (RINGTRAIN_STALL_TIMEOUT)",
                    name[:_NAME_CHARACTERS], waited_s, submitters, late, self._timeout_s,
                )  # fmt: skip

    def _next_round(self) -> NegotiationRound:
        requests, self._new = self._new, []
        overdue = time.perf_counter_ns() - int(self._timeout_s * 1e9)
        expired: list[str] = []
        if self._oldest_ns(overdue) < overdue:
            expired = [name for name, submitted in self._in_flight.items() if submitted.since_ns < overdue]
        return self._agreement.next_round(requests, self._joining is not None, expired)

    def _oldest_ns(self, otherwise_ns: int) -> int:
        """Return the submission time of the oldest collective in flight; `otherwise_ns` if there is none."""
        return next(iter(self._in_flight.values())).since_ns if self._in_flight else otherwise_ns

    def _run_round(self, own_round: NegotiationRound) -> bool:
        """Negotiate with all ranks, and run the collectives that are ready. Return whether there were any."""
        if self._communicator is None:
            self._communicator = self._open_communicator()
        own = own_round.encode()
        received = [
            own_round if message == own else NegotiationRound.decode(message)
            for message in _exchange_round(self._communicator, own)
        ]
        decisions = self._agreement.receive(received)
        self._warn_of_late()
        good = [agreed for agreed in decisions.agreed if not agreed.error]
        for agreed in decisions.agreed:
            if agreed.error:
                wrong_argument = any(request.error for request in agreed.requests.values())
                kind = ConfigurationError if wrong_argument else MismatchError
                self._refuse(agreed, kind(agreed.error))
        if good != self._last[0]:  # same as in the step before: identical objects compare fast
            self._last = good, list(fused_request_batches(good))
        for batch in self._last[1]:
            self._run(self._communicator, batch)
        if decisions.all_joined is not None and (joining := self._end_joining()) is not None:
            joining.set_result(decisions.all_joined)
        return bool(decisions.agreed) or decisions.all_joined is not None

    def _run(self, communicator: Communicator, batch: FusedRequestBatch) -> None:
        started_ns = time.perf_counter_ns()
        with self._lock:
            if self._closed:  # sending zeros for cancelled submissions would produce wrong sums on other ranks
                raise NotInitializedError("ringtrain was shut down")
            own = [self._in_flight.get(name) for name in batch.names]  # None: this rank has joined
        results = self._carry_out_in_place(communicator, batch, own)
        if results is None:
            arrays = [None if one is None else one.arrays() for one in own]
            targets = [None if one is None else one.target for one in own]
            results = run_batch(communicator, batch, arrays, targets)
        with self._lock:
            for name in batch.names:
                self._in_flight.pop(name, None)
        if timeline.active is not None:
            for entry, one in zip(batch.entries, own, strict=True):
                if one is not None:
                    kind, track = entry.any_request.kind.upper(), entry.name
                    timeline.record(f"NEGOTIATE_{kind}", "named", one.since_ns, started_ns, track, tensor=entry.name)
                    timeline.record(kind, "named", started_ns, time.perf_counter_ns(), track, tensor=entry.name)
        for one, result in zip(own, results, strict=True):
            if one is not None:
                one.keep(result)
        with self._completed:
            self._completed.notify_all()

    def _carry_out_in_place(
        self, communicator: Communicator, batch: FusedRequestBatch, own: Sequence[NamedSubmission | None]
    ) -> list[Result] | None:
        """Return the results if the framework has exchanged the tensors on their device; None if arrays must be used.

        A rank that has joined has neither tensors nor a device, so all ranks then use arrays.
        """
        if batch.fewest_ranks < len(self.ranks):
            return None
        sources: list[Any] = [one.arrays for one in own if one is not None]
        if len(set(map(type, sources))) > 1 or not isinstance(sources[0], SubmittedTensors):
            return None
        return sources[0].carry_out(communicator, batch, sources)

    def _refuse(self, agreed: NegotiatedRequests, error: RingtrainError) -> None:
        with self._changed:
            submitted = self._in_flight.pop(agreed.name, None)
        if submitted is not None:  # else this rank has joined
            self._break([submitted], error)

    def _break(self, submissions: Sequence[NamedSubmission], error: RingtrainError) -> None:
        for submission in submissions:
            submission.fail_with(error)
        with self._completed:
            self._completed.notify_all()

    def _fail_all(self, error: RingtrainError) -> None:
        with self._changed:
            failed, self._in_flight = list(self._in_flight.values()), {}
            self._new.clear()
        self._break(failed, error)
        if (joining := self._end_joining()) is not None:
            joining.set_exception(error)

    def _end_joining(self) -> "Future[int] | None":
        """Return the future of a waiting `join`, for the caller to complete; None if no thread waits in `join`."""
        with self._lock:
            joining, self._joining = self._joining, None
        return joining


def _exchange_round(communicator: Communicator, message: bytes) -> list[bytes]:
    """Return the `message` of every rank, in the order of the communicator's ranks."""
    size, position = len(communicator.ranks), communicator.position
    slots = np.zeros((size, _SLOT_BYTES), np.uint8)
    head = _LENGTH.pack(len(message)) + message[: _SLOT_BYTES - _LENGTH.size]
    slots[position, : len(head)] = np.frombuffer(head, np.uint8)
    communicator.all_gather(_AGREEMENT, slots.reshape(-1), tuple(_SLOT_BYTES * index for index in range(size + 1)))
    received = [slot.tobytes() for slot in slots]
    lengths = [_LENGTH.unpack_from(slot)[0] for slot in received]
    if max(lengths) > _SLOT_BYTES - _LENGTH.size:  # the same decision on every rank
        whole = np.frombuffer(message, np.uint8)
        return [part.tobytes() for part in communicator.all_gather_parts(_AGREEMENT, whole)]
    return [slot[_LENGTH.size :][:length] for slot, length in zip(received, lengths, strict=True)]


def _named_queue_error(error: Exception) -> RingtrainError:
    wrapped = RingtrainError(f"a named collective failed on this rank: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
