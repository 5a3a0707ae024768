"""Large worlds, in which a rank meets only its partners, and reaches all others when it needs them."""

import re
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.certificates import JobAuthority
from support.memory_transport import MemoryNetwork, MemoryTransport
from support.ports import free_addresses
from support.ranks import run_ranks
from support.world_config import changed_config, world_config

import ringtrain as rt
from ringtrain._core.process_groups import context
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.transport.base import StreamBroken, StreamEnd
from ringtrain._core.transport.rpc import RpcTransport
from ringtrain._core.wire.messages import HELLO, PROVE, ROSTER, WATCH, decode_message_fields
from ringtrain._core.world.config import WorkerConfig
from ringtrain._core.world.failure_state import WorldFailureState
from ringtrain._core.world.handshake import WorldHandshake
from ringtrain._core.world.membership_table import MembershipEntry
from ringtrain._core.world.neighbours import MESH_MOST, partner_ranks
from ringtrain._core.world.ring_config import RingConfig
from ringtrain._core.world.watches import has_watched_peer_gone
from ringtrain.errors import ConfigurationError, NotInitializedError, PeerLost, RingtrainError

SIZE = MESH_MOST + 4
FAR = 9  # no partner of rank 0


def configs_of(size: int = SIZE, **settings: Any) -> list[WorkerConfig]:
    addresses = tuple(free_addresses(size))
    common = {"timeout_s": 60.0, "transport": "grpc"} | settings
    return [world_config(rank=rank, size=size, addresses=addresses, **common) for rank in range(size)]


def joined(configs: list[WorkerConfig], made: Any = MemoryTransport) -> list[RingtrainError | None]:
    """Let processes with these configurations meet, each leaving at once; return what each raised."""
    network = MemoryNetwork()

    def join(config: WorkerConfig) -> RingtrainError | None:
        try:
            ProcessGroupContext(config, made(network, config.place.rank)).close()
        except RingtrainError as error:
            return error
        return None

    with ThreadPoolExecutor(len(configs)) as pool:
        return list(pool.map(join, configs))


class Counting(MemoryTransport):
    """Notes whom its rank asks what."""

    asked: set[tuple[str, int, int]] = set()

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        self.asked.add((method, self._rank, peer))
        return super().ask(peer, method, request, timeout_s, patient)


def test_only_partners_are_asked_when_a_world_begins() -> None:
    """Ranks meet those at distances 1, 2, 4, ...; what all say of themselves comes from these."""
    Counting.asked = set()
    assert joined(configs_of(), Counting) == [None] * SIZE
    pairs = {(rank, peer) for rank in range(SIZE) for peer in partner_ranks(rank, SIZE)}
    for method in (HELLO, PROVE):
        assert {(rank, peer) for asked, rank, peer in Counting.asked if asked == method} == pairs
    told = {(rank, (rank - distance) % SIZE) for rank in range(SIZE) for distance in (1, 2, 4, 8, 16)}
    assert {(rank, peer) for asked, rank, peer in Counting.asked if asked == ROSTER} == told


class Overtaken(MemoryTransport):
    """Transport that delays watch requests, and cancels them if its rank leaves before they are sent."""

    def __init__(self, network: MemoryNetwork, rank: int) -> None:
        super().__init__(network, rank)
        self._left = threading.Event()

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        if method != WATCH or not decode_message_fields(request, hold=bool)["hold"]:
            return super().ask(peer, method, request, timeout_s, patient)
        answer: Future[bytes] = Future()
        ask = super().ask

        def later() -> None:
            if self._left.wait(0.5):
                answer.set_exception(StreamBroken(StreamEnd.CANCELLED, "this rank cancelled the call"))
                return
            ask(peer, method, request, timeout_s).add_done_callback(partial(_hand_on, answer))

        threading.Thread(target=later, name="ringtrain-later", daemon=True).start()
        return answer

    def close(self, grace_s: float) -> None:
        self._left.set()
        super().close(grace_s)


