"""Service of the agent for `ringtrain rsh`: start an mpirun daemon, forward its streams, kill it when the call ends."""

import contextlib
import logging
import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc

from ringtrain.errors import ConfigurationError
from ringtrain.shared.authentication import MpiDaemonClaim, is_same_proof, prove
from ringtrain.shared.gen import daemons_pb2 as pb
from ringtrain.shared.processes import MARKER, end_marked, signal_marked
from ringtrain_job.control.model import JobIdentity
from ringtrain_mpi.agent.children import ChildStreams, MpiDaemonSpawner

log = logging.getLogger(__name__)

DAEMONS: Final = pb.DESCRIPTOR.services_by_name["Daemons"]
_CHUNK = 64 << 10
_NONCE_BYTES = 32
# Limit on queued chunks: a caller that reads slowly slows the daemon down instead of filling this process's memory.
_QUEUED_CHUNKS = 16
# Seconds that a daemon's grandchildren may hold its output open after its end.
_LAST_OUTPUT_S = 1.0


@dataclass(frozen=True)
class Deadlines:
    """Time limits of a daemon's call. `start_s`: for the caller's answer to the challenge; `grace_s`: from SIGTERM to
    SIGKILL."""

    start_s: float
    grace_s: float


@dataclass(frozen=True)
class MpiDaemonContext:
    """Functions that start a daemon. `spawner`: starts the process. `environment`: returns the variables for a command.
    `await_begun`: waits until daemons may start."""

    spawner: MpiDaemonSpawner
    environment: Callable[[str], Mapping[str, str]]
    await_begun: Callable[[], None] = lambda: None


