"""Proxy between TensorFlow's client and its dispatcher that ends the dataset if the compute job is lost.

TensorFlow's client retries an unreachable dispatcher forever and logs nothing. It handles an error answer as the end of
the dataset. Therefore each rank's client connects to a relay in its own process, which forwards all calls, watches the
compute job, and returns such an error if the job is lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import grpc

from ringtrain.errors import ConfigurationError, DataError

log = logging.getLogger("ringtrain.data")
_LOOK_S: Final = 1.0
_ANSWER_S: Final = 3.0
# Silence that is logged: a dispatcher's process is restarted within a second.
_SAID_AFTER_S: Final = 5.0
_CALL_S: Final = 60.0  # TensorFlow's own calls have hours
_THREADS: Final = 4
_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),  # a dataset's graph is one message
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(frozen=True)
class WatchedTfDataJob:
    """Compute job that a relay watches. `asks(seconds)`: asks the job whether it is over, and raises DataError if no
    job answers in that time, ConfigurationError if another job answers. `name`: the job's name in messages.
    `lost_after_s`: seconds without an answer after which the job counts as lost."""

    asks: Callable[[float], bool]
    name: str
    lost_after_s: float


class TfDataRelay(grpc.GenericRpcHandler):
    """Proxy on a loopback `port` for the dispatcher `target` (`host:port`) of `job`. It runs until `close`."""

    def __init__(self, target: str, job: WatchedTfDataJob) -> None:
        self._job = job
        self._lost = ""
        self._closed = threading.Event()
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._server = grpc.server(ThreadPoolExecutor(_THREADS), handlers=(self,), options=_OPTIONS)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self._thread = threading.Thread(target=self._watch, name="ringtrain-compute-job", daemon=True)
        self._thread.start()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return a gRPC handler that forwards calls of any method to the dispatcher as bytes."""
        ask = self._channel.unary_unary(handler_call_details.method)
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._pass_on(ask, request, context))

    @property
    def is_lost(self) -> bool:
        """Whether the compute job counts as lost. If so, the relay answers every call with an error."""
        return bool(self._lost)

    def close(self) -> None:
        """Stop listening and watching."""
        self._closed.set()
        self._server.stop(None)
        self._channel.close()

    def _pass_on(self, ask: Any, request: bytes, context: grpc.ServicerContext) -> Any:
        if self._lost:
            context.abort(grpc.StatusCode.INTERNAL, self._lost)
        try:
            return ask(request, timeout=_CALL_S)
        except grpc.RpcError as error:  # the error of a call is a call as well
            context.abort(error.code(), error.details())

    def _watch(self) -> None:
        heard, said = time.monotonic(), False
        while not self._closed.wait(_LOOK_S):
            try:
                if self._job.asks(_ANSWER_S):
                    return
            except (DataError, ConfigurationError) as error:
                silent_s = time.monotonic() - heard
                if silent_s >= self._job.lost_after_s:
                    self._lost = (
                        f"DataError: {self._job.name} has not answered for {silent_s:.0f} s ({error}). Start "
                        "compute_worker again; training reads its config and makes its datasets anew"
                    )
                    log.error("%s", self._lost)
                    return
                if silent_s >= min(_SAID_AFTER_S, self._job.lost_after_s / 2) and not said:
                    said = True
                    log.warning(
                        "%s has not answered for %.0f s; training waits for at most %g s",
                        self._job.name, silent_s, self._job.lost_after_s,
                    )  # fmt: skip
                continue
            if said:
                log.warning("%s answers again", self._job.name)
            heard, said = time.monotonic(), False
