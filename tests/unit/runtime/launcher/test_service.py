"""The launcher's service: coroutines on one thread for any number of agents."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.deadlines import patient
from support.small_job import environment

from ringtrain.shared.gen import coordinator_pb2 as pb
from ringtrain.shared.messages import message_fields
from ringtrain.shared.rpc import RpcPeer, dial, stub_of
from ringtrain.shared.secrets import Secrets
from ringtrain_job.control.async_server import AsyncServer
from ringtrain_job.control.model import AgentState, Outcome, RankPhase, Registration, Start, Stop, Verdict, World
from ringtrain_job.control.wire import COORDINATOR, order_from_message
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.service import CoordinatorService
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.store import LogStore

CONFIG = LauncherConfig.from_env(environment(200))
ELASTIC = LauncherConfig.from_env(environment(200, ELASTIC="Replace"))
SMALL = World(1, ("a:1",), ("a:2",), "a", 3)
LARGE = World(
    1,
    tuple(f"[fd00::{rank >> 3:x}]:{7400 + rank % 8}" for rank in range(32_000)),
    tuple(f"[fd00::{rank >> 3:x}]:{7500 + rank % 8}" for rank in range(32_000)),
    "fd00::",
    3,
)
DEADLINE_S = patient(60.0)


@dataclass
class Call:
    """The context of a call: what gRPC gives to a method."""

    written: list[Any] = field(default_factory=list)
    wrote: asyncio.Event = field(default_factory=asyncio.Event)

    def peer(self) -> str:
        return "ipv4:10.0.0.7:1"

    async def write(self, message: Any) -> None:
        self.written.append(message)
        self.wrote.set()


class Served:
    """A service, its gang and its store."""

    def __init__(self, directory: Path, config: LauncherConfig = CONFIG) -> None:
        self.gang = Gang(config, time.monotonic)
        self.gang.vacancy_s = config.vacancy_s if config.elastic else 0.0
        self.store = LogStore(AttemptFiles.of(directory, "default", "digits", 1), "uid-1", 1)
        self.service = CoordinatorService(self.gang, self.store, 1)

    def close(self) -> None:
        self.service.close()
        self.store.close()

    async def register(self, index: int, instance: str = "first") -> Any:
        return await self.service.Register(pb.RegisterRequest(**message_fields(worker(index, instance))), Call())

    def follow(self, index: int, call: Call, *, reads_deflated: bool = True) -> "asyncio.Task[None]":
        request = pb.OrdersRequest(worker_index=index, instance="first", reads_deflated=reads_deflated)
        return asyncio.create_task(self.service.Orders(request, call))


def worker(index: int, instance: str = "first") -> Registration:
    where = (f"pod-{index}", f"node-{index}", f"10.0.0.{index}", 7360)
    return Registration("uid-1", 1, index, 1, instance, *where, (7400,), (7500,), 7390)


@contextmanager
def dialled(job: Served, clients: int, secrets: Secrets | None = None) -> Iterator[tuple[AsyncServer, Any]]:
    """A server for so many agents, which the test closes, and a stub of one who has no token."""
    services = [(COORDINATOR, job.service)]
    server = AsyncServer.start(0, secrets or Secrets(), RpcPeer("worker", "uid-1"), clients=clients, services=services)
    with dial(f"127.0.0.1:{server.port}", Secrets(), RpcPeer("launcher", "uid-1")) as channel:
        yield server, stub_of(channel, COORDINATOR)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Served]:
    with closing(Served(tmp_path)) as found:
        yield found


@pytest.fixture
def elastic_job(tmp_path: Path) -> Iterator[Served]:
    with closing(Served(tmp_path, ELASTIC)) as found:
        yield found


async def cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_orders_reach_all_who_listen(job: Served) -> None:
    """Each gets each order once, the newest first; who does not listen any more is detached."""
    calls, streams = [Call() for _ in range(3)], []
    for index, call in enumerate(calls):
        assert (await job.register(index)).accepted
        streams.append(job.follow(index, call))
    await asyncio.sleep(0)
    await asyncio.to_thread(job.gang.give, Start(SMALL))
    await asyncio.gather(*(call.wrote.wait() for call in calls))
    calls[0].wrote.clear()
    await cancelled(streams.pop())
    assert not job.gang.all_detached()
    stop = Stop(Verdict(Outcome.SUCCEEDED, 0))
    await asyncio.to_thread(job.gang.give, stop)
    await calls[0].wrote.wait()
    assert [order_from_message(order) for order in calls[0].written] == [Start(SMALL), stop]
    assert len(calls[2].written) == 1
    for stream in streams:
        await cancelled(stream)
    assert job.gang.all_detached()


async def test_a_large_world_is_sent_compressed_to_who_reads_that(job: Served) -> None:
    """The compressed order has the same content, in less than a fiftieth of the size; other agents get it
    uncompressed."""
    calls = [Call(), Call()]
    for index in range(2):
        await job.register(index)
    job.gang.give(Start(LARGE))
    streams = [job.follow(0, calls[0]), job.follow(1, calls[1], reads_deflated=False)]
    await asyncio.gather(*(call.wrote.wait() for call in calls))
    small, plain = calls[0].written[0], calls[1].written[0]
    assert plain.WhichOneof("order") == "start"
    assert small.ByteSize() * 50 < plain.ByteSize()
    assert order_from_message(small) == order_from_message(plain) == Start(LARGE)
    for stream in streams:
        await cancelled(stream)


async def test_a_new_pod_waits_for_the_end_of_the_connection_of_the_one_before(elastic_job: Served) -> None:
    """In an elastic job the new pod registers when that connection has ended; other agents do not wait."""
    call = Call()
    await elastic_job.register(0)
    stream = elastic_job.follow(0, call)
    elastic_job.gang.give(Start(SMALL))
    await call.wrote.wait()
    second = asyncio.create_task(elastic_job.register(0, "second"))
    assert (await elastic_job.register(1)).accepted
    assert not second.done()
    await cancelled(stream)
    assert (await second).accepted


async def test_lines_of_an_agent_that_was_replaced_take_no_other_lines_place(elastic_job: Served) -> None:
    """The replaced agent reconnects after a network failure, and has records with the same numbers as the new one's."""

    async def append(instance: str, first: int, line: bytes) -> list[int]:
        chunk = pb.Chunk(rank=0, first=first, lines=1, data=line)
        request = pb.AppendRequest(attempt=1, worker_index=0, chunks=[chunk], instance=instance)
        return [durable.last for durable in (await elastic_job.service.Append(request, Call())).durable]

    await elastic_job.register(0)
    assert await append("first", 1, b"one\n") == [1]
    assert [slot.log_records for slot in (await elastic_job.register(0, "second")).slots] == [1]
    assert await append("first", 2, b"too late\n") == []
    assert await append("second", 2, b"two\n") == [2]
    assert elastic_job.store.files.rank_log(0).read_bytes() == b"one\ntwo\n"


