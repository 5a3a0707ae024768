"""Client of the launcher's Coordinator service: registers the agent, follows orders, sends states of ranks.

One thread registers and then follows the launcher's orders. The other sends the ranks' state at every change and as a
heartbeat. Both continue while the launcher does not answer; the agent's main loop decides for how long.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from ringtrain.shared.data_members import DataMembersFile
from ringtrain.shared.gen import coordinator_pb2 as pb
from ringtrain.shared.messages import from_message, message_fields
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.control.model import AgentState, Order, Refusal, Registration, SlotHistory
from ringtrain_job.control.wire import order_from_message

log = logging.getLogger(__name__)

_RETRY_S = 0.2
# A launcher that starts a little later than its workers is normal. From this time on the log shows the problem, and
# repeats it at this interval.
_SAY_EVERY_S = 5.0
_DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


@dataclass(frozen=True)
class Registered:
    """Event: the launcher has registered this agent.

    `histories`: for each slot, the numbers at which an earlier agent stopped.
    """

    histories: tuple[SlotHistory, ...]


@dataclass(frozen=True)
class LeaveNoted:
    """Event: the launcher knows that this agent is leaving, and has received all its log lines."""


Message = Order | Refusal | Registered | LeaveNoted
# A message of the launcher, a signal to this process, or work for the main thread from another thread.
Event = Message | signal.Signals | Callable[[], None]


class CoordinatorClient:
    """Client that registers one agent with the launcher, and registers it again whenever the launcher has restarted.

    `deliver` receives the launcher's messages. Heartbeats contain the result of `state`, and `acknowledged` is called
    with each state that the launcher has recorded. `data_members`: file in which ranks find the job's data workers.
    """

    def __init__(
        self,
        stub: Any,
        config: AgentConfig,
        instance: str,
        registration: Callable[[], Registration],
        state: Callable[[], AgentState],
        deliver: Callable[[Message], None],
        acknowledged: Callable[[AgentState], None] = lambda _: None,
        data_members: DataMembersFile | None = None,
    ) -> None:
        self._stub = stub
        self._config = config
        self._registration = registration
        self._state = state
        self._deliver = deliver
        self._acknowledged = acknowledged
        self._data_members = data_members
        self._instance = instance
        self._closed = threading.Event()
        self._changed = threading.Event()
        self._registered = threading.Event()
        self._orders: Any = None
        self._answered_at = time.monotonic()
        self._heartbeat_s = config.heartbeat_s
        self.last_problem = ""
        self._saying = threading.Lock()
        self._logged_at = float("-inf")
        self._threads = [
            threading.Thread(target=self._follow_orders, name="ringtrain-orders", daemon=True),
            threading.Thread(target=self._send_state, name="ringtrain-heartbeat", daemon=True),
        ]

    @property
    def registered(self) -> bool:
        """Whether the launcher has registered this agent at least once."""
        return self._registered.is_set()

    def start(self) -> None:
        """Start to connect."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop receiving orders and sending states. Running calls end when their channel is closed."""
        self._closed.set()
        self._changed.set()
        if self._orders is not None:
            self._orders.cancel()

    def join(self) -> None:
        """Wait until the threads have ended. Call `close` first."""
        for thread in self._threads:
            thread.join(self._config.call_s)

    def changed(self) -> None:
        """Wake the thread that sends the ranks' states, because a state has changed."""
        self._changed.set()

    def record_answer(self) -> None:
        """Record the time of an answer of the launcher."""
        self._answered_at = time.monotonic()

    def silent_s(self) -> float:
        """Return the seconds since the launcher's last answer to this agent."""
        return time.monotonic() - self._answered_at

    def _follow_orders(self) -> None:
        while not self._closed.is_set():
            try:
                if self._register():
                    self._read_orders()
            except grpc.RpcError as error:
                self._note_problem(error)
            except OSError as error:  # the launcher's name does not resolve yet
                self._log_problem(str(error))
            except ValueError:  # the channel was closed
                return
            self._closed.wait(_RETRY_S)

    def _register(self) -> bool:
        request = pb.RegisterRequest(**message_fields(self._registration()))
        # Without wait_for_ready, the error contains the cause, not only that the deadline has passed.
        reply = self._stub.Register(request, timeout=self._config.call_s)
        self.record_answer()
        if not reply.accepted:
            self._deliver(Refusal(reply.reason, reply.misconfigured))
            self._closed.set()
            return False
        if reply.slots:
            self._deliver(Registered(tuple(from_message(SlotHistory, history) for history in reply.slots)))
        self._registered.set()
        self._changed.set()
        return True

    def _read_orders(self) -> None:
        request = pb.OrdersRequest(worker_index=self._config.index, instance=self._instance, reads_deflated=True)
        self._orders = self._stub.Orders(request)
        if self._closed.is_set():
            self._orders.cancel()
        for order in self._orders:
            self.record_answer()
            self._deliver(order_from_message(order))

    def _send_state(self) -> None:
        while not self._closed.is_set():
            self._changed.wait(self._heartbeat_s)
            self._changed.clear()
            if self._closed.is_set() or not self._registered.is_set():
                continue
            state = self._state()
            fields: dict[str, Any] = {"worker_index": self._config.index, "instance": self._instance}
            if self._data_members is not None:
                fields["data_version"] = self._data_members.version
            request = pb.SyncRequest(**fields, **message_fields(state))
            try:
                reply = self._stub.Sync(request, timeout=self._config.call_s)
            except grpc.RpcError as error:
                self._note_problem(error)
                self._closed.wait(_RETRY_S)
                self._changed.set()
                continue
            except ValueError:  # the channel was closed
                return
            self.record_answer()
            self._heartbeat_s = reply.heartbeat_s or self._config.heartbeat_s
            if self._data_members is not None:
                self._data_members.take(reply.data_workers)
            if reply.known:
                self._acknowledged(state)
            if state.leaving and state.drained:
                self._deliver(LeaveNoted())
            if not reply.known and self._orders is not None:
                self._orders.cancel()  # the other thread then registers again

    def _note_problem(self, error: grpc.RpcError) -> None:
        if self._closed.is_set():
            return
        code, details = error.code(), error.details()
        self._log_problem(f"{code.name}: {details}")
        if code in _DENIED:
            self._deliver(Refusal(f"the launcher does not trust this agent: {details}", misconfigured=True))
            self._closed.set()

    def _log_problem(self, problem: str) -> None:
        """Store a connection problem, and log it every few seconds while the launcher does not answer."""
        with self._saying:
            self.last_problem = problem
            now, silent_s = time.monotonic(), self.silent_s()
            if min(silent_s, now - self._logged_at) < _SAY_EVERY_S:
                return
            self._logged_at = now
        address = self._config.launcher_address
        log.warning("the launcher at %s has not been reached for %.0f s: %s", address, silent_s, problem)