def _hand_on(answer: "Future[bytes]", done: "Future[bytes]") -> None:
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)


def test_nobody_leaves_before_those_that_it_watches_know() -> None:
    """A rank left while its watch was on the way; the watched rank, which nobody told, waited for its whole
    timeout, and so did its peers in the next world."""
    assert joined(configs_of(timeout_s=10.0), Overtaken) == [None] * SIZE


@pytest.mark.parametrize("token", [True, False], ids=["token", "no-token"])
def test_a_rank_that_never_comes_is_named_on_all(token: bool, tmp_path: Path) -> None:
    """Also by those that would not have met it."""
    (tmp_path / "token").write_text("a secret")
    configs = configs_of(timeout_s=4.0, token_file=tmp_path / "token" if token else None)
    del configs[FAR]
    for error in joined(configs):
        assert isinstance(error, PeerLost), error
        assert error.rank == FAR
        assert re.search(r"rank 9 \(.*\) did not join within 4 s \(waited for by rank \d+\)", str(error))


def test_a_rank_that_waits_longest_names_who_is_missing() -> None:
    """Rank 0 is no partner of the rank that never comes, and its time ends before those find out."""
    configs = configs_of(timeout_s=30.0)
    configs[0] = changed_config(configs[0], timeout_s=3.0)
    del configs[FAR]
    for error in joined(configs):
        assert isinstance(error, PeerLost), error
        assert re.match(r"rank 9 \(.*\) did not join within 3 s \(waited for by rank 0\)", str(error)), error


DIFFERENT = {
    "generation": ({"generation": 7}, "has generation"),
    "size": ({"size": SIZE - 1}, "expects a world of"),
    "token": ({"token_file": "other"}, "do not have the same token"),
}


