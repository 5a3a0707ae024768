"""Shared memory: what ranks of one host do differently. What all transports have in common is tested elsewhere."""

import contextvars
import gc
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ranks import Ranks, ranks_ended, run_ranks, started_ranks

import ringtrain as rt
from ring.reference import DTYPES, SHAPES, Array, assert_same_bits, folded, made
from ring.worlds import all_raise, until_a_peer_is_lost, world_of
from ringtrain import step_time
from ringtrain._core.communicators.shm import native
from ringtrain._core.communicators.shm.communicator import SharedMemoryCommunicator
from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain._core.wire.dtypes import dtype_name
from ringtrain._core.wire.signature import WireSignature
from ringtrain.errors import MismatchError, PeerLost

LENGTHS = [1, 2, 1000, 16_384, 40_000, 300_001, 1_500_000]


def mapped_segments() -> list[str]:
    """Segments of ringtrain that this process maps or holds open."""
    fds = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in [*fds, *maps] if "memfd:ringtrain" in line]


def _is_link(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def uses_shared_memory() -> bool:
    rt.init()
    return isinstance(group_of().communicator, SharedMemoryCommunicator)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_of_one_host_choose_it(size: int) -> None:
    """By themselves."""
    assert run_ranks(uses_shared_memory, size) == [True] * size


def test_grpc_can_be_asked_for() -> None:
    assert run_ranks(uses_shared_memory, 2, env={"RINGTRAIN_TRANSPORT": "grpc"}) == [False, False]


def test_a_transport_that_is_not_there_is_refused() -> None:
    """With the variable, its value and what is allowed."""
    outcomes = ranks_ended(uses_shared_memory, 1, env={"RINGTRAIN_TRANSPORT": "carrier pigeon"})
    assert "RINGTRAIN_TRANSPORT='carrier pigeon': expected one of auto, grpc, shm" in str(outcomes[0].error)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_length_is_the_fold_in_rank_order(size: int) -> None:
    """From one element to several rounds of the double buffer, one after the other on the same segment."""
    with world_of(size, "shm") as world:
        for number, length in enumerate([*LENGTHS, *reversed(LENGTHS)]):
            parts = [made((length,), "float32", rank, seed=number) for rank in range(size)]
            expected = folded(parts, rt.Average)
            for got in world.run(lambda rank, parts=parts: rt.allreduce(parts[rank], rt.Average)):
                assert_same_bits(got, expected)


def laid_out() -> Iterator[Array]:
    """Short arrays of every layout and type that an allreduce has to bear."""
    for dtype in DTYPES:
        yield made((4, 6), dtype, 0)
    yield from (made(shape, "float32", 0) for shape in SHAPES.values())
    yield made((4, 6), "float64", 0)[:, ::2]
    yield np.asfortranarray(made((4, 6), "float32", 0))
    yield made((5,), "float32", 0).astype(">f4")
    yield np.frombuffer(b"\0" + made((5,), "float32", 0).tobytes(), np.float32, offset=1)  # not aligned, read-only


@pytest.mark.parametrize("way", ["compiled", "not-compiled"])
def test_short_arrays_of_any_layout_again_and_again(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With new values each time, which alone change: in a new array, and in place where it can be written."""
    if way == "not-compiled":
        monkeypatch.setattr(native, "native_calls", lambda: None)
    with world_of(2, "shm") as world:
        for like in laid_out():
            for seed in range(3):
                parts = [made(like.shape, dtype_name(like.dtype), rank, seed) for rank in range(2)]
                expected = folded(parts, rt.Max)

                def reduced(rank: int, like: Array = like, parts: list[Array] = parts) -> list[Array]:
                    own = like.copy("K")
                    own[...] = parts[rank]
                    fresh = rt.allreduce(own, rt.Max)
                    own.flags.writeable = False
                    of_read_only = rt.allreduce(own, rt.Max)
                    own.flags.writeable = True
                    assert rt.allreduce_(own, rt.Max) is own
                    return [fresh, of_read_only, own]

                for got in (array for arrays in world.run(reduced) for array in arrays):
                    assert_same_bits(np.array(got, expected.dtype, order="C"), expected)


def test_a_wait_for_a_short_array_counts_while_it_lasts() -> None:
    """As time of the reduction, before it has ended."""
    with world_of(2, "shm") as world:

        def reduce(rank: int) -> None:
            if rank == 1:
                end = time.monotonic() + 60
                while not step_time.measured.take().get("reductionWait"):
                    assert time.monotonic() < end
            rt.allreduce(np.ones(3))

        world.run(lambda rank: rt.allreduce(np.ones(3)))
        step_time.measured.take()
        world.run(reduce)


def test_short_and_long_ones_keep_their_order() -> None:
    """A short one that is called waits for what was begun before it; threads take turns."""
    rounds = 100

    def reduce(rank: int) -> list[list[float]]:
        def pairs() -> list[float]:
            results = []
            for number in range(rounds):
                handle = rt.allreduce_async(np.full(50_000, float(number)), rt.Sum)
                results += [rt.allreduce(np.full(3, number), rt.Max)[0], handle.synchronize()[-1]]
            return results

        return [pairs(), pairs()]

    expected = [value for number in range(rounds) for value in (number, 2.0 * number)]
    with world_of(2, "shm") as world:
        assert world.run(reduce) == [[expected, expected]] * 2


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "beside-memory-of-all-ranks"])
def test_a_barrier_goes_either_way_on_each_rank(shared: bool) -> None:
    """At once, or behind what was begun before it; reductions before and after it keep their order."""
    rounds = 50

    def meet(rank: int) -> list[float]:
        if shared:
            group_of().allocate(8, np.float32)
        results = []
        for number in range(rounds):
            begun = rt.allreduce_async(np.full(3, float(number)), rt.Sum) if number % 2 == rank else None
            results.append(rt.allreduce(np.full(3, float(number)), rt.Sum)[0] if begun is None else 0.0)
            rt.barrier()
            results[-1] += 0.0 if begun is None else begun.synchronize()[0]
        return results

    with world_of(2, "shm") as world:
        assert world.run(meet) == [[2.0 * number for number in range(rounds)]] * 2


def test_threads_of_a_rank_take_turns() -> None:
    """Whichever comes first: all of them reduce the same."""
    rounds, threads = 300, 3

    def reduce(rank: int) -> set[float]:
        with ThreadPoolExecutor(threads) as pool:
            context = contextvars.copy_context
            results = [
                pool.submit(context().run, rt.allreduce, np.full(5, 1.0 + rank), rt.Sum)
                for _ in range(rounds * threads)
            ]
            return {result.result(60)[0] for result in results}

    with world_of(2, "shm") as world:
        assert world.run(reduce) == [{3.0}] * 2


def test_what_took_no_wait_is_told_to_those_who_ask() -> None:
    """A rank reports the number of its collectives and the last one, whether it waited in it or not."""

    def reduce(rank: int) -> None:
        offers, process_set = current()._member.offers, group_of().communicator._group._process_set
        for number in range(1, 40):
            name = "kind" if number % 10 else "other"
            rt.allreduce(np.ones(3), name=name)
            assert offers.reached()[process_set] == number
            assert offers.activity().startswith(f'last did allreduce #{number} "{name}", which it ended')
            assert offers.meaning((process_set, number)).label == f'allreduce "{name}"'
            assert not offers.under_way()
        offers.begin((process_set, 40), WireSignature("barrier"), (1 - rank,))
        assert [begun.before.label for _, begun in offers.under_way()] == ['allreduce "kind"']
        offers.end((process_set, 40))

    with world_of(2, "shm") as world:
        world.run(reduce)


def test_a_short_array_in_memory_of_all_ranks_is_compared_by_its_place() -> None:
    """Also where arrays of its kind were reduced before there was such memory."""

    def reduce(rank: int) -> None:
        rt.allreduce_(np.ones(4, np.float32))
        shared = group_of().allocate(8, np.float32)
        at = 4 * rank
        with pytest.raises(MismatchError):
            rt.allreduce_(shared[at : at + 4])

    with world_of(2, "shm") as world:
        world.run(reduce)


LENGTHS_OF_GROUPS = {
    "none-but-empty": [0, 0],
    "short": [1, 0, 3, 1000],
    "across-blocks-and-rounds": [5, 300_001, 0, 1, 1, 4096, 700_000, 12_289, 2],
    "hundreds": [1 + number % 7 * 600 for number in range(300)],
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("lengths", LENGTHS_OF_GROUPS.values(), ids=list(LENGTHS_OF_GROUPS))
def test_tensors_that_lie_anywhere_are_one_collective(lengths: list[int], dtype: str) -> None:
    """Each gets the bits that it would get alone, and lies in memory of its own."""
    size = 3
    parts = [[made((n,), dtype, rank, seed=i) for i, n in enumerate(lengths)] for rank in range(size)]
    with world_of(size, "shm") as world:
        before = [parts[rank][-1].copy() for rank in range(size)]
        for results in world.run(lambda rank: rt.grouped_allreduce(parts[rank], rt.Sum)):
            for i, got in enumerate(results):
                assert_same_bits(got, folded([parts[rank][i] for rank in range(size)], rt.Sum))
        for rank in range(size):
            assert_same_bits(parts[rank][-1], before[rank])


def test_a_broadcast_of_many_rounds_arrives() -> None:
    value = made((1_500_000,), "float32", 0)
    with world_of(3, "shm") as world:
        for root in range(3):
            for got in world.run(lambda rank, root=root: rt.broadcast(value if rank == root else value * 0, root)):
                assert_same_bits(got, value)


def test_nothing_stays_mapped() -> None:
    """After shutdown, neither memory nor file descriptors."""
    gc.collect()  # errors of tests before, whose tracebacks hold ranks
    before = set(mapped_segments())
    with world_of(2, "shm") as world:
        world.run(lambda rank: rt.allreduce(np.ones(10)))
        assert set(mapped_segments()) - before
    assert set(mapped_segments()) <= before


@pytest.mark.parametrize("length", [10, 500_000], ids=["small", "large"])
def test_ranks_that_differ_raise_with_both_values(length: int) -> None:
    """All of them, with both ranks and both values; also where one call goes over the network otherwise."""
    calls: list[tuple[Any, str]] = [
        (lambda rank: rt.allreduce(np.ones(length + (rank == 1)), name="w"), f"({length},)"),
        (lambda rank: rt.allreduce(np.ones(length), rt.Min if rank == 1 else rt.Max), "op is"),
        (lambda rank: rt.allgather(np.ones(length)) if rank == 1 else rt.allreduce(np.ones(length)), "called"),
    ]
    for call, words in calls:
        with world_of(3, "shm") as world:
            all_raise(world.errors(call), MismatchError, words, "rank 1")


def allreduce_for_ever(length: int) -> str:
    rt.init()
    values = np.ones(length, np.float32)
    rt.allreduce_(values)
    return until_a_peer_is_lost(lambda: rt.allreduce_(values, rt.Max))


@pytest.mark.parametrize("length", [100, 2_000_000], ids=["small", "large"])
def test_a_killed_rank_is_named_at_once(length: int) -> None:
    """Long before the timeout of 60 s: the test's own deadline is half of it."""
    with started_ranks(allreduce_for_ever, 3, length) as ranks:
        hit(ranks, 1, signal.SIGKILL)
        for outcome in ranks.outcomes(30, ranks=[0, 2]):
            assert outcome.ok, outcome
            assert "rank 1" in outcome.value


def test_a_stopped_rank_is_named_within_the_timeout() -> None:
    with started_ranks(allreduce_for_ever, 3, 2_000_000, env={"RINGTRAIN_TIMEOUT": "4"}) as ranks:
        hit(ranks, 2, signal.SIGSTOP)
        for outcome in ranks.outcomes(ranks=[0, 1]):
            assert "rank 2" in outcome.value


def hit(ranks: Ranks, victim: int, number: int) -> None:
    for rank in range(len(ranks.processes)):
        assert ranks.message(rank) == "running"
    ranks.signal(victim, number)


def leave_early(leaver: int) -> str:
    rt.init()
    rt.allreduce_(np.ones(4))
    if rt.rank() == leaver:
        rt.shutdown()
        return ""
    try:
        rt.allreduce_(np.ones(4))
    except PeerLost as lost:
        return str(lost)
    return "no error"


def test_a_rank_that_left_is_not_waited_for() -> None:
    """Its last collective still ends well on all others; the next one names it."""
    values = run_ranks(leave_early, 3, 0, deadline_s=30)
    assert all("rank 0 has shut down" in value for value in values[1:])


def interrupted_while_waiting(collective: str) -> tuple[str, list[str]]:
    """The error, and what stays mapped."""
    rt.init()
    meet = rt.barrier if collective == "barrier" else lambda: rt.allreduce(np.ones(3))
    rt.barrier()
    offers = current()._member.offers

    def interrupt(number: int, frame: Any) -> None:
        if any(sequence > 1 for sequence in offers.reached().values()):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    try:
        if rt.rank() == 1:
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
            meet()
        else:
            current()._member.failure_state.wait(60)
            meet()
    except (KeyboardInterrupt, PeerLost) as error:
        rt.shutdown()
        return repr(error), mapped_segments()
    return "no error", []


@pytest.mark.parametrize("collective", ["barrier", "allreduce"])
def test_control_c_ends_a_wait(collective: str) -> None:
    """The rank that was interrupted leaves, and gives back its memory; the others are told why."""
    (told, _), (own, mapped) = run_ranks(interrupted_while_waiting, 2, collective)
    assert (own, mapped) == ("KeyboardInterrupt()", [])
    assert f"rank 1 left {collective}" in told
    assert "KeyboardInterrupt" in told


@pytest.mark.parametrize("transport", ["shm", "pods", "memory"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_buffers_that_all_ranks_map_reduce_to_the_same_bits(transport: str, dtype: str) -> None:
    """Whole or in part, over and over, written anew at once after each collective."""
    size, length, steps = 4, 700_001, 4
    parts = [[made((length,), dtype, rank, seed=step) for rank in range(size)] for step in range(steps)]
    cuts = [0, 100, 100, 500_000, length]

    def work(rank: int) -> list[tuple[Any, Any, Any]]:
        buffer = group_of().allocate(length, parts[0][0].dtype)
        results = []
        for step in range(steps):
            buffer[:] = parts[step][rank]
            group_of().reduce_scatter(buffer, cuts, rt.Average).wait()
            own = buffer[cuts[rank] : cuts[rank + 1]].copy()
            buffer[: cuts[rank]] = 0
            buffer[cuts[rank + 1] :] = 0
            group_of().all_gather(buffer, cuts).wait()
            gathered = buffer.copy()
            buffer[:] = parts[step][rank]
            group_of().all_reduce(buffer[5:300_005], rt.Max).wait()
            results.append((own, gathered, buffer.copy()))
        return results

    with world_of(size, transport) as world:
        for rank, results in enumerate(world.run(work)):
            for step, (own, gathered, reduced) in enumerate(results):
                expected = folded(parts[step], rt.Average)
                assert_same_bits(own, expected[cuts[rank] : cuts[rank + 1]])
                assert_same_bits(gathered, expected)
                assert_same_bits(reduced[:5], parts[step][rank][:5])
                assert_same_bits(reduced[5:300_005], folded([part[5:300_005] for part in parts[step]], rt.Max))


def test_buffers_at_different_places_are_told() -> None:
    """Ranks must cut the memory that they share alike."""

    def work(rank: int) -> None:
        buffer = group_of().allocate(1000, np.float32)
        group_of().all_reduce(buffer[rank : rank + 10]).wait()

    with world_of(2, "shm") as world:
        all_raise(world.errors(work), MismatchError, "the arguments of ranks")


@pytest.mark.parametrize("transport", ["shm", "pods", "memory"])
def test_a_rank_writes_where_another_has_its_buffer_if_all_map_it(transport: str) -> None:
    """In shared memory of all ranks only; a copy, and a buffer of one's own, are nobody else's."""
    size, length = 4, 1000

    def work(rank: int) -> Any:
        group, buffer = group_of(), group_of().allocate(length, np.float32)
        part = buffer[10 : 20 + rank]
        others = [group.memory_of(other, part) for other in range(size)]
        if others[0] is not None:
            for other in others:
                other[rank] = rank + 1
        group.call(lambda ring: ring.barrier(WireSignature("all have written")))
        return buffer.copy(), [other is None for other in others], group.memory_of(0, buffer.copy()) is None

    with world_of(size, transport) as world:
        for buffer, others, copied in world.run(work):
            maps = transport == "shm"
            assert copied
            assert others == [not maps] * size
            assert list(buffer[10:14]) == ([1, 2, 3, 4] if maps else [0] * 4)
            assert not buffer[14:].any()


def weights_after_shutdown() -> float:
    rt.init()
    buffer = group_of().allocate(100, np.float32)
    buffer[:] = rt.rank()
    group_of().all_reduce(buffer).wait()
    rt.shutdown()
    return float(buffer.sum())


def test_shared_buffers_outlive_the_world() -> None:
    assert run_ranks(weights_after_shutdown, 2) == [100.0, 100.0]


def test_a_group_of_long_and_short_tensors_is_the_fold_of_each() -> None:
    """Long ones go alone and short ones together; results are told apart."""
    lengths = [3, 400_000, 10, 0, 150_000, 150_000, 7]
    parts = [[made((length,), "float32", rank, seed=length) for length in lengths] for rank in range(2)]
    with world_of(2, "shm") as world:
        for results in world.run(lambda rank: rt.grouped_allreduce(parts[rank], rt.Sum)):
            for index, got in enumerate(results):
                assert_same_bits(got, folded([parts[rank][index] for rank in range(2)], rt.Sum))
