"""Client of an agent's daemon service: start one mpirun daemon, forward its streams, return its exit code."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc

from ringtrain.errors import RingtrainError
from ringtrain.shared.authentication import MpiDaemonClaim, prove
from ringtrain.shared.gen import daemons_pb2 as pb
from ringtrain.shared.rpc import stub_of

log = logging.getLogger(__name__)

_DAEMONS: Final = pb.DESCRIPTOR.services_by_name["Daemons"]
_QUEUED_CHUNKS = 16


class DaemonNotStarted(RingtrainError, ConnectionError):
    """Error: the agent refused to start a daemon, did not answer, or was lost while the daemon was running."""


@dataclass(frozen=True)
class MpirunDaemonOutput:
    """Callbacks for a daemon's output. One thread calls all of them, in the order of the output."""

    stdout: Callable[[bytes], None]
    stderr: Callable[[bytes], None]


class MpirunRemoteDaemon:
    """One mpirun daemon on a worker. `run` blocks until the daemon has ended; other threads may call other methods
    meanwhile.

    The call waits `start_s` for the agent's answer, and without limit for the daemon: mpirun decides how long it is
    needed, and gRPC's keepalive detects a lost agent.
    """

    def __init__(self, channel: grpc.Channel, token: str, claim: MpiDaemonClaim, start_s: float) -> None:
        self._channel = channel
        self._token = token
        self._claim = claim
        self._start_s = start_s
        self._requests: queue.Queue[Any | None] = queue.Queue(_QUEUED_CHUNKS)
        self._started = threading.Event()
        self._over = threading.Event()
        self._call: Any = None

    def run(self, output: MpirunDaemonOutput) -> int:
        """Start the daemon, forward its output, and return its exit code. Raises DaemonNotStarted if it does not start
        or the call ends early."""
        self._call = stub_of(self._channel, _DAEMONS).Run(self._outgoing(), wait_for_ready=True)
        impatience = threading.Timer(self._start_s, self._call.cancel)
        impatience.start()
        try:
            for reply in self._call:
                what = reply.WhichOneof("reply")
                if what == "exit_code":
                    return int(reply.exit_code)
                if what == "nonce":
                    self._requests.put(self._start(reply.nonce))
                elif what == "pid":
                    impatience.cancel()
                    self._started.set()
                else:
                    (output.stdout if what == "stdout" else output.stderr)(getattr(reply, what))
        except grpc.RpcError as exc:
            raise DaemonNotStarted(self._reason(exc)) from exc
        finally:
            impatience.cancel()
            self.cancel()
        raise DaemonNotStarted("the agent closed the call before the daemon ended")

    def feed(self, data: bytes) -> None:
        """Send `data` to the daemon's stdin; empty data closes it. Blocks while the agent's queue is full."""
        self._put(pb.RunRequest(stdin=data) if data else pb.RunRequest(stdin_end=True))

    def signal(self, number: int) -> None:
        """Send a signal to the daemon and all its descendants."""
        self._put(pb.RunRequest(signal=number))

    def cancel(self) -> None:
        """Cancel the gRPC call; the agent then ends the daemon."""
        self._over.set()
        self._started.set()  # releases waiting threads
        if self._call is not None:
            self._call.cancel()

    def _reason(self, error: grpc.RpcError) -> str:
        code, details = error.code(), error.details()
        if code is not grpc.StatusCode.CANCELLED:
            return f"{code.name}: {details}"
        if self._over.is_set():
            return "mpirun or the launcher cancelled the call"
        if self._started.is_set():
            return "the agent ended the daemon"
        return f"the agent did not start the daemon within {self._start_s:g} s"

    def _start(self, nonce: bytes) -> Any:
        claim = self._claim
        proof = prove(self._token, nonce, claim)
        start = pb.Start(job_uid=claim.job_uid, attempt=claim.attempt, command=claim.command, proof=proof)
        return pb.RunRequest(start=start)

    def _put(self, request: Any) -> None:
        """Queue `request` after the daemon has started. The request is dropped if the call is over."""
        self._started.wait()
        while not self._over.is_set():
            try:
                self._requests.put(request, timeout=1.0)
                return
            except queue.Full:
                continue

    def _outgoing(self) -> Iterator[Any]:
        while not self._over.is_set():
            try:
                yield self._requests.get(timeout=1.0)
            except queue.Empty:
                continue
