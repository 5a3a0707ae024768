"""gRPC service Coordinator, which agents call: passes their calls to the gang and the log store.

Its methods are coroutines on one thread. Files are written on another thread, so that a disk that hangs blocks nothing
else.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ringtrain.shared.data_members import DataMember
from ringtrain.shared.gen import coordinator_pb2 as pb
from ringtrain.shared.messages import from_message, message_fields
from ringtrain.shared.unauthenticated import RateLimitedWarnings
from ringtrain_job.control.model import AgentState, Order, Registration, SlotHistory
from ringtrain_job.control.wire import deflated_order, order_to_message
from ringtrain_job.launcher.data_members import DataMembers
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.logs.journal import LogStream
from ringtrain_job.logs.store import LogChunk, LogStore

log = logging.getLogger(__name__)

# Interval at which a new agent checks for the end of its predecessor, and time that a write may take before agents are
# asked to retry.
_LOOK_S = 0.05
_WRITE_S = 1.0
# Bytes of log lines that wait for the disk, and of orders that wait for slow agents. Agents retain lines that are
# refused.
_MOST_WAITING_BYTES = 256 << 20
# Size from which an order is compressed: addresses shrink to a twentieth.
_DEFLATE_BYTES = 16 << 10


@dataclass(frozen=True)
class _EncodedOrder:
    """An order as protobuf messages. `turns`: limits how many agents receive it at the same time."""

    order: Order
    plain: Any
    deflated: Any
    turns: asyncio.Semaphore

    @staticmethod
    def of(order: Order) -> "_EncodedOrder":
        plain = order_to_message(order)
        size = plain.ByteSize()
        small = deflated_order(plain) if size >= _DEFLATE_BYTES else plain
        return _EncodedOrder(order, plain, small, asyncio.Semaphore(max(16, _MOST_WAITING_BYTES // (size + 1))))


class CoordinatorService:
    """gRPC service that agents call (proto/ringtrain/v1/coordinator.proto)."""

    def __init__(self, gang: Gang, store: LogStore, attempt: int, data: DataMembers | None = None) -> None:
        self._gang = gang
        self._data = data
        self._store = store
        self._attempt = attempt
        self._complaints = RateLimitedWarnings(log.error, most=1)
        self._stale = RateLimitedWarnings(log.warning, most=1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._encoded: _EncodedOrder | None = None
        # Last state of each agent since its registration.
        self._last_requests: dict[int, Any] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ringtrain-log-writer")
        self._waiting_bytes = 0
        self._writing_since: float | None = None
        gang.on_order = self._wake

    def close(self) -> None:
        """End the thread that writes logs. Close the server first."""
        self._writer.shutdown(wait=False, cancel_futures=True)

    async def Register(self, request: Any, context: Any) -> Any:
        registration = from_message(Registration, request)
        # In an elastic job, a new agent replaces a lost one; the loss may be detected a little later.
        deadline = time.monotonic() + self._gang.vacancy_s
        while time.monotonic() < deadline and not self._gang.is_vacant(registration):
            await asyncio.sleep(_LOOK_S)
        self._last_requests.pop(registration.worker_index, None)
        refusal = self._gang.register(registration)
        who = f"worker {registration.worker_index} ({registration.pod}, {context.peer()})"
        if refusal is not None:
            log.warning("refused %s: %s", who, refusal.reason)
            return pb.RegisterReply(reason=refusal.reason, misconfigured=refusal.misconfigured)
        log.info("registered %s%s", who, ", its ranks are already running" if registration.ranks else "")
        histories = [message_fields(history) for history in self._histories(registration)]
        return pb.RegisterReply(accepted=True, slots=histories)

    def _histories(self, registration: Registration) -> Iterator[SlotHistory]:
        """Yield the numbers at which an earlier agent of a worker stopped, for each slot that has any.

        The numbers are those of the slot's last process, log record and report.
        """
        first = registration.worker_index * registration.slots
        for slot in range(first, first + registration.slots):
            records = [self._store.last(stream, slot) for stream in (LogStream.LOG, LogStream.REPORT)]
            history = SlotHistory(slot, self._gang.life(slot), *records)
            if any((history.life, *records)):
                yield history

    async def Orders(self, request: Any, context: Any) -> None:
        index, instance = request.worker_index, request.instance
        self._loop = asyncio.get_running_loop()
        if not self._gang.attach(index, instance):
            return
        try:
            seen = self._gang.order_for_another(index)
            while True:
                encoded = await self._order_after(seen)
                async with encoded.turns:
                    await context.write(encoded.deflated if request.reads_deflated else encoded.plain)
                seen = encoded.order
        finally:  # the agent disconnected: the call is cancelled
            self._gang.detach(index, instance)

    async def _order_after(self, seen: Order | None) -> _EncodedOrder:
        while (order := self._gang.order) is seen or order is None:
            await self._news.wait()
        if self._encoded is None or self._encoded.order is not order:
            self._encoded = _EncodedOrder.of(order)  # once for all agents
        return self._encoded

    def _wake(self) -> None:
        """Wake all streams of orders, because the order has changed."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server is closed
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def Sync(self, request: Any, context: Any) -> Any:
        index, instance = request.worker_index, request.instance
        if request == self._last_requests.get(index):  # most are heartbeats without news
            known = self._gang.record_heartbeat(index, instance)
        else:
            known = self._gang.sync(index, instance, from_message(AgentState, request))
            self._last_requests[index] = request
        news = self._data.text_since(request.data_version) if self._data else ""
        return pb.SyncReply(known=known, data_workers=news, heartbeat_s=self._gang.heartbeat_s)

    async def Append(self, request: Any, context: Any) -> Any:
        size = request.ByteSize()
        if self._disk_hangs() or self._waiting_bytes + size > _MOST_WAITING_BYTES:
            await asyncio.sleep(_WRITE_S)  # otherwise the agent would retry at once
            return pb.AppendReply()
        self._waiting_bytes += size
        try:
            writing = self._writer.submit(self.append, request)
            answer = asyncio.wrap_future(writing)
            while not (await asyncio.wait([answer], timeout=_WRITE_S))[0]:
                if self._disk_hangs() and writing.cancel():  # the write had not started
                    return pb.AppendReply()
            return answer.result()
        finally:
            self._waiting_bytes -= size

    def _disk_hangs(self) -> bool:
        since = self._writing_since
        if since is None or time.monotonic() - since <= _WRITE_S:
            return False
        self._log_problem(f"a write to {self._store.files.directory} takes longer than {_WRITE_S:g} s")
        return True

    def append(self, request: Any) -> Any:
        """Write a request's log chunks; return a reply with the last stored record of each stream."""
        reply = pb.AppendReply()
        if request.attempt != self._attempt:
            log.warning("refused log lines of attempt %d: this is attempt %d", request.attempt, self._attempt)
            return reply
        if request.instance and self._gang.is_replaced(request.worker_index, request.instance):
            # Its record numbers collide with those of the agent that replaced it.
            self._stale.say(f"refused log lines of worker {request.worker_index}: a newer agent has replaced it")
            return reply
        for dropped in request.dropped:
            self._store.note_dropped(request.instance, dropped.rank, dropped.lines)
        for chunk in request.chunks:
            stream, self._writing_since = LogStream(chunk.kind), time.monotonic()
            try:
                last = self._store.append(LogChunk(stream, chunk.rank, chunk.first, chunk.lines, chunk.data))
            except OSError as error:  # a full or hanging disk: the agent retains unacknowledged lines
                self._log_problem(str(error))
                self._store.refused = str(error)
                break
            finally:
                self._writing_since = None
            self._store.refused = ""
            reply.durable.append(pb.Durable(kind=chunk.kind, rank=chunk.rank, last=last))
        return reply

    def _log_problem(self, problem: str) -> None:
        self._complaints.say(f"cannot write log lines now, agents buffer them: {problem}")


class DataService:
    """gRPC service that data workers call (proto/ringtrain/v1/coordinator.proto)."""

    def __init__(self, data: DataMembers) -> None:
        self._data = data

    async def Announce(self, request: Any, context: Any) -> Any:
        reason = self._data.announce(from_message(DataMember, request))
        return pb.AnnounceReply(accepted=not reason, reason=reason, members=self._data.text_since(""))
