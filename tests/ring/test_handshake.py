"""Rendezvous of ranks, and the errors if they must not form a world."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from support.deadlines import patient
from support.memory_transport import MemoryNetwork, MemoryTransport
from support.ports import free_addresses
from support.world_config import changed_config, world_config

import ringtrain as rt
from ring.leftovers import leftovers
from ring.worlds import world_of
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.transport.base import StreamBroken, StreamEnd, Transport, TransportCaller
from ringtrain._core.transport.rpc import RpcTransport
from ringtrain._core.wire.failure import PullRefused
from ringtrain._core.wire.messages import (
    ABORT,
    HELLO,
    PROTOCOL_VERSION,
    PROVE,
    STATUS,
    WATCH,
    HelloMessage,
    WireFrame,
    decode_message,
    encode_wire_message,
)
from ringtrain._core.world.config import WorkerConfig
from ringtrain._core.world.failure_state import WorldFailureState
from ringtrain._core.world.handshake import WorldHandshake
from ringtrain._core.world.neighbours import MESH_MOST
from ringtrain._core.world.ring_config import RingConfig
from ringtrain.errors import ConfigurationError, PeerLost, RingtrainError
from ringtrain.shared import authentication
from ringtrain.shared.contract import RELEASE

BOTH = pytest.mark.parametrize("transport", ["memory", "grpc"])


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """However ranks meet or part, no thread and no socket of theirs stays."""
    yield
    assert not leftovers()


def meet(configs: list[WorkerConfig], transport: str) -> list[RingtrainError | None]:
    """Let processes with these configurations meet; return what each raised."""
    network = MemoryNetwork()

    def join(config: WorkerConfig) -> RingtrainError | None:
        made: Transport = MemoryTransport(network, config.place.rank)
        if transport == "grpc":
            made = RpcTransport(config.place.rank, config.addresses, config.waits.timeout_s)
        try:
            context = ProcessGroupContext(config, made)
        except RingtrainError as error:
            return error
        all_in.wait(60)
        context.close()
        return None

    all_in = threading.Barrier(len(configs))
    with ThreadPoolExecutor(len(configs)) as pool:
        return list(pool.map(join, configs))


def world(size: int, **settings: object) -> list[WorkerConfig]:
    addresses = tuple(free_addresses(size))
    common = {"timeout_s": 60.0, "transport": "grpc"} | settings
    return [world_config(rank=rank, size=size, addresses=addresses, **common) for rank in range(size)]


def assert_all_refuse(errors: list[RingtrainError | None], expected: str) -> None:
    for error in errors:
        assert isinstance(error, ConfigurationError), error
        assert re.search(expected, str(error)), error


@BOTH
def test_ranks_with_the_same_token_meet(transport: str, tmp_path: Path) -> None:
    """Both sides prove the token, and nothing is left behind after they part."""
    (tmp_path / "token").write_text("a secret")
    assert meet(world(3, token_file=tmp_path / "token"), transport) == [None] * 3


@BOTH
def test_another_token_is_refused_on_both_sides(transport: str, tmp_path: Path) -> None:
    """A rank with another token, or none, is named on every rank that it meets."""
    (tmp_path / "token").write_text("a secret")
    (tmp_path / "other").write_text("another secret")
    for other in (tmp_path / "other", None):
        first, second = world(2, token_file=tmp_path / "token")
        errors = meet([first, changed_config(second, token_file=other)], transport)
        assert_all_refuse(errors, "ranks 0 and 1 do not have the same token; check RINGTRAIN_TOKEN_FILE on both")


@BOTH
def test_another_generation_is_refused_on_both_sides(transport: str) -> None:
    """A process of an earlier attempt that is still alive does not get into the next one."""
    first, second = world(2, generation=2)
    errors = meet([first, changed_config(second, generation=1)], transport)
    assert_all_refuse(errors, r"rank 0 .* has generation 2, rank 1 .* has generation 1; a process of another")


@BOTH
def test_another_world_size_is_refused_on_both_sides(transport: str) -> None:
    """Ranks that were given different clusters say so."""
    first, second = world(2)
    larger = (*second.addresses, free_addresses(1)[0])
    errors = meet([first, changed_config(second, size=3, addresses=larger)], transport)
    assert_all_refuse(errors, r"rank 0 .* expects a world of 2, rank 1 .* expects a world of 3 ranks; configure")


@BOTH
def test_another_transport_is_refused_on_both_sides(transport: str) -> None:
    """One would wait at its port for what the other leaves in shared memory."""
    first, second = world(2)
    errors = meet([first, changed_config(second, transport="auto")], transport)
    assert_all_refuse(errors, r"rank 0 .* has RINGTRAIN_TRANSPORT grpc, rank 1 .* auto; set the same on every rank")


def test_a_hello_of_another_version_may_have_other_fields() -> None:
    """It is refused for its version, and not as a stranger's."""
    handshake = WorldHandshake(RingConfig(0, 2, ("a:1", "b:1")), WorldFailureState(), lambda peer: False)
    older = HelloMessage(PROTOCOL_VERSION + 1, 1, 2, 1, "b:1", "instance", "nonce").__dict__ | {"more": 1}
    del older["transport"]
    with pytest.raises(PullRefused, match=r"rank 0 .* speaks version .*, rank 1 .* speaks version .* one image"):
        handshake.answer_hello(encode_wire_message(older))


