"""Ranks that leave, lag or fail on their own: what the others read, and what is left."""

import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pytest
from support.ports import free_addresses
from support.ranks import ranks_ended, run_ranks, started_ranks, tell

import ringtrain as rt
from ring.functions import worlds_in_turn
from ring.leftovers import leftovers
from ring.worlds import SEAM, World, world_of
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain._core.process_groups.work import reduction_signature
from ringtrain._core.transport.base import StreamBroken, StreamEnd
from ringtrain._core.transport.rpc import RpcTransport
from ringtrain._core.wire.messages import STATUS
from ringtrain.errors import PeerLost
from ringtrain.optim import SGD
from ringtrain.optim.layout import ParamLocation, ParamSpec
from ringtrain.optim.spans import MissedGradients, NativeParameterSpans, StepRules

OVER = pytest.mark.parametrize("transport", SEAM)
GRPC = {"RINGTRAIN_TRANSPORT": "grpc"}


def lost(error: BaseException | None, rank: int, message: str) -> bool:
    """Whether `error` names `rank` in these words; the test fails otherwise."""
    assert isinstance(error, PeerLost), error
    assert error.rank == rank, error
    assert re.search(message, str(error)), error
    return True


def error_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@OVER
def test_a_rank_that_shuts_down_is_named(transport: str) -> None:
    """A rank leaves in good order while others wait for it: they say so, at once, and go on saying so."""
    with world_of(3, transport) as world:

        def leave(rank: int) -> BaseException | None:
            rt.barrier()
            if rank == 1:
                world.contexts[1].close()
                return None
            return error_of(lambda: rt.allreduce(np.ones(3), name="loss"))

        for rank in (0, 2):
            error = world.run(leave)[rank] if rank == 0 else world.errors(lambda _: rt.barrier())[2]
            assert lost(error, 1, r'rank 1 has shut down, and rank [02] needs it for allreduce #2 "loss"')


@pytest.mark.parametrize("transport", [*SEAM, "shm"])
@pytest.mark.parametrize("leaves_first", [False, True], ids=["leaves-meanwhile", "has-left"])
def test_who_waits_for_a_late_rank_hears_of_one_that_shuts_down(transport: str, leaves_first: bool) -> None:
    """It would wait in vain, however early the late one comes."""
    waits, has_heard, has_left = (threading.Event() for _ in range(3))
    with world_of(3, transport) as world:

        def run(rank: int) -> BaseException | None:
            rt.barrier()
            if rank == 0:  # the late one, from which rank 2 reads first
                assert has_heard.wait(60)
                return error_of(rt.barrier)
            if rank == 1:
                assert leaves_first or waits.wait(60)
                world.contexts[1].close()
                has_left.set()
                return None
            assert not leaves_first or has_left.wait(60)
            threading.Timer(0 if leaves_first else 0.1, waits.set).start()
            error = error_of(rt.barrier)
            has_heard.set()
            return error

        late, _, waiting = world.run(run)
        assert lost(waiting, 1, "rank 1 has shut down, and rank 2 needs it for barrier #2")
        assert str(late) == str(waiting)


@pytest.mark.parametrize("transport", ["memory", "grpcio"])  # elsewhere the system's buffers have taken it
def test_a_rank_that_shuts_down_before_it_has_taken_everything_is_named(transport: str) -> None:
    """It has begun a collective, whose results it leaves with the others."""
    with world_of(2, transport) as world:
        weights = [np.zeros(8 << 20, np.float32) for _ in range(2)]

        def run(rank: int) -> BaseException | None:
            group, buffer = group_of(), weights[rank]
            span = ParamLocation(ParamSpec("w", (8 << 20,), np.dtype(np.float32)), 0, 8 << 20)
            rule = NativeParameterSpans([span], {"w": 0}).rule(
                StepRules(1, 1.0, (SGD(0.1),), {"w": 0}), MissedGradients(), 1.0
            )
            last = ChunkUpdate(rule, buffer, (), None, last=rank == 0)
            assert group.can_update(buffer, buffer)
            error = error_of(lambda: group.update(buffer, (0, (8 << 20) - 1024, 8 << 20), rt.Sum, last))
            if rank == 1:
                world.contexts[1].close()
            return error

        assert lost(world.run(run)[0], 1, "rank 1 has shut down, and rank 0 needs it for update")


