"""Collectives that move data rather than fold it, over memory and gRPC."""

import re
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from support.deadlines import patient

import ringtrain as rt
from ring.reference import DTYPES, SHAPES, Array, assert_same_bits, folded, made
from ring.worlds import SEAM, TRANSPORTS, world_of
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.errors import ConfigurationError, MismatchError

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4], ids=["one-rank", "two-ranks", "three-ranks", "four-ranks"])
OVER = pytest.mark.parametrize("transport", TRANSPORTS)


def rows_of(rank: int) -> int:
    """Ranks bring different numbers of rows; rank 1 brings none."""
    return (3, 0, 5, 1)[rank]


@OVER
@SIZES
def test_allgather_joins_rows_in_rank_order(transport: str, size: int) -> None:
    """Rows may differ between ranks, be none, or be empty themselves."""
    with world_of(size, transport, segment_bytes=16) as world:
        for dtype in DTYPES:
            for rest in [(), (2,), (3, 0), (2, 3)]:
                parts = [made((rows_of(rank), *rest), dtype, rank) for rank in range(size)]
                expected = np.concatenate(parts)
                for got in world.run(lambda rank, parts=parts: rt.allgather(parts[rank])):
                    assert_same_bits(got, expected)


@OVER
@SIZES
def test_broadcast_gives_all_what_the_root_has(transport: str, size: int) -> None:
    """Every root, every dtype and shape; in place it fills the array that was passed, strided or not."""
    with world_of(size, transport, segment_bytes=16) as world:
        for root in range(size):
            for dtype in DTYPES:
                for shape in SHAPES.values():
                    parts = [made(shape, dtype, rank) for rank in range(size)]
                    for got in world.run(lambda rank, parts=parts, root=root: rt.broadcast(parts[rank], root)):
                        assert_same_bits(got, parts[root])
            parts = [made((6, 4), "float32", rank) for rank in range(size)]
            expected = parts[root][::2].copy()

            def in_place(rank: int, parts: list[Array] = parts, root: int = root) -> Array:
                rt.broadcast_(parts[rank][::2], root)
                return parts[rank][::2].copy()

            for got in world.run(in_place):
                assert_same_bits(got, expected)


@OVER
@SIZES
def test_a_large_broadcast_is_dealt_out_and_passed_on(transport: str, size: int) -> None:
    """Beyond the size that goes from the root to all directly, all ranks still get the root's bits."""
    parts = [made((100_003,), "float32", rank) for rank in range(size)]
    with world_of(size, transport, segment_bytes=1 << 14) as world:
        for root in range(size):
            for got in world.run(lambda rank, root=root: rt.broadcast(parts[rank], root)):
                assert_same_bits(got, parts[root])


@OVER
@SIZES
def test_alltoall_deals_rows_by_splits(transport: str, size: int) -> None:
    """Rank p gets the p-th split of every rank, in rank order, and learns how many rows came from each."""
    splits = [[(rank + to) % 3 for to in range(size)] for rank in range(size)]
    with world_of(size, transport, segment_bytes=16) as world:
        for dtype in DTYPES:
            for rest in [(), (2,), (0,)]:
                parts = [made((sum(splits[rank]), *rest), dtype, rank) for rank in range(size)]
                results = world.run(lambda rank, parts=parts: rt.alltoall(parts[rank], splits[rank]))
                for to, (got, received) in enumerate(results):
                    starts = [sum(splits[rank][:to]) for rank in range(size)]
                    dealt = [parts[rank][starts[rank] : starts[rank] + splits[rank][to]] for rank in range(size)]
                    assert_same_bits(got, np.concatenate(dealt))
                    assert received.tolist() == [splits[rank][to] for rank in range(size)]


@OVER
def test_alltoall_without_splits_deals_evenly(transport: str) -> None:
    """Without splits every rank gets the same number of rows."""
    with world_of(3, transport) as world:
        results = world.run(lambda rank: rt.alltoall(np.arange(6) + 10 * rank))
    assert [got.tolist() for got, _ in results] == [
        [0, 1, 10, 11, 20, 21],
        [2, 3, 12, 13, 22, 23],
        [4, 5, 14, 15, 24, 25],
    ]


@OVER
def test_barrier_holds_until_all_have_come(transport: str) -> None:
    """No rank passes a barrier before the last one has reached it."""

    def pass_barrier(rank: int) -> tuple[float, float]:
        sum(range(500_000 * rank))  # each comes later than the one before it
        came = time.monotonic()
        rt.barrier()
        return came, time.monotonic()

    with world_of(3, transport) as world:
        came, passed = zip(*world.run(pass_barrier), strict=True)
    assert max(came) <= min(passed)


