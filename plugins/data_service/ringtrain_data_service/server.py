"""Server of `ringtrain data-worker`, which loads batches for ranks in child processes. The server stores nothing."""

from __future__ import annotations

import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

import grpc

from ringtrain.errors import counted
from ringtrain.shared import contract
from ringtrain.shared.address import host_port, own_address
from ringtrain.shared.data_members import DataMember, DataMemberAnnouncer
from ringtrain.shared.processes import signal_handler
from ringtrain.shared.rpc import RpcPeer, dial, serve
from ringtrain.shared.secrets import Secrets
from ringtrain_data_service.config import DataWorkerConfig
from ringtrain_data_service.frames import METHOD, SERVICE, DataWorkerAnswer, DataWorkerRequest
from ringtrain_data_service.slots import DataWorkerClient, DataWorkerRequestQueue, DataWorkerSlot, LoadedAnswer

log = logging.getLogger(__name__)

# Limit on ranks with an open stream, each of which occupies a thread.
_MOST_RANKS: Final = 4096
_END_S: Final = 2.0


class DataWorkerServer:
    """Server from which ranks request batches. `port`: 0 takes any free port. `slots`: number of loader processes."""

    def __init__(
        self, port: int, secrets: Secrets, uid: str, *, slots: int, alive_s: float, environment: Mapping[str, str]
    ) -> None:
        self._alive_s = alive_s
        self._slots = slots
        self._queue = DataWorkerRequestQueue(slots)
        own = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // slots)), **environment}
        self._running = [DataWorkerSlot(index, self._queue, own) for index in range(slots)]
        peer = RpcPeer(contract.ROLE_WORKER, uid)
        self._server = serve(port, secrets, peer, threads=_MOST_RANKS, register=self._register)
        self.port = self._server.port

    def close(self) -> None:
        """Stop listening, and end the loader processes."""
        self._queue.close()
        self._server.close(0.0)
        for slot in self._running:
            slot.join(_END_S)

    def _register(self, server: grpc.Server) -> None:
        handlers = {METHOD: grpc.stream_stream_rpc_method_handler(self._serve)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])

    def _serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        client = self._queue.enter()
        if not context.add_callback(lambda: self._queue.leave(client)):
            self._queue.leave(client)
        reader = threading.Thread(
            target=self._read, args=(client, requests, context), name="ringtrain-requests", daemon=True
        )
        reader.start()
        yield DataWorkerAnswer("hello", slots=self._slots).encode_head()
        while not client.closed:
            loaded = self._queue.next_answer(client, self._alive_s)
            if loaded is None:
                yield DataWorkerAnswer("alive").encode_head()
                continue
            yield from self._send(client, loaded)

    def _send(self, client: DataWorkerClient, loaded: LoadedAnswer) -> Iterator[bytes]:
        try:
            yield from loaded.messages()
        finally:
            loaded.close()
            self._queue.sent(client)

    def _read(self, client: DataWorkerClient, requests: Iterator[bytes], context: Any) -> None:
        try:
            for message in requests:
                if not self._queue.ask(client, DataWorkerRequest.decode(message)):
                    break
        except grpc.RpcError:
            pass
        except ValueError as error:
            log.warning("refused a request from %s: %s", context.peer(), error)
        context.cancel()


def main(environment: Mapping[str, str]) -> int:
    """Run a data worker with the settings in `environment`; return the exit code. Raises ConfigurationError if a
    setting is invalid."""
    return run_data_worker(DataWorkerConfig.from_env(environment), environment)


def run_data_worker(config: DataWorkerConfig, environment: Mapping[str, str]) -> int:
    """Serve ranks until SIGTERM or SIGINT; return the exit code. Raises PortTaken if `config.port` is in use."""
    asked = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(signal_handler(lambda *_: asked.set(), signal.SIGTERM, signal.SIGINT))
        server = DataWorkerServer(
            config.port,
            config.secrets,
            config.uid,
            slots=config.slots,
            alive_s=config.heartbeat_s,
            environment=environment,
        )
        stack.callback(server.close)
        log.info(
            "data worker %d has started %s and listens on port %d",
            config.index,
            counted(config.slots, "loader process", "loader processes"),
            server.port,
        )
        if config.launcher_address:
            announce_data_worker(config, _data_member(config, server.port), stack)
        asked.wait()
    return 0


def announce_data_worker(
    config: DataWorkerConfig,
    member: Callable[[], DataMember],
    stack: ExitStack,
    on_members: Callable[[str], None] = lambda _: None,
) -> None:
    """Register the data worker with the job's launcher, and again after each restart of the launcher, until `stack` is
    closed."""
    channel = dial(config.launcher_address, config.secrets, RpcPeer(contract.ROLE_LAUNCHER, config.uid))
    stack.callback(channel.close)
    announcer = DataMemberAnnouncer(
        channel, member, heartbeat_s=config.heartbeat_s, call_s=config.call_s, on_members=on_members
    )
    stack.callback(announcer.close)


def _data_member(config: DataWorkerConfig, port: int) -> Callable[[], DataMember]:
    instance = uuid.uuid4().hex

    def member() -> DataMember:
        host = config.pod_ip or own_address(config.launcher_address)
        address = host_port(host, port)
        return DataMember(config.uid, config.index, instance, config.pod, address, config.kind, config.slots)

    return member
