"""How ranks meet, and what they say when they should not."""

import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.ports import free_addresses

import ringtrain as rt
from ring.leftovers import leftovers
from ring.worlds import world_of
from ringtrain.collectives.session import Session
from ringtrain.config import WorkerConfig
from ringtrain.errors import ConfigurationError, PeerLost, RingtrainError
from ringtrain.transport.base import Transport
from ringtrain.transport.memory import MemoryNetwork, MemoryTransport
from ringtrain.transport.rpc import RpcTransport
from ringtrain.wire.failure import Refused
from ringtrain.wire.messages import PROTOCOL_VERSION, Hello, dump
from ringtrain.world.handshake import Handshake
from ringtrain.world.place import Place
from ringtrain.world.verdict import Verdict

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
        made: Transport = MemoryTransport(network, config.rank)
        if transport == "grpc":
            made = RpcTransport(config.rank, config.addresses, config.timeout_s)
        try:
            session = Session(config, made)
        except RingtrainError as error:
            return error
        all_in.wait(60)
        session.close()
        return None

    all_in = threading.Barrier(len(configs))
    with ThreadPoolExecutor(len(configs)) as pool:
        return list(pool.map(join, configs))


def world(size: int, **settings: object) -> list[WorkerConfig]:
    addresses = tuple(free_addresses(size))
    common = {"timeout_s": 60.0, "transport": "grpc"} | settings
    return [WorkerConfig(rank=rank, size=size, addresses=addresses, **common) for rank in range(size)]


def changed(config: WorkerConfig, **settings: object) -> WorkerConfig:
    return WorkerConfig(**(config.__dict__ | settings))


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
        errors = meet([first, changed(second, token_file=other)], transport)
        assert_all_refuse(errors, "ranks 0 and 1 do not have the same token; check RINGTRAIN_TOKEN_FILE on both")


@BOTH
def test_another_generation_is_refused_on_both_sides(transport: str) -> None:
    """A process of an earlier attempt that is still alive does not get into the next one."""
    first, second = world(2, generation=2)
    errors = meet([first, changed(second, generation=1)], transport)
    assert_all_refuse(errors, r"rank 0 .* is of generation 2, rank 1 .* is of generation 1; a process of another")


@BOTH
def test_another_world_size_is_refused_on_both_sides(transport: str) -> None:
    """Ranks that were given different clusters say so."""
    first, second = world(2)
    larger = (*second.addresses, free_addresses(1)[0])
    errors = meet([first, changed(second, size=3, addresses=larger)], transport)
    assert_all_refuse(errors, r"rank 0 .* counts a world of 2, rank 1 .* counts a world of 3 ranks; give")


def test_a_second_process_with_a_rank_is_refused_while_ranks_meet() -> None:
    """Of two that say they are rank 1 the second is refused, and rank 0 fails: either may be right."""
    place = Place(rank=0, size=2, addresses=("a:1", "b:1"))
    verdict = Verdict()
    handshake = Handshake(place, verdict, lambda peer: False)

    def hello(instance: str) -> bytes:
        return dump(Hello(PROTOCOL_VERSION, 1, 2, place.generation, "b:1", instance, "nonce"))

    handshake.answer_hello(hello("first"))
    handshake.answer_hello(hello("first"))
    with pytest.raises(Refused, match="two processes say that they are rank 1; start each rank once"):
        handshake.answer_hello(hello("second"))
    assert verdict.failure is not None
    assert "two processes say that they are rank 1" in verdict.failure.message


def test_a_second_process_with_a_rank_is_refused_after_ranks_have_met() -> None:
    """Whoever comes to a complete world is told so, and does not disturb it."""
    with world_of(2, "grpc") as complete:
        config = complete.sessions[1].config
        elsewhere = (config.addresses[0], free_addresses(1)[0])
        (error,) = meet([changed(config, addresses=elsewhere)], "grpc")
        assert isinstance(error, ConfigurationError)
        assert "two processes say that they are rank 1" in str(error)
        assert complete.run(lambda rank: float(rt.allreduce(1.0, rt.Sum))) == [2.0, 2.0]


def test_another_rank_at_an_address_is_named() -> None:
    """Addresses in another order on one rank: the ranks that meet see that they are not who they should be."""
    first, second, third = world(3, timeout_s=5.0)
    swapped = (second.addresses[0], third.addresses[2], third.addresses[1])
    errors = meet([first, changed(second, addresses=swapped), changed(third, addresses=swapped)], "grpc")
    assert_all_refuse(
        errors[:1], r"127\.0\.0\.1:\d+ should be rank [12], but rank [12] answers there|two processes"
    )


def test_a_port_in_use_is_named() -> None:
    """Something else listens at the own address: the message says that it may be a second task."""
    (config, _) = world(2)
    host, port = config.addresses[0].split(":")
    with socket.create_server((host, int(port))):
        (error,) = meet([config], "grpc")
    assert isinstance(error, ConfigurationError)
    assert str(error) == (
        f"rank 0 can't listen on {config.addresses[0]}: "
        f"another process, or a second task with index 0, listens there"
    )


@BOTH
def test_a_rank_that_never_comes_is_named(transport: str) -> None:
    """The others give up within the timeout, and say who is missing and where."""
    configs = world(3, timeout_s=2.0)
    for error in meet(configs[:2], transport):
        assert isinstance(error, PeerLost)
        assert error.rank == 2
        assert re.search(
            r"rank 2 \(127.0.0.1:\d+\) has not joined within 2 s \(waited for by rank [01]\); is it started",
            str(error),
        )