@pytest.mark.parametrize(
    ("file", "here", "other", "said"),
    [
        (
            "shared/contract.py",
            f'RELEASE: Final = "{RELEASE}"',
            'RELEASE: Final = "9.9.9"',
            "runs ringtrain 9.9.9",
        ),
        (
            "_core/wire/messages.py",
            f"PROTOCOL_VERSION: Final = {PROTOCOL_VERSION}",
            "PROTOCOL_VERSION: Final = 99",
            "speaks version 99",
        ),
    ],
    ids=["release", "protocol"],
)
def test_two_installed_versions_are_refused(file: str, here: str, other: str, said: str, tmp_path: Path) -> None:
    """Two processes, of which one imports another version of the package: both say both versions."""
    package = Path(rt.__file__).parent
    newer = tmp_path / "newer" / "ringtrain"
    shutil.copytree(package, newer, ignore=shutil.ignore_patterns("__pycache__"))
    text = (newer / file).read_text()
    assert here in text
    (newer / file).write_text(text.replace(here, other))
    cluster = {"cluster": {"worker": free_addresses(2)}}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", "import ringtrain as rt; rt.init()"],
            env={
                **os.environ,
                "PYTHONPATH": str(folder.parent),
                "TF_CONFIG": json.dumps(cluster | {"task": {"type": "worker", "index": rank}}),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, folder in enumerate((package, newer))
    ]
    for rank in ranks:
        _, written = rank.communicate(timeout=patient(60))
        assert rank.returncode == 1
        assert written.splitlines()[-1].startswith("ringtrain.errors.")
        assert said in written
        assert "use one image for all ranks" in written


class Overtaken(MemoryTransport):
    """Its rank has left before its watches arrive anywhere: the questions that it would keep open."""

    def ask(self, peer: int, method: str, request: bytes, timeout_s: float, patient: bool = False) -> "Future[bytes]":
        if method == WATCH and decode_message(request)["hold"]:
            return Future()
        return super().ask(peer, method, request, timeout_s, patient)


@pytest.mark.parametrize("size", [2, MESH_MOST + 1], ids=["a-mesh", "no-mesh"])
def test_a_rank_that_leaves_as_soon_as_it_has_met_all_is_not_missed(size: int) -> None:
    """Peers do not wait for the watch of a rank that leaves in good order right after the rendezvous.

    This also holds if they do not watch that rank, and so get no notice that it leaves.
    """
    network = MemoryNetwork()

    def join(config: WorkerConfig) -> None:
        made = (Overtaken if config.place.rank == 0 else MemoryTransport)(network, config.place.rank)
        ProcessGroupContext(config, made).close()

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(join, world(size))) == [None] * size