@OVER
def test_a_group_has_the_bits_of_its_members(transport: str) -> None:
    """Grouped forms mix dtypes and shapes, and give for each tensor what the single form gives."""
    members = [((4, 3), "float32"), ((), "float16"), ((5,), "float32"), ((0, 2), "int64"), ((2, 2), "float16")]
    parts = [[made(shape, dtype, rank, i) for i, (shape, dtype) in enumerate(members)] for rank in range(3)]

    def both(rank: int) -> list[list[Array]]:
        xs = parts[rank]
        return [
            rt.grouped_allreduce(xs, rt.Sum, name="g"),
            [rt.allreduce(x, rt.Sum) for x in xs],
            rt.grouped_reducescatter(xs, rt.Max),
            [rt.reducescatter(x, rt.Max) for x in xs],
            rt.grouped_allgather(xs),
            [rt.allgather(x) for x in xs],
        ]

    with world_of(3, transport, segment_bytes=8) as world:
        for grouped, single, *others in world.run(both):
            for i, (one, other) in enumerate(zip(grouped, single, strict=True)):
                assert_same_bits(one, other)
                assert_same_bits(one, folded([parts[rank][i] for rank in range(3)], rt.Sum))
            for ones, twos in zip(others[::2], others[1::2], strict=True):
                for one, other in zip(ones, twos, strict=True):
                    assert_same_bits(one, other)


@OVER
def test_asynchronous_forms_run_in_the_order_of_submission(transport: str) -> None:
    """Every asynchronous form gives what its direct form gives; handles may be waited for in any order."""

    def submit(rank: int) -> list[object]:
        x = np.arange(6.0) + rank
        y, z = x.copy(), x.copy()
        handles = [
            rt.allreduce_async(x, rt.Sum),
            rt.allreduce_async_(y, rt.Sum),
            rt.reducescatter_async(x, rt.Sum),
            rt.allgather_async(x),
            rt.broadcast_async(x, 1),
            rt.broadcast_async_(z, 1),
            rt.grouped_allreduce_async([x], rt.Sum),
            rt.grouped_reducescatter_async([x], rt.Sum),
            rt.grouped_allgather_async([x]),
        ]
        last = rt.alltoall_async(x)
        direct = rt.allreduce(x, rt.Sum)  # a direct call waits for its turn behind them
        assert all(rt.poll(handle) for handle in handles)
        received, counts = rt.synchronize(last)
        results = [rt.synchronize(handle) for handle in reversed(handles)][::-1]
        assert (y == direct).all()
        assert (z == np.arange(6.0) + 1).all()
        flattened = [r[0] if isinstance(r, list) else r for r in results]
        return [r.tolist() for r in (*flattened, direct, received, counts)]

    total = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    gathered = [*np.arange(6.0), *(np.arange(6.0) + 1)]
    root = (np.arange(6.0) + 1).tolist()
    with world_of(2, transport) as world:
        first, second = world.run(submit)
    reduced = [total, total, total[:3]]
    assert first == [*reduced, gathered, root, root, *reduced[1:], gathered, total, [0, 1, 2, 1, 2, 3], [3, 3]]
    assert second[2] == total[3:]
    assert second[-2] == [3, 4, 5, 4, 5, 6]


@OVER
def test_process_sets_run_among_themselves(transport: str) -> None:
    """Sets may overlap; each has its own count of collectives, and ranks outside go on with something else."""
    with world_of(4, transport) as world:

        def in_sets(rank: int) -> list[object]:
            odd = rt.add_process_set([3, 1])
            ends = rt.add_process_set(rt.ProcessSet([0, 3]))
            values: list[object] = [odd.included(), ends.ranks]
            if odd.included():
                values.append(float(rt.allreduce(float(rank), rt.Sum, process_set=odd)))
                values.append(rt.broadcast(np.array([rank]), 3, process_set=odd).tolist())
            if ends.included():
                values.append((ends.rank(), ends.size(), rt.allgather(np.array([rank]), process_set=ends).tolist()))
            assert rt.remove_process_set(odd)
            assert not rt.remove_process_set(odd)
            values.append(float(rt.allreduce(1.0, rt.Sum, process_set=rt.global_process_set)))
            return values

        results = world.run(in_sets)
    assert results == [
        [False, [0, 3], (0, 2, [0, 3]), 4.0],
        [True, [0, 3], 4.0, [3], 4.0],
        [False, [0, 3], 4.0],
        [True, [0, 3], 4.0, [3], (1, 2, [0, 3]), 4.0],
    ]


