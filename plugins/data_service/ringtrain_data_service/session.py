"""A rank's connections to data workers: sends requests, sends them again if a worker is lost, and stores answers.

Each link has a thread and one stream for requests and answers.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, Protocol

import grpc

from ringtrain import is_initialized
from ringtrain.adapter import current_world
from ringtrain.errors import DataError, counted
from ringtrain.shared import contract
from ringtrain.shared.data_members import DataAddress, read_members
from ringtrain.shared.rpc import RpcPeer, dial
from ringtrain.step_time import INPUT
from ringtrain_data_service.config import DataStreamSettings
from ringtrain_data_service.frames import METHOD, SERVICE, DataWorkerAnswer, DataWorkerRequest, read_batch_answers
from ringtrain_data_service.leases import DataWorkerLeases

log = logging.getLogger(__name__)

# Interval at which the file of data workers is read, and silent data workers and late requests are checked.
_LOOK_S: Final = 0.25
# Seconds before a data worker whose stream broke is dialled again.
_AGAIN_S: Final = 1.0
# Number of loader crashes on one request after which the rank gets an error.
MOST_CRASHES: Final = 3
_JOIN_S: Final = 5.0


class DataWorkerSession:
    """A rank's connections to all data workers in its members file. Call `ask` and `take` on one thread only."""

    def __init__(self, settings: DataStreamSettings) -> None:
        self._settings = settings
        self._changed = threading.Condition()
        self._leases = DataWorkerLeases(again_s=settings.timeout_s)
        self._requests: dict[int, DataWorkerRequest] = {}
        self._answers: dict[int, tuple[DataWorkerAnswer, DataWorkerLink]] = {}
        self._links: dict[DataAddress, DataWorkerLink] = {}
        self._dial_at: dict[DataAddress, float] = {}
        self._known: tuple[DataAddress, ...] = read_members(settings.members_file)
        self._problem = ""
        self._closed = threading.Event()
        with self._changed:  # a link may call back as soon as it is created
            self._dial(time.monotonic())
        self._thread = threading.Thread(target=self._watch, name="ringtrain-data-watch", daemon=True)
        self._thread.start()

    def ask(self, request: DataWorkerRequest, near: DataWorkerLink | None = None) -> None:
        """Send `request` to a data worker, preferably to `near`."""
        with self._changed:
            self._requests[request.key] = request
            self._leases.add(request.key, near)
            self._assign()

    def take(self, key: int) -> tuple[DataWorkerAnswer, DataWorkerLink]:
        """Wait for the answer to request `key`; return it (`loaded` or `ended`) and the link that received it.

        Raises DataError if the user's function raised or crashed its process too often, or if there was no answer
        within the stall timeout. The time of this call counts as the rank's wait for input.
        """
        with INPUT, self._changed:
            self._wait(key, time.monotonic())
            answer, link = self._answers.pop(key)
            request = self._requests.pop(key)
        if answer.kind in ("loaded", "ended"):
            return answer, link
        raise DataError(
            f"rank {_data_stream_rank()}: {answer.text}\n(data worker {link.member.index}, {link.member.address}; "
            f"{request.describe()})"
        )

    def close(self) -> None:
        """Close all streams, drop pending requests, and end the threads."""
        self._closed.set()
        with self._changed:
            links = list(self._links.values())
        for link in links:
            link.close()
        self._thread.join(_JOIN_S)
        for link in links:
            link.join(_JOIN_S)

    def on_answer(self, link: DataWorkerLink, answer: DataWorkerAnswer) -> None:
        """Handle an answer of a data worker."""
        with self._changed:
            if answer.kind == "alive" or self._links.get(link.member) is not link:
                return
            if answer.kind == "hello":
                self._leases.join(link, answer.slots)
            elif answer.kind == "crashed":
                self._crashed(link, answer)
            elif self._leases.answered(answer.key):
                self._keep(link, answer)
            self._assign()

    def on_lost(self, link: DataWorkerLink, problem: str) -> None:
        """Handle the end of the stream of `link`: assign its requests to other data workers."""
        with self._changed:
            self._forget(link, problem)

    def _crashed(self, link: DataWorkerLink, answer: DataWorkerAnswer) -> None:
        crashes = self._leases.crashed(link, answer.key)
        if crashes < MOST_CRASHES:
            return
        self._leases.answered(answer.key)
        request = self._requests[answer.key]
        text = f'"{request.function}": its loader process {answer.text}, {crashes} times over the same request'
        self._keep(link, DataWorkerAnswer("failed", answer.key, text))

    def _keep(self, link: DataWorkerLink, answer: DataWorkerAnswer) -> None:
        self._answers[answer.key] = answer, link
        self._changed.notify_all()

    def _assign(self) -> None:
        for worker, key in self._leases.assign(time.monotonic()):
            assert isinstance(worker, DataWorkerLink)
            worker.ask(self._requests[key])

    def _forget(self, link: DataWorkerLink, problem: str) -> None:
        if self._links.get(link.member) is not link:
            return
        del self._links[link.member]
        self._dial_at[link.member] = time.monotonic() + _AGAIN_S
        given_back = self._leases.leave(link)
        self._problem = f"data worker {link.member.index} at {link.member.address}: {problem}"
        if not self._closed.is_set():
            log.info("%s; sending %s to other data workers", self._problem, counted(len(given_back), "request"))
        self._assign()

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_S):
            try:
                known = read_members(self._settings.members_file)
            except DataError as error:  # known data workers remain in use
                self._problem = str(error)
                known = self._known
            now = time.monotonic()
            with self._changed:
                self._known = known
                for link in self._silent(now):
                    self._forget(link, f"silent for {self._settings.lost_after_s:g} s")
                    link.close()
                self._dial(now)
                self._assign()

    def _silent(self, now: float) -> list[DataWorkerLink]:
        return [link for link in self._links.values() if now - link.heard >= self._settings.lost_after_s]

    def _dial(self, now: float) -> None:
        """Open a stream to each data worker in the members file, unless one is open. Workers that are missing in the
        file stay in use while they answer: a restarted launcher may not list them yet."""
        self._dial_at = {member: at for member, at in self._dial_at.items() if member in self._known}
        for member in self._known:
            if member not in self._links and now >= self._dial_at.get(member, 0.0) and not self._closed.is_set():
                self._links[member] = DataWorkerLink(member, self._settings, self)

    def _wait(self, key: int, began: float) -> None:
        say_at = began + self._settings.log_interval_s
        while key not in self._answers:
            now = time.monotonic()
            if now - began >= self._settings.stall_timeout_s:
                raise DataError(
                    f"rank {_data_stream_rank()}: no input for {now - began:.0f} s ({self._requests[key].describe()}): "
                    f"{self._situation()}. RINGTRAIN_STALL_TIMEOUT sets this limit"
                )
            if now >= say_at:
                log.warning(
                    "rank %s has waited %.0f s for input: %s", _data_stream_rank(), now - began, self._situation()
                )
                say_at = now + self._settings.log_interval_s
            self._changed.wait(min(say_at - now, began + self._settings.stall_timeout_s - now))

    def _situation(self) -> str:
        """Return how many data workers can be reached, and the last problem, as text for messages."""
        problem = f" (last: {self._problem})" if self._problem else ""
        if not self._known and not self._leases.workers:
            return f"no data worker is registered in {self._settings.members_file}{problem}"
        return f"{self._leases.workers} of {counted(len(self._known), 'data worker')} can be reached{problem}"


