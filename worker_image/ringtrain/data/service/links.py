"""A rank's connection to one data worker: requests go out, answers come in, on a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

import grpc

from ringtrain.data.service.config import DataStreamSettings
from ringtrain.data.service.frames import METHOD, SERVICE, DataWorkerAnswer, DataWorkerRequest, read_answers
from ringtrain.shared import contract
from ringtrain.shared.data_members import DataAddress
from ringtrain.shared.rpc import RpcPeer, dial


class DataWorkerLinkEvents(Protocol):
    """Who is told what happens on links, on their threads."""

    def came(self, link: DataWorkerLink, answer: DataWorkerAnswer) -> None:
        """The data worker has said something."""

    def lost(self, link: DataWorkerLink, problem: str) -> None:
        """The stream has ended; called once, as the last thing."""


class DataWorkerLink:
    """One stream to the data worker `member`. It can be asked once it has said hello."""

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
        """Send a request; never blocks."""
        self._requests.put(request.encode())

    def close(self) -> None:
        """End the stream; what is on its way is dropped."""
        with self._lock:
            self._closed = True
            if self._call is not None:
                self._call.cancel()
        self._requests.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, once closed."""
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
            self._events.lost(self, problem)

    def _follow(self, channel: grpc.Channel) -> None:
        with self._lock:
            if self._closed:
                return
            self._call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(self._requests.get, None))
        for answer in read_answers(self._listened(self._call)):
            self._events.came(self, answer)

    def _listened(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        for message in messages:
            self.heard = time.monotonic()
            yield message
