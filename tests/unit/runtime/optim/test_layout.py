"""Layout of parameters: each element once, in buckets that fit the backward pass, in shards of equal size."""

from itertools import pairwise

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtrain.optim.layout import SEGMENT, Layout, ParamSpec, plan_layout

params = st.lists(
    st.tuples(st.integers(0, 700), st.sampled_from(["float32", "float64", "bfloat16"]), st.booleans()),
    min_size=1,
    max_size=12,
)


def _layout(sizes: list[tuple[int, str, bool]], bucket_bytes: int, world_size: int) -> Layout:
    kinds = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
    specs = [
        ParamSpec(f"p{i}", (size,), kinds.get(dtype) or np.dtype(dtype), local)
        for i, (size, dtype, local) in enumerate(sizes)
    ]
    return plan_layout(specs, bucket_bytes, world_size)


@settings(max_examples=150)
@given(params, st.integers(1, 4000), st.integers(1, 7))
def test_every_element_has_one_place(sizes: list[tuple[int, str, bool]], bucket_bytes: int, world_size: int) -> None:
    """Buckets tile their arenas, parameters tile their buckets, shards and segments tile both."""
    layout = _layout(sizes, bucket_bytes, world_size)
    ends: dict[tuple[str, bool], int] = {}
    for index, bucket in enumerate(layout.buckets):
        assert bucket.index == index
        assert bucket.offset == ends.get(bucket.arena, 0)
        ends[bucket.arena] = bucket.offset + bucket.size
        assert [location.start for location in bucket.locations] == [
            0,
            *(location.stop for location in bucket.locations[:-1]),
        ]
        assert all(location.stop - location.start == location.spec.size for location in bucket.locations)
        assert all(location.spec.arena == bucket.arena for location in bucket.locations)
        assert (bucket.bounds[0], bucket.bounds[-1], len(bucket.bounds)) == (0, bucket.size, world_size + 1)
        edges = [*bucket.segments.tolist(), bucket.size]
        assert [edges[cut] for cut in bucket.segment_bounds] == list(bucket.bounds)
        assert all(0 < b - a <= SEGMENT for a, b in pairwise(edges))
        for rank, bound in enumerate(bucket.bounds):
            assert abs(bound - rank * bucket.size / world_size) <= SEGMENT / 2
    assert ends == layout.arena_sizes
    assert sorted(layout.locations) == sorted(spec.name for spec in layout.specs)


@settings(max_examples=100)
@given(params, st.integers(1, 4000))
def test_buckets_close_as_the_backward_pass_fills_them(sizes: list[tuple[int, str, bool]], bucket_bytes: int) -> None:
    """If gradients come in reverse order of registration, buckets are complete in the order of their reduction."""
    layout = _layout(sizes, bucket_bytes, 2)
    order = {spec.name: index for index, spec in enumerate(reversed(layout.specs))}
    completed = [max(order[location.spec.name] for location in bucket.locations) for bucket in layout.buckets]
    assert completed == sorted(completed)


def test_buckets_hold_about_what_was_asked() -> None:
    """A bucket closes with the parameter that fills it, or before one too long for it; the first one early."""
    sizes = [(size, "float32", False) for size in (100, 30, 30, 30, 500, 10)]
    layout = _layout(sizes, 4 * 60, 1)
    assert [[p.spec.name for p in bucket.locations] for bucket in layout.buckets] == [
        ["p5"],
        ["p4"],
        ["p3", "p2"],
        ["p1"],
        ["p0"],
    ]


def test_buckets_are_small_at_both_ends() -> None:
    """They double from an eighth up to what was asked, and halve again."""
    layout = _layout([(16, "float32", False)] * 256, 4 * 1024, 1)
    sizes = [bucket.size for bucket in layout.buckets]
    assert sizes[:4] == [128, 128, 256, 512]
    assert max(sizes) == 1024
    assert sizes[-3:] == [256, 128, 128]
    assert sum(sizes) == 16 * 256