async def test_what_all_agents_of_a_worker_have_dropped_counts(elastic_job: Served) -> None:
    """Each agent reports its number repeatedly; an agent that replaces another one begins at 0."""
    for instance, numbers in (("first", (3, 5, 5)), ("second", (1, 4))):
        await elastic_job.register(0, instance)
        for lines in numbers:
            dropped = [pb.Dropped(rank=0, lines=lines)]
            request = pb.AppendRequest(attempt=1, worker_index=0, dropped=dropped, instance=instance)
            await elastic_job.service.Append(request, Call())
    assert elastic_job.store.dropped == 9


@pytest.mark.slow
async def test_a_disk_that_hangs_holds_up_nothing_but_lines(job: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Heartbeats are answered; agents store lines of other ranks until the disk works again."""
    pipe = job.store.files.rank_log(0)
    os.mkfifo(pipe)  # opened for writing, it waits for a reader as a file server does that is away

    def request(rank: int) -> Any:
        chunk = pb.Chunk(rank=rank, first=1, lines=1, data=b"line\n")
        return pb.AppendRequest(attempt=1, worker_index=rank, chunks=[chunk])

    await job.register(1)
    hangs, other = (asyncio.create_task(job.service.Append(request(rank), Call())) for rank in (0, 1))
    assert (await other).durable == []
    assert (await job.service.Append(request(1), Call())).durable == []
    sync = pb.SyncRequest(worker_index=1, instance="first", **message_fields(AgentState(())))
    assert (await job.service.Sync(sync, Call())).known
    assert not hangs.done()
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert [durable.last for durable in (await hangs).durable] == []
    assert [durable.last for durable in (await job.service.Append(request(1), Call())).durable] == [1]
    os.close(reader)
    assert "cannot write log lines now, agents buffer them" in caplog.text


def test_open_streams_cost_no_threads(job: Served) -> None:
    """Two hundred agents that listen, and all of them get the order."""
    with dialled(job, 200) as (server, stub):
        for index in range(200):
            stub.Register(pb.RegisterRequest(**message_fields(worker(index))), timeout=DEADLINE_S)
        before = threading.active_count()
        streams = [stub.Orders(pb.OrdersRequest(worker_index=i, instance="first")) for i in range(200)]
        consumers = threading.active_count() - before
        job.gang.give(Start(SMALL))
        assert {next(iter(stream)).WhichOneof("order") for stream in streams} == {"start"}
        assert threading.active_count() - before <= consumers
        for stream in streams:
            stream.cancel()
    server.close(0)


async def test_what_is_new_in_a_heartbeat_counts(elastic_job: Served) -> None:
    """A heartbeat equal to the previous one proves that the agent is alive; a registration in between counts."""

    async def sync(phase: str, instance: str = "first") -> bool:
        ranks = [pb.RankState(rank=0, phase=phase)]
        request = pb.SyncRequest(worker_index=0, instance=instance, ranks=ranks)
        return bool((await elastic_job.service.Sync(request, Call())).known)

    assert not await sync("Running")
    assert not await sync("Running")
    await elastic_job.register(0)
    assert await sync("Running")
    assert await sync("Running")
    assert elastic_job.gang.view().ranks[0].phase is RankPhase.RUNNING
    await elastic_job.register(0, "second")
    assert not await sync("Running")
    assert await sync("Running", "second")
    assert await sync("Failed", "second")
    assert [exit.state.rank for exit in elastic_job.gang.view().exits] == [0]


@pytest.mark.parametrize(("workers", "told"), [(8, 0.0), (140, 0.0), (700, 10.0), (10_000, 15.0)])
async def test_many_agents_are_told_to_call_seldom(tmp_path: Path, workers: int, told: float) -> None:
    """The answer to a heartbeat contains the interval; few agents use their own interval."""
    job = Served(tmp_path, replace(CONFIG, workers=workers))
    await job.register(0)
    reply = await job.service.Sync(pb.SyncRequest(worker_index=0, instance="first"), Call())
    assert reply.heartbeat_s == told
    job.close()


def test_a_stranger_hears_why(job: Served) -> None:
    """A stream without the token ends with the reason, before it has received anything about the job."""
    with dialled(job, 4, Secrets(token="secret")) as (server, stub), pytest.raises(grpc.RpcError) as refused:
        list(stub.Orders(pb.OrdersRequest(), timeout=DEADLINE_S))
    server.close(0)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "token is missing or wrong" in refused.value.details()


def test_calls_under_way_while_the_server_closes_are_no_errors(job: Served, caplog: pytest.LogCaptureFixture) -> None:
    """An agent calls to the end, and the job's log would show a traceback."""
    for _ in range(20):
        with dialled(job, 4) as (server, stub):
            stub.Register(pb.RegisterRequest(**message_fields(worker(0))), timeout=DEADLINE_S)
            calls = [stub.Sync.future(pb.SyncRequest(worker_index=0, instance="first")) for _ in range(100)]
            calls[0].result(DEADLINE_S)
            server.close(0)
            assert all(call.exception(DEADLINE_S) is None or call.code() for call in calls)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
