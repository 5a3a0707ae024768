"""Client with which dispatchers, workers and training find each other, with the names of Horovod's client."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ringtrain.errors import ConfigurationError, DataError, counted
from ringtrain.shared import authentication
from ringtrain_data_service.tensorflow.directory import (
    ANSWER,
    ASK,
    CALL_S,
    read_tf_data_line,
    send_tf_data_line,
    tf_data_proof_of,
)

log = logging.getLogger("ringtrain.data")
_AGAIN_S: Final = 0.2


class OtherKey(ConfigurationError):
    """Error: the compute job that answers has another key than the config."""


@dataclass(frozen=True)
class DispatcherState:
    """State of a dispatcher. `address`: None before it has started. `workers`: indices of the workers that are ready.
    `wanted`: number of workers that it needs.

    `over`: whether training has ended, so that the compute job ends too.
    """

    address: str | None
    workers: tuple[int, ...]
    wanted: int
    over: bool


@dataclass(frozen=True)
class TfDataDirectoryClient:
    """Client of the directory of dispatchers and workers. It tries all `addresses`, by interface, and proves its `key`.

    `timeout_s`: seconds without a connection to the directory after which DataError is raised.
    """

    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes = field(repr=False)
    timeout_s: float = 60.0

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Register the address of a dispatcher; it replaces an earlier address."""
        self._request(what="dispatcher", dispatcher=dispatcher_id, address=dispatcher_address)

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Register a ready worker of the dispatcher."""
        self._request(what="worker", dispatcher=dispatcher_id, worker=worker_id)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Return the dispatcher's address, `grpc://host:port`. Raises DataError after `timeout` seconds."""
        state = self._await(dispatcher_id, timeout, "has not started", lambda state: state.address is not None)
        return str(state.address)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Wait until all workers of the dispatcher are ready. Raises DataError after `timeout` seconds."""
        self._await(dispatcher_id, timeout, "does not have all its workers", lambda s: len(s.workers) >= s.wanted)

    def shutdown(self) -> None:
        """End the compute job, if it is still running."""
        try:
            self._request(what="shutdown", within_s=min(CALL_S, self.timeout_s))
        except DataError as error:
            log.info("could not send `shutdown` to the compute job: %s", error)

    def wait_for_shutdown(self) -> None:
        """Wait until training calls `shutdown`. Raises DataError if the directory no longer answers."""
        while not self.state().over:
            time.sleep(_AGAIN_S)

    def state(self, dispatcher_id: int = 0, within_s: float | None = None) -> DispatcherState:
        """Return the state of one dispatcher. Raises DataError if there is no answer within `within_s`."""
        answer = self._request(what="state", dispatcher=dispatcher_id, within_s=within_s)
        return DispatcherState(answer["address"], tuple(answer["workers"]), answer["wanted"], answer["over"])

    def _await(
        self, dispatcher: int, timeout_s: float, missing: str, is_there: Callable[[DispatcherState], bool]
    ) -> DispatcherState:
        end = time.monotonic() + timeout_s
        while True:
            state = self.state(dispatcher)
            if is_there(state):
                return state
            if state.over:
                raise DataError(f"dispatcher {dispatcher} {missing}; training has ended the compute job by `shutdown`")
            if time.monotonic() >= end:
                ready = ", ".join(map(str, state.workers)) or "none"
                raise DataError(
                    f"dispatcher {dispatcher} {missing} after {timeout_s:g} s (compute_worker's --timeout); "
                    f"of its {counted(state.wanted, 'worker')} these are ready: {ready}. See compute_worker's output"
                )
            time.sleep(_AGAIN_S)

    def _request(self, within_s: float | None = None, **request: Any) -> dict[str, Any]:
        limit_s = self.timeout_s if within_s is None else within_s
        end = time.monotonic() + limit_s
        while True:
            with_other_keys: list[OtherKey] = []
            for address in [address for known in self.addresses.values() for address in known]:
                try:
                    answer = self._request_at(address, request)
                except OtherKey as error:  # another compute job may use an address that exists on every host
                    with_other_keys.append(error)
                    continue
                if answer is not None:
                    return answer
            if with_other_keys:
                raise with_other_keys[0]
            if time.monotonic() >= end:
                where = ", ".join(f"{host}:{port}" for known in self.addresses.values() for host, port in known)
                raise DataError(
                    f"no compute job answers at {where} within {limit_s:g} s: the job has ended, or this process can't "
                    "reach it; start compute_worker again, and pass the file that it writes to training"
                )
            time.sleep(_AGAIN_S)

    def _request_at(self, address: tuple[str, int], request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the answer to `request`; None if the connection fails or the reply is malformed. Raises
        ConfigurationError if the compute job refuses the request, and OtherKey if the key of the compute job is not
        that of this client."""
        nonce = secrets.token_hex(16)
        try:
            with socket.create_connection(address, timeout=CALL_S) as sock:
                theirs = str(read_tf_data_line(sock)["nonce"])
                proof = tf_data_proof_of(self.key, ASK, theirs, nonce, request)
                send_tf_data_line(sock, {"request": dict(request), "nonce": nonce, "proof": proof})
                said = read_tf_data_line(sock)
        except (OSError, ValueError, KeyError):
            return None
        answer = said.get("answer")
        if not isinstance(answer, dict) or not authentication.is_same_proof(
            tf_data_proof_of(self.key, ANSWER, theirs, nonce, answer), str(said.get("proof"))
        ):
            raise OtherKey(
                f"the compute job at {address[0]}:{address[1]} has another key than this config: use the "
                f"config file that this compute job wrote, or the key file that its --key-file names"
            )
        if "error" in answer:
            raise ConfigurationError(str(answer["error"]))
        return answer