class MpiDaemonService:
    """gRPC service with which the launcher starts mpirun's daemons here (proto/ringtrain/v1/daemons.proto).

    The server has already refused clients without the certificate of this job's launcher.
    """

    def __init__(self, job: JobIdentity, token: str, context: MpiDaemonContext, deadlines: Deadlines) -> None:
        self._job = job
        self._token = token
        self._context = context
        self._deadlines = deadlines

    def Run(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        nonce = secrets.token_bytes(_NONCE_BYTES)  # a challenge that is never repeated
        yield pb.RunReply(nonce=nonce)
        start = self._await_start(requests, context)
        problem = self._problem(start, nonce)
        if start is None or problem:
            log.warning("refused the request of %s to start a daemon: %s", context.peer(), problem)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
            raise AssertionError("abort raises")
        daemon = self._start(start.command, context)
        log.info("started a daemon for %s as process %d: %.200s", context.peer(), daemon.pid, start.command)
        if not context.add_callback(daemon.end):
            daemon.end()
        daemon.listen(requests)
        try:
            yield pb.RunReply(pid=daemon.pid)
            yield from daemon.replies()
        finally:
            daemon.end()

    def _start(self, command: str, context: Any) -> "_MpiDaemon":
        try:
            self._context.await_begun()
            return _MpiDaemon(command, self._context, self._deadlines.grace_s)
        except (OSError, TimeoutError, ConfigurationError) as exc:
            log.warning("cannot start a daemon for %s: %s", context.peer(), exc)
            context.abort(grpc.StatusCode.UNAVAILABLE, f"the agent cannot start the daemon: {exc}")
            raise AssertionError("abort raises") from exc

    def _await_start(self, requests: Iterator[Any], context: Any) -> Any | None:
        """Wait for the caller's start request; return it, or None if the caller disconnects or exceeds `start_s`."""
        timer = threading.Timer(self._deadlines.start_s, context.cancel)
        timer.start()
        try:
            first = next(requests, None)
        except Exception:  # gRPC raises a bare Exception at the end of a cancelled call
            return None
        finally:
            timer.cancel()
        return first.start if first is not None and first.HasField("start") else None

    def _problem(self, start: Any | None, nonce: bytes) -> str:
        """Return the reason to refuse the start request; empty if it is authentic and for this job's attempt."""
        if start is None:
            return "the first request of the call is not a start request"
        claim = MpiDaemonClaim(start.job_uid, start.attempt, start.command)
        if not is_same_proof(start.proof, prove(self._token, nonce, claim)):
            return "the proof does not match this call's nonce: the caller lacks the job's token, or replays a message"
        if (claim.job_uid, claim.attempt) != (self._job.uid, self._job.attempt):
            wanted, own = (
                f"attempt {claim.attempt} of job {claim.job_uid}",
                f"attempt {self._job.attempt} of job {self._job.uid}",
            )
            return f"the request is for {wanted}, but this agent belongs to {own}"
        return ""


class _MpiDaemon:
    """A running mpirun daemon and all its descendants."""

    def __init__(self, command: str, context: MpiDaemonContext, grace_s: float) -> None:
        self._marker = secrets.token_hex(8)
        self._grace_s = grace_s
        self._output: queue.Queue[Any | None] = queue.Queue(_QUEUED_CHUNKS)
        self._ended = threading.Event()
        child_in, self._stdin = os.pipe()
        out, child_out = os.pipe()
        err, child_err = os.pipe()
        try:
            environment = {**context.environment(command), MARKER: self._marker}
            streams = ChildStreams(child_in, child_out, child_err)
            self._child = context.spawner.spawn(["/bin/sh", "-c", command], environment, streams)
        except (OSError, TimeoutError):
            for file in (self._stdin, out, err):
                os.close(file)
            raise
        finally:
            for file in (child_in, child_out, child_err):
                os.close(file)
        self.pid = self._child.pid
        pumps = [self._thread(self._pump, out, "stdout"), self._thread(self._pump, err, "stderr")]
        self._thread(self._await_exit, pumps)

    def listen(self, requests: Iterator[Any]) -> None:
        """Start a thread that processes the caller's further requests: stdin and signals."""
        self._thread(self._follow_requests, requests)

    def _follow_requests(self, requests: Iterator[Any]) -> None:
        """Write the caller's stdin to the daemon, and forward its signals, until the caller sends no more."""
        with contextlib.suppress(Exception):  # end of the call, which `end` handles
            for request in requests:
                what = request.WhichOneof("request")
                if what == "signal":
                    signal_marked(self._marker, request.signal)
                else:
                    self._feed(request.stdin if what == "stdin" else b"")
        self._feed(b"")

    def replies(self) -> Iterator[Any]:
        """Yield the daemon's output as it arrives, and finally its exit code."""
        while (reply := self._output.get()) is not None:
            yield reply
        code = self._child.exit.result()
        yield pb.RunReply(exit_code=code if code >= 0 else 128 - code)

    def end(self) -> None:
        """Begin to end the daemon and all its descendants; return at once. Repeated calls have no effect."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread(end_marked, self._marker, self._grace_s)

    def _feed(self, data: bytes) -> None:
        """Write `data` to the daemon's stdin; empty data closes it. Only one thread may call this."""
        if self._stdin < 0:
            return
        view = memoryview(data)
        with contextlib.suppress(OSError):  # a daemon need not read its stdin
            while view:
                view = view[os.write(self._stdin, view) :]
        if not data:
            os.close(self._stdin)
            self._stdin = -1

    def _pump(self, file: int, kind: str) -> None:
        while data := os.read(file, _CHUNK):
            self._put(pb.RunReply(**{kind: data}))
        os.close(file)

    @staticmethod
    def _thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True, name="ringtrain-daemon")
        thread.start()
        return thread

    def _put(self, reply: Any | None) -> None:
        while True:
            try:
                self._output.put(reply, timeout=1.0)
                return
            except queue.Full:
                if self._ended.is_set():  # the caller has stopped reading
                    return

    def _await_exit(self, pumps: list[threading.Thread]) -> None:
        self._child.exit.result()
        for pump in pumps:
            pump.join(_LAST_OUTPUT_S)
        self._put(None)
