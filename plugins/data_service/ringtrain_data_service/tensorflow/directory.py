"""Directory of a compute job: a server on rank 0 that stores which dispatchers and workers are ready, and where.

Caller and directory prove to each other that they have the compute job's key, by HMAC over both sides' nonces and the
message: the key itself is never sent, and a recorded message cannot be replayed. Messages are lines of JSON, sent in
clear text; they contain only addresses.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from ringtrain.errors import ConfigurationError, counted
from ringtrain.shared import authentication
from ringtrain.shared.address import interface_addresses, listening_socket
from ringtrain.shared.framing import line_of

MOST_LINE_BYTES: Final = 1 << 20
# Deadline of a call, which is one request. Unauthenticated peers get this time, and their number is limited.
CALL_S: Final = 10.0
_MOST_CALLERS: Final = 128
ASK: Final = b"ask"
ANSWER: Final = b"answer"


class TfDataDirectory:
    """TCP server of the directory, on one port of all network interfaces. Call `close` at the end.

    Each dispatcher has its own workers; `dispatchers` and `workers_per_dispatcher` are their numbers.
    """

    def __init__(self, dispatchers: int, workers_per_dispatcher: int, key: bytes) -> None:
        self._workers_per_dispatcher = workers_per_dispatcher
        self._key = key
        self._lock = threading.Lock()
        self._addresses: dict[int, str] = {}
        self._workers: dict[int, set[int]] = {number: set() for number in range(dispatchers)}
        self._is_over = False
        self._callers: dict[socket.socket, None] = {}  # oldest first
        self._listener = listening_socket("")
        self._thread = threading.Thread(target=self._listen, name="ringtrain-directory", daemon=True)
        self._thread.start()

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Return (address, port) pairs of the directory by network interface."""
        port = self._listener.getsockname()[1]
        return {name: [(address, port)] for name, address in interface_addresses().items()}

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(CALL_S)

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            caller.settimeout(CALL_S)
            with self._lock:
                self._callers[caller] = None
                oldest = next(iter(self._callers)) if len(self._callers) > _MOST_CALLERS else None
            if oldest is not None:
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        try:
            with suppress(OSError, ValueError, KeyError, TypeError):
                self._converse(caller)
        finally:
            with self._lock:
                self._callers.pop(caller, None)
            caller.close()

    def _converse(self, caller: socket.socket) -> None:
        nonce = secrets.token_hex(16)
        send_tf_data_line(caller, {"nonce": nonce})
        said = read_tf_data_line(caller)
        request, theirs, proof = said["request"], said["nonce"], said["proof"]
        if not authentication.is_same_proof(tf_data_proof_of(self._key, ASK, nonce, theirs, request), str(proof)):
            send_tf_data_line(caller, {"refused": "the key is another"})
            return
        try:
            answer = self._do(**request)
        except ConfigurationError as error:
            answer = {"error": str(error)}
        send_tf_data_line(
            caller, {"answer": answer, "proof": tf_data_proof_of(self._key, ANSWER, nonce, theirs, answer)}
        )

    def _do(self, what: str, dispatcher: int = 0, address: str = "", worker: int = 0) -> dict[str, Any]:
        with self._lock:
            if dispatcher not in self._workers:
                raise ConfigurationError(
                    f"dispatcher {dispatcher} does not exist; this data service has "
                    f"{counted(len(self._workers), 'dispatcher')}; set --dispatchers of compute_worker to the number "
                    "of training ranks, or to 1"
                )
            if what == "dispatcher":
                self._addresses[dispatcher] = address
            elif what == "worker":
                self._workers[dispatcher].add(worker)
            elif what == "shutdown":
                self._is_over = True
            return {
                "address": self._addresses.get(dispatcher),
                "workers": sorted(self._workers[dispatcher]),
                "wanted": self._workers_per_dispatcher,
                "over": self._is_over,
            }


def tf_data_proof_of(key: bytes, role: bytes, nonce: str, theirs: str, said: Mapping[str, Any]) -> str:
    """Return an HMAC of the message `said`, which proves that the sender has `key`.

    `role`: whether the message is a request or an answer. `nonce`, `theirs`: random nonces of server and client.
    """
    text = json.dumps(said, sort_keys=True)
    return authentication.proof(key, role, nonce.encode(), theirs.encode(), text.encode())


def send_tf_data_line(sock: socket.socket, message: Mapping[str, Any]) -> None:
    """Send `message`. Raises OSError."""
    sock.sendall(line_of(message))


def read_tf_data_line(sock: socket.socket) -> dict[str, Any]:
    """Receive and return the next message. Raises OSError if the connection fails, and ValueError for an invalid
    message."""
    line = bytearray()
    while not line.endswith(b"\n"):
        came = sock.recv(1 << 16)
        if not came or len(line) > MOST_LINE_BYTES:
            raise ValueError("the connection ended before a whole message")
        line += came
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("the message is not a JSON object")
    return message
