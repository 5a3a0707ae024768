"""Queue that feeds ranks' requests to the loader processes of a data worker, called slots."""

import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ringtrain.shared.framing import receive_frame, send_frame
from ringtrain.shared.processes import end_child, is_stopped, signal_name, start_child
from ringtrain_data_service.frames import CHUNK_BYTES, DataWorkerAnswer, DataWorkerRequest, array_places

log = logging.getLogger(__name__)

# Interval at which a slot checks its loader process, and the longest time that one may be stopped by a signal.
_LOOK_S: Final = 1.0
_STOPPED_S: Final = 5.0
# Limit on requests of one rank; more of them are invalid.
_MOST_REQUESTS: Final = 4096


@dataclass(frozen=True)
class LoadedAnswer:
    """Answer of a loader process, and the file descriptor of the memory file with its arrays."""

    answer: DataWorkerAnswer
    memory: int | None = None

    def messages(self) -> Iterator[bytes]:
        """Yield the messages to send: first the head, then the arrays' bytes in chunks."""
        yield self.answer.encode_head()
        _, total = array_places(self.answer.heads)
        for at in range(0, total if self.memory is not None else 0, CHUNK_BYTES):
            assert self.memory is not None
            yield os.pread(self.memory, min(CHUNK_BYTES, total - at), at)

    def close(self) -> None:
        """Free the memory."""
        if self.memory is not None:
            os.close(self.memory)


class DataWorkerClient:
    """Requests of one connected rank, and answers to send to it. The lock of `DataWorkerRequestQueue` guards this
    object."""

    def __init__(self) -> None:
        self.requests: deque[DataWorkerRequest] = deque()
        self.answers: deque[LoadedAnswer] = deque()
        self.under_way = 0  # requests in processing, and answers that are not sent
        self.closed = False


class DataWorkerRequestQueue:
    """Queue of all ranks' requests, from which loader processes ("slots") take a request of one rank after another.
    Each rank may have two batches per slot in memory, because it may read its answers slowly."""

    def __init__(self, slots: int) -> None:
        self._limit = 2 * slots
        self._changed = threading.Condition()
        self._clients: deque[DataWorkerClient] = deque()
        self._splits: dict[tuple[int, str], int] = {}
        self._closed = False

    def enter(self) -> DataWorkerClient:
        """Add a rank that has opened a stream; return an object for its requests and answers."""
        client = DataWorkerClient()
        with self._changed:
            self._clients.append(client)
        return client

    def leave(self, client: DataWorkerClient) -> None:
        """Remove a rank whose stream has ended, and drop its requests and answers."""
        with self._changed:
            if client.closed:
                return
            client.closed = True
            self._clients.remove(client)
            self._splits = {name: slot for name, slot in self._splits.items() if name[0] != id(client)}
            for loaded in client.answers:
                loaded.close()
            client.answers.clear()
            self._changed.notify_all()

    def ask(self, client: DataWorkerClient, request: DataWorkerRequest) -> bool:
        """Queue a request. Return False if the rank has too many requests or has disconnected."""
        with self._changed:
            if client.closed or len(client.requests) >= _MOST_REQUESTS:
                return False
            client.requests.append(request)
            self._changed.notify_all()
            return True

    def take(self, slot: int) -> tuple[DataWorkerClient, DataWorkerRequest] | None:
        """Wait for the next request for loader process `slot`; return it with the rank's client, or None once the queue
        is closed."""
        with self._changed:
            while not self._closed:
                found = self._next(slot)
                if found is not None:
                    return found
                self._changed.wait()
            return None

    def put(self, client: DataWorkerClient, loaded: LoadedAnswer) -> None:
        """Queue a slot's answer for a rank."""
        with self._changed:
            if client.closed:
                loaded.close()
                return
            client.answers.append(loaded)
            self._changed.notify_all()

    def next_answer(self, client: DataWorkerClient, timeout_s: float) -> LoadedAnswer | None:
        """Wait for the next answer to send to `client`. Return None after `timeout_s`, or if the stream has ended."""
        with self._changed:
            self._changed.wait_for(lambda: client.answers or client.closed, timeout_s)
            return client.answers.popleft() if client.answers else None

    def sent(self, client: DataWorkerClient) -> None:
        """Record that an answer was sent to `client`, so that loader processes may take the client's next request."""
        with self._changed:
            client.under_way -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Close the queue, which ends the loader processes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self, slot: int) -> tuple[DataWorkerClient, DataWorkerRequest] | None:
        for client in list(self._clients):
            if client.under_way >= self._limit:
                continue
            for request in client.requests:
                # The slot that has a split open continues to read it.
                if request.uri and self._splits.setdefault((id(client), request.uri), slot) != slot:
                    continue
                client.requests.remove(request)
                client.under_way += 1
                self._clients.remove(client)
                self._clients.append(client)
                return client, request
        return None


class DataWorkerSlot:
    """One loader process, and the thread that sends it requests and restarts it for the next request if it has died."""

    def __init__(self, index: int, queue: DataWorkerRequestQueue, environment: Mapping[str, str]) -> None:
        self._index = index
        self._queue = queue
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        # The process ends with this thread (PR_SET_PDEATHSIG).
        self._thread = threading.Thread(target=self._run, name=f"ringtrain-slot-{index}", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread ends, after the queue was closed; kill a loader process that is still busy."""
        self._thread.join(timeout_s)
        self._end()

    def _run(self) -> None:
        self._begin()
        while (taken := self._queue.take(self._index)) is not None:
            client, request = taken
            self._queue.put(client, self._load(request))
        self._end()

    def _begin(self) -> None:
        own, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            words = [sys.executable, "-m", "ringtrain_data_service.loader", str(theirs.fileno())]
            self._process = start_child(words, self._environment, pass_fds=(theirs.fileno(),))
        self._sock = own

    def _end(self) -> None:
        if self._sock is not None:
            self._sock.close()
        if self._process is not None:
            end_child(self._process)

    def _load(self, request: DataWorkerRequest) -> LoadedAnswer:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._begin()
        assert self._sock is not None
        try:
            send_frame(self._sock, request.encode())
            loaded = self._receive(self._sock)
        except OSError:
            loaded = None
        return loaded or LoadedAnswer(DataWorkerAnswer("crashed", request.key, self._exit_text()))

    def _receive(self, sock: socket.socket) -> LoadedAnswer | None:
        """Wait for the answer of the loader process; return None if the process has ended."""
        stopped_since: float | None = None
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while not poll.poll(1000 * _LOOK_S):
            stopped_since = self._stopped_since(stopped_since)
        frame = receive_frame(sock)
        return None if frame is None else LoadedAnswer(DataWorkerAnswer.decode_head(frame[0]), frame[1][0])

    def _stopped_since(self, since: float | None) -> float | None:
        """Return since when a signal (SIGSTOP) has stopped the loader process; None if it runs. Kill it after
        `_STOPPED_S`."""
        assert self._process is not None
        if not is_stopped(self._process.pid):
            return None
        now = time.monotonic()
        if since is not None and now - since >= _STOPPED_S:
            log.warning("killing loader process %d, which was stopped by a signal for %g s", self._index, _STOPPED_S)
            self._process.kill()
        return since or now

    def _exit_text(self) -> str:
        assert self._process is not None
        self._end()
        code = self._process.returncode
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        log.warning("loader process %d %s", self._index, how)
        return how
