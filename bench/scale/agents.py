"""A simulated agent, of which a process holds thousands: wire messages and mTLS of real ones, no ranks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from ringtrain.shared import contract
from ringtrain.shared.gen import coordinator_pb2 as pb
from ringtrain.shared.rpc import TOKEN_KEY, RpcPeer, channel_options
from ringtrain_job.agent.config import AgentConfig

_SERVICE = "/ringtrain.v1.Coordinator/"
_RETRY_S = 0.2
# Number of the field of an order that stops the ranks; the others start them here.
_STOP = 2
_LINE = b"0123456789abcdef" * 5 + b"01234567890abcdefg\n"


@dataclass
class Seen:
    """First and last time (`time.monotonic`) of one kind of event over all agents, and the number of events."""

    first: float = 0.0
    last: float = 0.0
    count: int = 0

    def note(self) -> None:
        """One more agent has seen it now."""
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.count += 1

    def forget(self) -> None:
        """Begin anew."""
        self.first, self.last, self.count = 0.0, 0.0, 0

    @staticmethod
    def sum(parts: Sequence[Seen]) -> Seen:
        """Combine the events of several processes of one machine, which share one clock."""
        first = min((part.first for part in parts if part.count), default=0.0)
        return Seen(first, max(part.last for part in parts), sum(part.count for part in parts))


@dataclass
class Tally:
    """Events and counts of all agents. `registered.forget()` restarts its count. `order_bytes`: size of orders."""

    registered: Seen
    started: Seen
    stopped: Seen
    lines: int = 0
    heartbeats: int = 0
    order_bytes: int = 0
    failed_calls: int = 0

    @staticmethod
    def new() -> Tally:
        """Nothing seen."""
        return Tally(Seen(), Seen(), Seen())

    @staticmethod
    def read(found: dict[str, Any]) -> Tally:
        """Restore a tally from the output of `dataclasses.asdict`."""
        return Tally(**{name: Seen(**value) if isinstance(value, dict) else value for name, value in found.items()})

    @staticmethod
    def sum(parts: Sequence[Tally]) -> Tally:
        """Combine the tallies of several processes."""
        seen = (Seen.sum([getattr(part, name) for part in parts]) for name in ("registered", "started", "stopped"))
        counts = ("lines", "heartbeats", "order_bytes", "failed_calls")
        return Tally(*seen, **{name: sum(getattr(part, name) for part in parts) for name in counts})


class SimulatedAgent:
    """One agent: registers, follows orders, sends heartbeats, and log lines when asked to."""

    def __init__(self, config: AgentConfig, index: int, tally: Tally) -> None:
        self._config, self._index, self._tally = config, index, tally
        self._instance = f"instance-{index}"
        self._metadata = ((TOKEN_KEY, config.secrets.token),)
        self._running = False
        self._sequence = 0
        self._registered = False
        self._changed = asyncio.Event()
        self._state = self._sync_request()
        tls = config.secrets.tls
        assert tls is not None
        options = [
            *channel_options(RpcPeer(contract.ROLE_LAUNCHER, config.job.uid), config.workers),
            ("grpc.use_local_subchannel_pool", 1),  # a connection for each agent
            ("grpc.max_receive_message_length", 64 << 20),
        ]
        self._channel = grpc.aio.secure_channel(config.launcher_address, tls.for_channel(), options)
        self._calls = {
            "Register": self._unary("Register", pb.RegisterReply.FromString),
            "Sync": self._unary("Sync", pb.SyncReply.FromString),
            "Append": self._unary("Append", pb.AppendReply.FromString),
            "Orders": self._channel.unary_stream(_SERVICE + "Orders", pb.OrdersRequest.SerializeToString, None),
        }
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to dial."""
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._beat())]

    async def kill(self) -> None:
        """End without a word, as a pod whose process is killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    async def log(self, until: float, lines: int) -> None:
        """Send `lines` lines of one rank after another, a call at a time, until the time `until`."""
        first, data, sent = self._index * self._config.slots, _LINE * lines, [0] * self._config.slots
        local = 0
        while time.monotonic() < until:
            chunk = pb.Chunk(rank=first + local, first=sent[local] + 1, lines=lines, data=data)
            reply = await self._call("Append", pb.AppendRequest(attempt=1, worker_index=self._index, chunks=[chunk]))
            if reply is None or not reply.durable:
                await asyncio.sleep(_RETRY_S)
                continue
            sent[local] += lines
            self._tally.lines += lines
            local = (local + 1) % self._config.slots

    async def _follow(self) -> None:
        while True:
            reply = await self._call("Register", self._registration())
            if reply is not None and reply.accepted:
                self._registered = True
                self._tally.registered.note()
                self._changed.set()
                await self._read_orders()
            await asyncio.sleep(_RETRY_S)

    async def _read_orders(self) -> None:
        request = pb.OrdersRequest(worker_index=self._index, instance=self._instance, reads_deflated=True)
        try:
            async for order in self._calls["Orders"](request, metadata=self._metadata):
                self._tally.order_bytes += len(order)
                self._obey(order[0] >> 3)
        except grpc.aio.AioRpcError:
            self._tally.failed_calls += 1

    def _obey(self, field: int) -> None:
        if field == _STOP:
            self._tally.stopped.note()
        elif not self._running:
            self._running = True
            self._state = self._sync_request()
            self._tally.started.note()
            self._changed.set()

    async def _beat(self) -> None:
        heartbeat_s = self._config.heartbeat_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(heartbeat_s):
                    await self._changed.wait()
            self._changed.clear()
            if self._registered:
                reply = await self._call("Sync", self._state)
                heartbeat_s = (reply and reply.heartbeat_s) or self._config.heartbeat_s
                self._tally.heartbeats += 1

    async def _call(self, name: str, request: Any) -> Any:
        try:
            return await self._calls[name](request, metadata=self._metadata, timeout=self._config.call_s)
        except grpc.aio.AioRpcError:
            self._tally.failed_calls += 1
            return None

    def _unary(self, name: str, read: Callable[[bytes], Any]) -> Any:
        return self._channel.unary_unary(_SERVICE + name, type(self._requests()[name]).SerializeToString, read)

    @staticmethod
    def _requests() -> dict[str, Any]:
        return {"Register": pb.RegisterRequest(), "Sync": pb.SyncRequest(), "Append": pb.AppendRequest()}

    def _ranks(self) -> list[Any]:
        first = self._index * self._config.slots
        if not self._running:
            return []
        return [pb.RankState(rank=first + i, phase="Running") for i in range(self._config.slots)]

    def _sync_request(self) -> Any:
        return pb.SyncRequest(worker_index=self._index, instance=self._instance, ranks=self._ranks())

    def _registration(self) -> Any:
        config = self._config
        return pb.RegisterRequest(
            job_uid=config.job.uid,
            attempt=config.job.attempt,
            worker_index=self._index,
            slots=config.slots,
            instance=self._instance,
            pod=f"{config.job.name}-worker-{self._index}",
            node=f"node-{self._index // 8}",
            address=f"10.{self._index >> 16}.{self._index >> 8 & 255}.{self._index & 255}",
            agent_port=7360,
            ring_ports=range(7400, 7400 + config.slots),
            tf_ports=range(7500, 7500 + config.slots),
            master_port=7390,
            ranks=self._ranks(),
        )
