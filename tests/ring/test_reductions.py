"""Allreduce and reducescatter give the bits of the fold in rank order."""

from collections.abc import Callable

import pytest

import ringtrain as rt
from ring.reference import DTYPES, FLOATS, OPS, SHAPES, Array, assert_same_bits, folded, made
from ring.worlds import TRANSPORTS, World, world_of
from ringtrain.reduction.cuts import even_bounds
from ringtrain.wire.dtypes import INTEGERS


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4], ids=["one-rank", "two-ranks", "three-ranks", "four-ranks"])
def test_every_dtype_op_and_shape(transport: str, size: int) -> None:
    """Allreduce, in place and not, and reducescatter equal the fold for every dtype, op and shape."""
    cases = [
        (dtype, op, shape)
        for dtype in DTYPES
        for op in OPS
        for shape in SHAPES.values()
        if op is not rt.Average or dtype not in INTEGERS
    ]
    # Everything in memory; elsewhere every dtype, op and shape, but not each shape with each of the others: 5 and
    # 7 shapes have no common divisor.
    with world_of(size, transport, segment_bytes=32) as world:
        for dtype, op, shape in cases if transport == "memory" else cases[::5]:
            _check_reductions(world, dtype, op, shape, size)


def _check_reductions(world: World, dtype: str, op: rt.ReduceOp, shape: tuple[int, ...], size: int) -> None:
    parts = [made(shape, dtype, rank) for rank in range(size)]
    expected = folded(parts, op)
    rows = expected.reshape(1) if expected.ndim == 0 else expected
    bounds = even_bounds(len(rows), size)

    def reduce(rank: int) -> tuple[Array, Array, Array]:
        in_place = parts[rank].copy()
        returned = rt.allreduce_(in_place, op)
        assert returned is in_place
        return rt.allreduce(parts[rank], op), in_place, rt.reducescatter(parts[rank], op)

    for rank, (new, in_place, mine) in enumerate(world.run(reduce)):
        assert_same_bits(new, expected)
        assert_same_bits(in_place, expected)
        assert_same_bits(mine, rows[bounds[rank] : bounds[rank + 1]])


@pytest.mark.parametrize("dtype", FLOATS)
def test_strides_do_not_matter(dtype: str) -> None:
    """Transposed, sliced and reversed arrays reduce like contiguous ones; in place, the rest stays as it was."""
    parts = [made((6, 8), dtype, rank) for rank in range(3)]
    views: list[Callable[[Array], Array]] = [lambda a: a.T, lambda a: a[::2, 1::3], lambda a: a[::-1]]
    with world_of(3) as world:
        for view in views:
            whole = [part.copy() for part in parts]
            expected = folded([view(part) for part in parts], rt.Sum)

            def reduce(rank: int, view: Callable[[Array], Array] = view, whole: list[Array] = whole) -> Array:
                rt.allreduce_(view(whole[rank]), rt.Sum)
                return rt.allreduce(view(parts[rank]), rt.Sum)

            for rank, new in enumerate(world.run(reduce)):
                assert_same_bits(new, expected)
                untouched = parts[rank].copy()
                view(untouched)[...] = expected
                assert_same_bits(whole[rank], untouched)