@OVER
def test_a_rank_that_lags_is_named(transport: str) -> None:
    """A rank that does not come is named with the collective that it has not reached; it raises the same later."""
    gave_up = threading.Barrier(3)
    with world_of(3, transport, stall_timeout_s=2.0) as world:

        def lag(rank: int) -> BaseException | None:
            error = None
            if rank != 2:
                error = error_of(lambda: rt.allreduce(np.ones(3), name="conv1.weight"))
            gave_up.wait(60)
            return error or error_of(lambda: rt.allreduce(np.ones(3), name="conv1.weight"))

        for error in world.run(lag):
            lost(
                error,
                2,
                r'rank 2 has not reached allreduce #1 "conv1.weight", for which rank [01] waited 2(\.\d*)? s',
            )


@OVER
def test_a_fault_reaches_asynchronous_collectives(transport: str) -> None:
    """Every handle that is still open raises; so does whatever is submitted after."""
    with world_of(2, transport) as world:

        def submit(rank: int) -> list[BaseException | None]:
            if rank == 1:
                world.contexts[1].close()
                return []
            handles = [rt.allreduce_async(np.ones(3)) for _ in range(3)]
            return [error_of(handle.synchronize) for handle in [*handles, rt.allreduce_async(np.ones(1))]]

        errors = world.run(submit)[0]
    assert len(errors) == 4
    assert all(lost(error, 1, "rank 1 has shut down") for error in errors)


@OVER
def test_a_rank_interrupted_in_a_collective_tells_the_others(transport: str) -> None:
    """An exception that is not the ring's ends the collective on all ranks, with its reason."""
    x = np.ones(40_000)  # the result of a shorter one is stored after the exchange
    with world_of(2, transport) as world:

        def interrupted(rank: int) -> BaseException | None:
            communicator = world.contexts[rank].group().communicator
            if rank == 0:
                return error_of(lambda: rt.allreduce(x, rt.Sum))
            what = reduction_signature("allreduce", [x], rt.Sum, None)
            return error_of(lambda: communicator.all_reduce(what, x, _Unwritable(), rt.Sum))  # type: ignore[arg-type]

        first, second = world.run(interrupted)
    assert str(second) == "out of memory"
    lost(first, 1, "rank 1 left allreduce #1 because of RuntimeError: out of memory")


class _Unwritable:
    """A target that fails when it is used."""

    def __getitem__(self, key: object) -> None:
        raise RuntimeError("out of memory")


@OVER
def test_nothing_is_left_of_a_world(transport: str) -> None:
    """After close no thread and no socket of any rank is there, whether the world was used, failed or idle."""

    def use(world: World) -> None:
        world.run(lambda rank: rt.synchronize(rt.allreduce_async(np.ones(10_000))))

    def fail(world: World) -> None:
        world.errors(lambda rank: rt.allreduce(np.ones(1 + rank)))

    for life in (use, fail, lambda world: None):
        with world_of(3, transport) as world:
            life(world)
        assert not leftovers()


@OVER
def test_shutdown_ends_what_is_under_way(transport: str) -> None:
    """A rank may leave while its own collective waits for a peer: the handle says so, at once."""
    with world_of(2, transport) as world:

        def leave(rank: int) -> list[str]:
            if rank == 1:
                return []
            handles = [rt.allreduce_async(np.ones(3), name="loss"), rt.allreduce_async(np.ones(3))]
            offers = world.contexts[0].group().communicator._member.offers
            with offers._changed:
                assert offers._changed.wait_for(lambda: offers._offers, 60)  # the first one is under way
            world.contexts[0].close()
            return [f"{type(error).__name__}: {error}" for error in map(error_of, [h.synchronize for h in handles])]

        assert world.run(leave)[0] == [
            'NotInitializedError: ringtrain was shut down during allreduce #1 "loss"',
            "NotInitializedError: ringtrain was shut down before this collective began",
        ]


def _init_again_after_a_fault() -> list[object]:
    rt.init(timeout=30)
    told = []
    for _ in range(2):
        error = error_of(lambda: rt.allreduce(np.ones(1 + rt.rank())))
        told.append(type(error).__name__)
    rt.shutdown()
    rt.init()
    told.append(rt.allreduce(np.ones(2), rt.Sum).tolist())
    rt.shutdown()
    return [*told, leftovers()]