def _data_stream_rank() -> Any:
    context = current_world() if is_initialized() else None
    return context.config.place.rank if context else 0


class DataWorkerLinkEvents(Protocol):
    """Callbacks for events of a `DataWorkerLink`, which calls them on its own thread."""

    def on_answer(self, link: DataWorkerLink, answer: DataWorkerAnswer) -> None:
        """Handle `answer`, received on `link`."""

    def on_lost(self, link: DataWorkerLink, problem: str) -> None:
        """Handle the end of the stream of `link`. This is the link's last callback. `problem`: the reason, for
        messages."""


class DataWorkerLink:
    """Connection to the data worker `member`: one gRPC stream. It gets requests once the worker has sent `hello`."""

    def __init__(self, member: DataAddress, settings: DataStreamSettings, events: DataWorkerLinkEvents) -> None:
        self.member = member
        self.heard = time.monotonic()
        self._settings = settings
        self._events = events
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._call: Any = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"ringtrain-data-{member.index}", daemon=True)
        self._thread.start()

    def ask(self, request: DataWorkerRequest) -> None:
        """Send a request. Does not block."""
        self._requests.put(request.encode())

    def close(self) -> None:
        """Close the stream; requests and answers in transit are dropped."""
        with self._lock:
            self._closed = True
            if self._call is not None:
                self._call.cancel()
        self._requests.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread after `close`."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        problem = "it has closed the stream"
        try:
            with dial(
                self.member.address, self._settings.secrets, RpcPeer(contract.ROLE_DATA, self._settings.uid)
            ) as channel:
                self._follow(channel)
        except grpc.RpcError as error:
            problem = f"{error.code().name}: {error.details()}"
        except (ValueError, KeyError, TypeError) as error:
            problem = f"it sent what is no answer ({error!r})"
        finally:
            self._requests.put(None)
            self._events.on_lost(self, problem)

    def _follow(self, channel: grpc.Channel) -> None:
        with self._lock:
            if self._closed:
                return
            self._call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(self._requests.get, None))
        for answer in read_batch_answers(self._listened(self._call)):
            self._events.on_answer(self, answer)

    def _listened(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        for message in messages:
            self.heard = time.monotonic()
            yield message