@pytest.mark.parametrize(("settings", "message"), DIFFERENT.values(), ids=DIFFERENT)
def test_another_configuration_far_away_is_told_to_all(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Its partners find it, and pass it on."""
    (tmp_path / "token").write_text("a secret")
    (tmp_path / "other").write_text("another secret")
    configs = configs_of(timeout_s=30.0, token_file=tmp_path / "token")
    if "token_file" in settings:
        settings = {"token_file": tmp_path / "other"}
    if "size" in settings:
        settings = settings | {"addresses": configs[FAR].addresses[: SIZE - 1]}
    configs[FAR] = changed_config(configs[FAR], **settings)
    for error in joined(configs):
        assert isinstance(error, ConfigurationError), error
        assert message in str(error)


class Dying(MemoryTransport):
    """Rank `FAR` is gone as soon as it has met its partners."""

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        if method == ROSTER and self._rank == FAR:
            self.close(0.0)
            raise NotInitializedError("killed")
        return super().ask(peer, method, request, timeout_s, patient)


def test_a_rank_that_dies_while_ranks_meet_is_named_on_all() -> None:
    """It has met its partners, and the others wait for what it would have passed on."""
    errors = joined(configs_of(timeout_s=30.0), Dying)
    assert isinstance(errors.pop(FAR), NotInitializedError)
    for error in errors:
        assert isinstance(error, PeerLost), error
        assert error.rank == FAR


@pytest.mark.parametrize("size", [64, 256, 1024, 8192, 65_536])
def test_all_partners_are_heard_at_once(size: int) -> None:
    """To greet and to prove, each has a call without a session: none of them is one stranger too many."""
    transport = RpcTransport(0, ("127.0.0.1:1",) * size, timeout_s=1.0, data_path=False)
    assert transport._unauthenticated.most >= 2 * len(partner_ranks(0, size))


def test_a_rank_that_takes_a_connection_late_is_not_gone() -> None:
    """On a host with more ranks than cores a handshake takes seconds. The question ends by its own deadline."""
    with closing(socket.create_server(("127.0.0.1", 0))) as busy:  # the kernel accepts for it
        own, theirs = free_addresses(1)[0], f"127.0.0.1:{busy.getsockname()[1]}"
        transport = RpcTransport(0, (own, theirs), timeout_s=12.0)
        answer = transport.ask(1, WATCH, b"", 2.0)
        assert isinstance(answer.exception(60), StreamBroken)
        assert not has_watched_peer_gone(answer)
        transport.close(0.0)


def test_a_process_of_another_world_is_no_member() -> None:
    """Sessions between ranks that have not met are of one world: each rank's share makes them others. And of one
    direction."""
    addresses = tuple(free_addresses(SIZE))

    def handshake(rank: int, last_share: bytes) -> WorldHandshake:
        made = WorldHandshake(
            RingConfig(rank, SIZE, addresses, token=b"secret"), WorldFailureState(), lambda peer: False
        )
        shares = [bytes([rank] * 16) for rank in range(SIZE - 1)] + [last_share]
        made.know_all(MemoryTransport(MemoryNetwork(), rank), [MembershipEntry(share, 0, 1) for share in shares])
        return made

    one, far, next_one = handshake(0, b"a" * 16), handshake(FAR, b"a" * 16), handshake(0, b"b" * 16)
    assert far.is_peer(0, one.sessions.get(FAR, b""))
    assert not far.is_peer(0, next_one.sessions.get(FAR, b""))
    assert not far.is_peer(0, far.sessions.get(0, b""))
    assert not far.is_peer(0, b"")


def _all_collectives() -> tuple[bool, int, int]:
    """Whether each gives what it must; to how many ranks this one had dialled after init, and then."""
    rt.init()
    rank, size = rt.rank(), rt.size()
    transport = context.current()._member.transport
    assert isinstance(transport, RpcTransport)
    at_first = len(transport._channels)
    short, long = np.arange(size, dtype=np.float32), np.ones(300_000, np.float32) * rank
    root = size // 2
    evens = rt.add_process_set(list(range(0, size, 2)))
    checks = [
        np.array_equal(rt.allreduce(short, rt.Sum), size * short),
        np.array_equal(rt.allreduce(long, rt.Sum), np.full(300_000, size * (size - 1) / 2, np.float32)),
        np.array_equal(rt.broadcast(long, root), np.full(300_000, root, np.float32)),
        np.array_equal(rt.allgather(np.full(5_000, rank, np.float32)), np.repeat(np.arange(size), 5_000)),
        np.array_equal(rt.alltoall(np.full(size, rank, np.int64))[0], np.arange(size)),
    ]
    if rank % 2 == 0:
        got = rt.allreduce(long, rt.Sum, process_set=evens)
        checks.append(np.array_equal(got, np.full(300_000, sum(range(0, size, 2)), np.float32)))
    rt.barrier()
    told = all(checks), at_first, len(transport._channels)
    rt.shutdown()
    return told


@pytest.mark.parametrize(("data_path", "encrypt"), [("auto", False), ("grpcio", True)], ids=["open-auto", "tls-grpcio"])
def test_all_collectives_reach_ranks_that_were_not_met(data_path: str, encrypt: bool, tmp_path: Path) -> None:
    """As real processes: at first a rank has dialled its partners alone."""
    env = {"RINGTRAIN_TRANSPORT": "grpc", "RINGTRAIN_DATA_PATH": data_path}
    if encrypt:
        secret = JobAuthority("uid-1").secret_dir(tmp_path / "rank", "worker")
        env |= {
            "RINGTRAIN_ENCRYPT": "tensors", "RINGTRAIN_SECRET_DIR": str(secret), "RINGTRAIN_JOB_UID": "uid-1",
            "RINGTRAIN_TOKEN_FILE": str(secret / "token"),
        }  # fmt: skip
    for rank, (right, at_first, _) in enumerate(run_ranks(_all_collectives, SIZE, env=env)):
        assert right
        assert at_first == len(partner_ranks(rank, SIZE)) < SIZE - 1
