"""Short collectives of four ranks and more, which read from log2 N others: what all collectives have in common is
tested elsewhere, in worlds of up to four."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ringtrain as rt
from ring.reference import Array, assert_same_bits, folded, made
from ring.worlds import all_raise, world_of
from ringtrain._core.communicators import exchange
from ringtrain._core.communicators.doubling import PART_BYTES_MOST
from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain._core.reduction.cuts import length_offsets
from ringtrain.errors import MismatchError, PeerLost

SIZES = [2, 3, 4, 5, 6, 7, 8, 9, 15, 17]


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RANKS_MOST_DIRECT", 1)


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_the_fold_in_rank_order(size: int) -> None:
    """Of any length around the one up to which it is used, with the result in the place of the contribution."""
    with world_of(size) as world:
        for nbytes in (0, 4, 1000, PART_BYTES_MOST, PART_BYTES_MOST + 4):
            for dtype in ("float32", "bfloat16"):
                parts = [made((nbytes // 4,), dtype, rank) for rank in range(size)]
                expected = folded(parts, rt.Average)
                for got in world.run(lambda rank, parts=parts: rt.allreduce_(parts[rank].copy(), rt.Average)):
                    assert_same_bits(got, expected)


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_what_each_has(size: int) -> None:
    """Rows of different numbers, none among them; and one rank whose rows are long."""
    with world_of(size) as world:
        for longest in (3, PART_BYTES_MOST):
            rows = [made(((5 * rank) % 4 if rank else longest, 2), "float64", rank) for rank in range(size)]
            for got in world.run(lambda rank, rows=rows: rt.allgather(rows[rank])):
                assert_same_bits(got, np.concatenate(rows))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 17])
def test_long_parts_are_passed_on_as_they_come(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In many segments, of different numbers of rows, none among them; in place, and to a new array."""
    monkeypatch.setattr(exchange, "LONG_RANKS_MOST_DIRECT", 1)
    rows = [made((0 if rank == 1 else 9_000 + 7 * rank,), "float64", rank) for rank in range(size)]
    bounds = length_offsets([len(part) for part in rows])
    expected = np.concatenate(rows)

    def work(rank: int) -> tuple[Array, Array]:
        buffer = np.zeros(bounds[-1])
        buffer[bounds[rank] : bounds[rank + 1]] = rows[rank]
        group_of().all_gather(buffer, bounds).wait()
        return buffer, rt.allgather(rows[rank])

    with world_of(size, segment_bytes=10_000) as world:
        for in_place, gathered in world.run(work):
            assert_same_bits(in_place, expected)
            assert_same_bits(gathered, expected)


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_what_the_root_has(size: int) -> None:
    values = [made((7,), "int32", rank) for rank in range(size)]
    with world_of(size) as world:
        for root in range(size):
            for got in world.run(lambda rank, root=root: rt.broadcast(values[rank], root)):
                assert_same_bits(got, values[root])


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_its_rows_of_the_fold(size: int) -> None:
    parts = [made((2 * size + 1, 3), "float32", rank) for rank in range(size)]
    with world_of(size) as world:
        got = world.run(lambda rank: rt.reducescatter(parts[rank], rt.Sum))
    assert_same_bits(np.concatenate(got), folded(parts, rt.Sum))


@pytest.mark.parametrize("size", [4, 7, 8])
def test_no_rank_passes_a_barrier_before_all_have_come(size: int) -> None:
    with world_of(size) as world:
        came: list[int] = []

        def pass_barrier(rank: int) -> int:
            came.append(rank)
            rt.barrier()
            return len(came)

        assert world.run(pass_barrier) == [size] * size


@pytest.mark.parametrize("size", [4, 6, 9])
def test_a_rank_reads_from_few_others(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are doublings to the size of the world."""
    with world_of(size) as world:

        def asked(rank: int) -> int:
            transport = current()._member.transport
            pulls: list[int] = []
            pull = transport.pull

            def counted(peer: int, *rest: Any) -> Any:
                pulls.append(peer)
                return pull(peer, *rest)

            monkeypatch.setattr(transport, "pull", counted)
            world.meet()
            rt.allreduce(np.ones(10))
            return len(pulls)

        assert world.run(asked) == [(size - 1).bit_length()] * size


DIFFERENT: dict[str, Callable[[bool], Array]] = {
    "shape": lambda odd: rt.allreduce(np.ones(4 if odd else 3), name="w"),
    "length": lambda odd: rt.allreduce(np.ones(PART_BYTES_MOST if odd else 3), name="w"),
    "kind": lambda odd: rt.allgather(np.ones(3), name="w") if odd else rt.allreduce(np.ones(3), name="w"),
    "root": lambda odd: rt.broadcast(np.ones(3), int(odd), name="w"),
}


@pytest.mark.parametrize("call", DIFFERENT.values(), ids=list(DIFFERENT))
def test_all_ranks_raise_what_one_does_otherwise(call: Callable[[bool], Array]) -> None:
    """Also those that exchange nothing with it."""
    with world_of(9) as world:
        all_raise(world.errors(lambda rank: call(rank == 5)), MismatchError, "rank 5")


def test_the_rank_that_does_not_come_is_named() -> None:
    """And not one that waits for it, on all ranks."""
    with world_of(7, stall_timeout_s=1.0) as world:
        errors = world.errors(lambda rank: rank == 3 or rt.barrier())
    for rank, error in enumerate(errors):
        if rank != 3:
            assert isinstance(error, PeerLost)
            assert "rank 3" in str(error)
