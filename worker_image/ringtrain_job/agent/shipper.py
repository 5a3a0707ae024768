"""Thread that sends queued log chunks to the launcher until it has stored them."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from ringtrain.shared.gen import coordinator_pb2 as pb
from ringtrain_job.agent.spool import LogSpool
from ringtrain_job.logs.journal import LogStream
from ringtrain_job.logs.store import LogChunk

log = logging.getLogger(__name__)

# 1 MiB: from here on, a call's fixed cost is below 1 % of its time, and a lost call is cheap to repeat.
_BATCH_BYTES = 1 << 20
_RETRY_S = 0.2
_LOOK_S = 0.5


@dataclass(frozen=True)
class LogShipperEvents:
    """Callbacks of the shipper. `on_contact`: a call was answered. `on_empty`: the launcher has stored all chunks."""

    on_contact: Callable[[], None]
    on_empty: Callable[[], None]


class LogShipper:
    """Thread that sends the chunks in `spool` to the launcher. `header`: fields of every request."""

    def __init__(
        self, stub: Any, spool: LogSpool, header: dict[str, Any], call_s: float, events: LogShipperEvents
    ) -> None:
        self._stub = stub
        self._spool = spool
        self._header = header
        self._call_s = call_s
        self._events = events
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ringtrain-shipper", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and wait for the thread; unsent chunks stay in the queue."""
        self._closed.set()
        self.join()

    def close(self) -> None:
        """Stop sending, although chunks may be unsent. A running call ends when its channel is closed."""
        self._closed.set()
        self._spool.close()

    def join(self) -> None:
        """Wait for the thread to end, at most for the timeout of a call. Call `stop` or `close` first."""
        self._thread.join(self._call_s)

    def _run(self) -> None:
        while not self._closed.is_set():
            chunks = self._spool.take(_BATCH_BYTES, _LOOK_S)
            if not chunks:
                continue
            if not self._ship(chunks):
                self._closed.wait(_RETRY_S)
            elif self._spool.empty:
                self._events.on_empty()

    def _ship(self, chunks: list[LogChunk]) -> bool:
        """Send `chunks` to the launcher; return whether it has stored all of them."""
        try:
            reply = self._stub.Append(self._request(chunks), timeout=self._call_s)
        except grpc.RpcError as error:
            log.debug("log lines stay in this agent's queue, because the launcher did not accept them: %s", error)
            return False
        except ValueError:  # the channel was closed
            return False
        self._events.on_contact()
        return self._spool.done({(LogStream(d.kind), d.rank): d.last for d in reply.durable})

    def _request(self, chunks: list[LogChunk]) -> Any:
        return pb.AppendRequest(
            **self._header,
            chunks=[_spooled_chunk_to_wire(chunk) for chunk in chunks],
            dropped=[pb.Dropped(rank=rank, lines=lines) for rank, lines in self._spool.dropped().items()],
        )


def _spooled_chunk_to_wire(chunk: LogChunk) -> Any:
    return pb.Chunk(kind=int(chunk.stream), rank=chunk.rank, first=chunk.first, lines=chunk.lines, data=chunk.data)
