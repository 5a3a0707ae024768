"""The Coordinator service: protobuf in, calls on the gang and the log store, protobuf out."""

import logging
from collections.abc import Iterator
from typing import Any

from ringtrain.control.data_members import DataMember
from ringtrain.control.model import AgentState, Registration, SlotHistory
from ringtrain.control.wire import from_message, message_fields, order_to_message
from ringtrain.gen import coordinator_pb2 as pb
from ringtrain.launcher.data_members import DataMembers
from ringtrain.launcher.gang import Gang, OrderStream
from ringtrain.logs.journal import Stream
from ringtrain.logs.store import Chunk, LogStore
from ringtrain.transport.strangers import Complaints

log = logging.getLogger(__name__)


class CoordinatorService:
    """What agents call. Names are those of the service in proto/ringtrain/v1/coordinator.proto."""

    def __init__(self, gang: Gang, store: LogStore, attempt: int, data: DataMembers | None = None) -> None:
        self._gang = gang
        self._data = data
        self._store = store
        self._attempt = attempt
        self._complaints = Complaints(log.error, most=1)

    def Register(self, request: Any, context: Any) -> Any:
        registration = from_message(Registration, request)
        refusal = self._gang.register(registration)
        who = f"worker {registration.worker_index} ({registration.pod}, {context.peer()})"
        if refusal is not None:
            log.warning("refused %s: %s", who, refusal.reason)
            return pb.RegisterReply(reason=refusal.reason, misconfigured=refusal.misconfigured)
        log.info("registered %s%s", who, ", its ranks run already" if registration.ranks else "")
        histories = [message_fields(history) for history in self._histories(registration)]
        return pb.RegisterReply(accepted=True, slots=histories)

    def _histories(self, registration: Registration) -> Iterator[SlotHistory]:
        """What the files and the gang have of this worker's slots from an earlier agent."""
        first = registration.worker_index * registration.slots
        for slot in range(first, first + registration.slots):
            records = [self._store.last(stream, slot) for stream in (Stream.LOG, Stream.REPORT)]
            history = SlotHistory(slot, self._gang.life(slot), *records)
            if any((history.life, *records)):
                yield history

    def Orders(self, request: Any, context: Any) -> Iterator[Any]:
        index, instance = request.worker_index, request.instance
        if not self._gang.attach(index, instance):
            return
        stream, order = OrderStream(), self._gang.order_for_another(index)
        try:
            if context.add_callback(stream.end):  # else it has ended already
                while (order := self._gang.wait_order(order, stream)) is not None:
                    yield order_to_message(order)
        finally:
            self._gang.detach(index, instance)

    def Sync(self, request: Any, context: Any) -> Any:
        state = from_message(AgentState, request)
        known = self._gang.sync(request.worker_index, request.instance, state)
        news = self._data.news(request.data_version) if self._data else ""
        return pb.SyncReply(known=known, data_workers=news)

    def Append(self, request: Any, context: Any) -> Any:
        reply = pb.AppendReply()
        if request.attempt != self._attempt:
            log.warning("refused log lines of attempt %d in attempt %d", request.attempt, self._attempt)
            return reply
        for dropped in request.dropped:
            self._store.note_dropped(dropped.rank, dropped.lines)
        for chunk in request.chunks:
            stream = Stream(chunk.kind)
            try:
                last = self._store.append(Chunk(stream, chunk.rank, chunk.first, chunk.lines, chunk.data))
            except OSError as error:  # a full or hanging disk: the agent keeps what is not acknowledged
                self._complaints.say(f"log lines cannot be written, agents keep them for now: {error}")
                break
            reply.durable.append(pb.Durable(kind=chunk.kind, rank=chunk.rank, last=last))
        return reply


class DataWorkersService:
    """What data workers call. Names are those of the service in proto/ringtrain/v1/coordinator.proto."""

    def __init__(self, data: DataMembers) -> None:
        self._data = data

    def Announce(self, request: Any, context: Any) -> Any:
        reason = self._data.announce(from_message(DataMember, request))
        return pb.AnnounceReply(accepted=not reason, reason=reason, members=self._data.news(""))
