"""Allreduce and reducescatter give the bits of the fold in rank order."""

from collections.abc import Callable

import numpy as np
import pytest

import ringtrain as rt
from ring.reference import DTYPES, FLOATS, OPS, SHAPES, Array, assert_same_bits, folded, made
from ring.worlds import TRANSPORTS, World, world_of
from ringtrain._core.reduction.cuts import even_bounds
from ringtrain._core.wire.dtypes import INTEGERS
from ringtrain.errors import ConfigurationError


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


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 4], ids=["one-rank", "two-ranks", "four-ranks"])
def test_adasum(transport: str, size: int) -> None:
    """Orthogonal vectors add, parallel ones average, in place and not, alone, grouped and asynchronously."""
    with world_of(size, transport) as world:

        def combine(rank: int) -> list[object]:
            own, alike = np.eye(size, dtype=np.float32)[rank], np.array([3.0, 4.0])
            in_place = own.copy()
            rt.allreduce_(in_place, rt.Adasum)
            together = rt.grouped_allreduce([own, alike], rt.Adasum)
            later = rt.allreduce_async(np.float32(2.0), rt.Adasum)
            arrays = [rt.allreduce(own, rt.Adasum), in_place, *together, rt.synchronize(later)]
            return [array.tolist() for array in arrays]

        ones = [1.0] * size
        assert world.run(combine) == [[ones, ones, ones, [3.0, 4.0], 2.0]] * size


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_adasum_needs_a_power_of_two_of_ranks(transport: str) -> None:
    """All ranks raise the number that they are, and go on."""
    with world_of(3, transport) as world:

        def combine(rank: int) -> float:
            with pytest.raises(ConfigurationError, match="process set has 3; expected a power of two"):
                rt.allreduce(np.ones(2), rt.Adasum)
            with pytest.raises(ConfigurationError, match="op is Adasum; expected Sum, Average"):
                rt.reducescatter(np.ones(3), rt.Adasum)
            return float(rt.allreduce(1.0, rt.Sum))

        assert world.run(combine) == [3.0] * 3