def test_a_second_process_waits_while_ranks_meet() -> None:
    """Of two that know the token and say they are rank 1, the second is put off, and rank 0 is not touched."""
    ring = RingConfig(rank=0, size=2, addresses=("a:1", "b:1"), token=b"secret")
    failure_state = WorldFailureState()
    handshake = WorldHandshake(ring, failure_state, lambda peer: False)

    def prove(instance: str) -> None:
        hello = HelloMessage(PROTOCOL_VERSION, 1, 2, ring.generation, "b:1", instance, "nonce")
        nonce = decode_message(handshake.answer_hello(encode_wire_message(hello)))["hello"]["nonce"]
        proof = authentication.proof(ring.token, authentication.CLIENT, encode_wire_message(hello), nonce.encode())
        handshake.answer_prove(encode_wire_message({"hello": hello.__dict__, "proof": proof}), None)

    prove("first")
    prove("first")
    with pytest.raises(StreamBroken, match="rank 0 is still leaving an earlier world") as broken:
        prove("second")
    assert broken.value.how is StreamEnd.CLOSED
    assert failure_state.failure is None


def test_two_proven_processes_with_one_rank_fail_the_world() -> None:
    """Both know the token, and the one that came is not at rank 1's address: either may be meant."""
    addresses = ("a:1", "b:1")
    failure_state = WorldFailureState()
    first, there, elsewhere = (
        WorldHandshake(RingConfig(rank, 2, addresses, token=b"secret"), failure_state, lambda peer: False)
        for rank in (0, 1, 1)
    )
    network = MemoryNetwork()
    for rank, handshake in ((0, first), (1, there)):
        MemoryTransport(network, rank).serve(_Answering(handshake))
    end = time.monotonic() + 60
    with ThreadPoolExecutor(2) as pool:
        came = pool.submit(elsewhere.run_with_partners, MemoryTransport(network, 1), lambda peer: None, end)
        while not elsewhere.sessions.get(0):
            assert not came.done()
        with pytest.raises(ConfigurationError, match="two processes claim to be rank 1"):
            first.run_with_partners(MemoryTransport(network, 0), lambda peer: None, end)


class _Answering:
    """Hello and Prove of one handshake."""

    def __init__(self, handshake: WorldHandshake) -> None:
        self._handshake = handshake

    def is_peer(self, rank: int, session: bytes) -> bool:
        return False

    def answer(self, method: str, request: bytes, caller: TransportCaller) -> bytes:
        if method == HELLO:
            return self._handshake.answer_hello(request)
        return self._handshake.answer_prove(request, None)

    def pull(self, request: bytes, caller: TransportCaller) -> Iterator[WireFrame]:
        raise AssertionError("nothing is pulled")


def _hello(**other: object) -> bytes:
    return encode_wire_message(
        {**HelloMessage(PROTOCOL_VERSION, 1, 2, 1, "x:1", "stranger", "nonce").__dict__, **other}
    )


STRANGERS = {
    "another-size": (HELLO, _hello(size=3)),
    "another-generation": (HELLO, _hello(generation=7)),
    "another-version": (HELLO, _hello(version=1)),
    "a-rank-without-proof": (HELLO, _hello()),
    "the-rank-that-listens": (HELLO, _hello(rank=0)),
    "a-rank-out-of-range": (HELLO, _hello(rank=-5)),
    "rank-of-another-type": (HELLO, _hello(rank=[])),
    "endless-address": (HELLO, _hello(address="x" * 10_000)),
    "no-json": (HELLO, b"\xff\xfe"),
    "deep-json": (HELLO, b"[" * 50_000),
    "huge-number": (HELLO, b'{"rank": ' + b"9" * 10_000 + b"}"),
    "prove-without-token": (PROVE, encode_wire_message({"hello": decode_message(_hello()), "proof": ""})),
    "prove-with-another-token": (PROVE, encode_wire_message({"hello": decode_message(_hello()), "proof": "00" * 32})),
    "prove-of-nothing": (PROVE, b"{}"),
    "announcement": (ABORT, encode_wire_message({"rank": 1, "session": "", "proof": "", "failure": "{}"})),
    "announcement-of-nothing": (ABORT, b"[1]"),
    "watch": (WATCH, encode_wire_message({"rank": 1, "session": "00" * 16})),
    "status": (STATUS, b"null"),
}