def test_a_failed_world_is_replaced_by_a_new_one() -> None:
    """After a fault every collective raises until shutdown and init; then the world is whole again."""
    assert run_ranks(_init_again_after_a_fault, 2, env=GRPC) == [["MismatchError", "MismatchError", [2, 2], []]] * 2


def _exit_at_once(last: bool) -> list[float]:
    rt.init()
    x = np.full(300_000, 1.0 + rt.rank())
    if rt.rank() == 1 and last:
        rt.shutdown = lambda: None  # the launcher of ranks would call it; here nobody does
    return rt.allreduce(x, rt.Sum)[:2].tolist()


@pytest.mark.parametrize("last", [False, True], ids=["shutdown", "without-shutdown"])
def test_a_rank_may_end_right_after_its_last_collective(last: bool) -> None:
    """Nobody starves: a collective returns on a rank when the others have all that they need of it."""
    assert run_ranks(_exit_at_once, 3, last, env=GRPC) == [[6.0, 6.0]] * 3


def _wait_for_the_killed() -> str:
    rt.init()
    rt.barrier()
    tell("ready")
    return str(error_of(rt.barrier)) if rt.rank() != 1 else signal.pause()


def test_the_survivors_of_a_killed_rank_agree() -> None:
    """kill -9 from outside, between collectives: both others name the rank and its address."""
    with started_ranks(_wait_for_the_killed, 3, env=GRPC) as ranks:
        for rank in range(3):
            assert ranks.message(rank) == "ready"
        ranks.signal(1, signal.SIGKILL)
        outcomes = ranks.outcomes(ranks=[0, 2])
    for outcome in outcomes:
        assert re.fullmatch(r"rank 1 \(127\.0\.0\.1:\d+\) was lost.*", outcome.value), outcome


def _raise_on_one() -> None:
    rt.init()
    rt.barrier()
    if rt.rank() == 2:
        raise ValueError("a bug in the training script")
    rt.allreduce(np.ones(3))


def test_a_rank_that_raises_ends_the_others() -> None:
    """A script that fails on one rank, whose interpreter then shuts down, does not leave the others waiting."""
    outcomes = ranks_ended(_raise_on_one, 3, env=GRPC)
    assert outcomes[2].error == "ValueError: a bug in the training script"
    for outcome in outcomes[:2]:
        assert outcome.error.startswith("PeerLost: rank 2 has shut down")


@pytest.mark.parametrize("transport", ["grpc", "auto"])
@pytest.mark.parametrize(("size", "rounds"), [(4, 20), (8, 6)], ids=["four-ranks", "eight-ranks"])
def test_worlds_can_follow_each_other_at_once(transport: str, size: int, rounds: int) -> None:
    """init, shutdown, and again on the same ports: ranks that are early or late do not disturb each other."""
    sums = [float(size * round_) for round_ in range(1, rounds, 2)]
    assert run_ranks(worlds_in_turn, size, rounds, env={"RINGTRAIN_TRANSPORT": transport}) == [sums] * size


class Dialling:
    """A channel at whose end a peer is asked that nobody has asked before, as an answer's callback may."""

    def __init__(self, ask: Callable[[], "Future[bytes]"]) -> None:
        self._ask = ask
        self.answer: Future[bytes] | None = None

    def close(self) -> None:
        self.answer = self._ask()


def test_who_asks_while_its_own_rank_leaves_gets_no_answer_and_leaves_no_channel() -> None:
    """And the rank leaves: it gave up half way, with channels open, where another one was made meanwhile."""
    transport = RpcTransport(0, tuple(free_addresses(3)), 5.0, data_path=False)
    dialling = Dialling(lambda: transport.ask(2, STATUS, b"", 1.0))
    transport._channels[1] = dialling
    transport.close(0.1)
    assert dialling.answer is not None
    for answer in (dialling.answer, transport.ask(1, STATUS, b"", 1.0)):
        with pytest.raises(StreamBroken) as caught:
            answer.result(60)
        assert caught.value.how is StreamEnd.CANCELLED
    with pytest.raises(StreamBroken):
        transport.pull(2, b"", 1.0)
    assert list(transport._channels) == [1]