@OVER
def test_objects_travel_without_pickle(transport: str) -> None:
    """JSON values, bytes, tuples, sets, arrays and dicts with any key arrive as they were sent."""
    import ml_dtypes

    value = {
        "step": 7,
        "lr": 0.1,
        "nan": float("nan"),
        "raw": b"\x00\xff",
        "shape": (3, (4, None)),
        "state": [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(2, ml_dtypes.bfloat16), np.array("text")],
        "scalar": np.int64(3),
        3: {"$array": "not one", (1, 2): True},
        "kinds": [frozenset({1}), {"b"}, 2j],  # of one element each: a set's order is no one's business
    }

    with world_of(3, transport) as world:
        results = world.run(lambda rank: rt.broadcast_object(value if rank == 1 else None, 1))
        gathered = world.run(lambda rank: rt.allgather_object({"rank": rank, "data": "x" * rank}))
        pickled = world.run(lambda rank: rt.broadcast_object({rank}, allow_pickle=True))
    for got in results:
        assert repr(got) == repr(value)
    assert gathered == [[{"rank": rank, "data": "x" * rank} for rank in range(3)]] * 3
    assert pickled == [{0}] * 3


def cyclic() -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


@OVER
@pytest.mark.parametrize(
    ("value", "pickled", "reason"),
    [
        ([1, object()], False, r"value\[1\] is of type object, which is not sent"),
        (lambda: None, True, r"can't be sent: .*(pickle|local object)"),
        (cyclic(), False, "RecursionError"),
        (10**5000, False, "ValueError"),
    ],
    ids=["object", "lambda", "cyclic", "long-number"],
)
def test_a_root_that_cannot_send_fails_everyone(transport: str, value: object, pickled: bool, reason: str) -> None:
    """At once, with the reason, and the next collective works."""

    def work(rank: int) -> float:
        with pytest.raises(ConfigurationError, match=reason) as caught:
            rt.broadcast_object(value if rank == 1 else None, 1, allow_pickle=pickled)
        assert "rank 1: the object can't be sent" in str(caught.value)
        with pytest.raises(ConfigurationError, match=reason):
            rt.allgather_object(value if rank == 1 else None, allow_pickle=pickled)
        return float(rt.allreduce(np.ones(1), rt.Sum)[0])

    with world_of(3, transport) as world:
        assert world.run(work) == [3.0] * 3


@OVER
def test_ranks_that_disagree_about_pickle_or_root(transport: str) -> None:
    """All raise the error that names both values; nobody goes on with an object of its own."""
    calls: list[tuple[Callable[[int], object], str]] = [
        (
            lambda rank: rt.broadcast_object(1, 0, allow_pickle=rank == 0),
            "allow_pickle is True on rank 0 and False",
        ),
        (lambda rank: rt.allgather_object(1, allow_pickle=rank == 2), "allow_pickle is False .* True on rank 2"),
        (lambda rank: rt.broadcast_object(1, 1 if rank == 2 else 0), "root_rank is 0 on rank 0 and 1 on rank 2"),
    ]
    with world_of(3, transport) as world:
        for call, words in calls:
            for error in world.errors(call):
                assert isinstance(error, MismatchError)
                assert re.search(words, str(error)), error


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_group_of_long_and_short_tensors(transport: str) -> None:
    """Long ones are reduced where they lie, short ones together; every bit is that of the fold."""
    shapes = [(7,), (300, 300), (2, 3), (), (0,), (100_003,), (65_536,), (5,)]
    groups = [[made(shape, "float32", rank + 10 * i) for i, shape in enumerate(shapes)] for rank in range(4)]
    with world_of(4, transport) as world:
        for got in world.run(lambda rank: rt.grouped_allreduce(groups[rank], rt.Sum, name="g")):
            for index, tensor in enumerate(got):
                assert_same_bits(tensor, folded([group[index] for group in groups], rt.Sum))


@pytest.mark.parametrize("transport", SEAM)
def test_ranks_that_know_who_gives_something_ask_nobody_else(transport: str) -> None:
    """Between all others nothing is connected, and nobody waits for one that takes no part: here it comes last."""
    others_are_done = threading.Semaphore(0)
    with world_of(5, transport) as world:

        def exchange(rank: int) -> list[list[float]]:
            parts = [np.full(2 if (rank, to) in ((0, 3), (3, 1)) else 0, rank + 0.5) for to in range(5)]
            if rank == 4:
                for _ in range(4):
                    assert others_are_done.acquire(timeout=patient(60))
            received = group_of().all_to_all(parts, {1: [3], 3: [0]}.get(rank, [])).wait()
            others_are_done.release()
            return [part.tolist() for part in received]

        nothing: list[list[float]] = [[]] * 5
        of_1, of_3 = nothing.copy(), nothing.copy()
        of_1[3], of_3[0] = [3.5, 3.5], [0.5, 0.5]
        assert world.run(exchange) == [nothing, of_1, nothing, of_3, nothing]