@pytest.mark.parametrize("token", [True, False], ids=["token", "no-token"])
def test_strangers_do_not_end_a_world_that_is_meeting(token: bool, tmp_path: Path) -> None:
    """Whatever who dials a rank says, the rank waits on for its peers, and meets them."""
    (tmp_path / "token").write_text("a secret")
    first, second = world(2, token_file=tmp_path / "token" if token else None)
    with ThreadPoolExecutor(2) as pool, grpc.insecure_channel(first.addresses[0]) as stranger:
        waiting = pool.submit(_join, first)
        for name, (method, request) in STRANGERS.items():
            call = stranger.unary_unary(f"/ringtrain.Ring/{method}")
            with contextlib.suppress(grpc.RpcError):
                call(request, wait_for_ready=True, timeout=10.0)
            assert not waiting.done(), name
        with contextlib.closing(_join(second)), contextlib.closing(waiting.result(60)):
            pass


def _join(config: WorkerConfig) -> ProcessGroupContext:
    return ProcessGroupContext(config, RpcTransport(config.place.rank, config.addresses, config.waits.timeout_s))


def test_a_second_process_with_a_rank_is_refused_after_ranks_have_met() -> None:
    """Whoever comes to a complete world is told so, and does not disturb it."""
    with world_of(2, "grpc") as complete:
        config = complete.contexts[1].config
        elsewhere = (config.addresses[0], free_addresses(1)[0])
        (error,) = meet([changed_config(config, addresses=elsewhere)], "grpc")
        assert isinstance(error, ConfigurationError)
        assert "two processes claim to be rank 1" in str(error)
        assert complete.run(lambda rank: float(rt.allreduce(1.0, rt.Sum))) == [2.0, 2.0]


def test_another_rank_at_an_address_is_named() -> None:
    """Addresses in another order on one rank: the ranks that meet see that they are not who they should be."""
    first, second, third = world(3, timeout_s=5.0)
    swapped = (second.addresses[0], third.addresses[2], third.addresses[1])
    errors = meet([first, changed_config(second, addresses=swapped), changed_config(third, addresses=swapped)], "grpc")
    assert_all_refuse(
        errors[:1], r"127\.0\.0\.1:\d+ is configured for rank [12], but rank [12] answers there|two processes"
    )


def test_a_port_in_use_is_named() -> None:
    """Something else listens at the own address: the message says that it may be a second task."""
    (config, _) = world(2)
    host, port = config.addresses[0].split(":")
    with socket.create_server((host, int(port))):
        (error,) = meet([config], "grpc")
    assert isinstance(error, ConfigurationError)
    assert str(error) == (
        f"rank 0 can't listen on {config.addresses[0]}: another process, or a second task "
        "with index 0, listens on this address"
    )


def test_a_host_that_is_no_host_is_said_to_be_none() -> None:
    """A name that is spelled wrong, or whose pod is gone, is told apart from a rank that does not come."""
    first, _ = world(2, timeout_s=2.0)
    (error,) = meet([changed_config(first, addresses=(first.addresses[0], "wrong.invalid:7400"))], "grpc")
    assert isinstance(error, PeerLost)
    assert re.search(r"rank 1 \(wrong.invalid:7400\) did not join .*name can't be resolved here", str(error))


@BOTH
def test_a_rank_that_never_comes_is_named(transport: str) -> None:
    """The others give up within the timeout, and say who is missing and where."""
    configs = world(3, timeout_s=2.0)
    for error in meet(configs[:2], transport):
        assert isinstance(error, PeerLost)
        assert error.rank == 2
        assert re.search(
            r"rank 2 \(127.0.0.1:\d+\) did not join within 2 s \(waited for by rank [01]\); is it started",
            str(error),
        )
