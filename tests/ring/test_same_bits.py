"""Fusion and segments do not change the bits of a reduction, and every rank sends no more than its share."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import run_ranks

import ringtrain as rt
from ring.reference import FLOATS, OPS, Array, assert_same_bits, folded, made
from ring.worlds import world_of
from ringtrain._core.communicators.exchange import ExchangeCommunicator
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain._core.reduction.cuts import even_bounds
from ringtrain._core.transport.base import TransportCaller, TransportService
from ringtrain._core.wire.messages import WireFrame


@settings(max_examples=40)
@given(
    size=st.integers(1, 5),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    dtype=st.sampled_from(FLOATS),
    op=st.sampled_from(OPS),
    segment_bytes=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
def test_fusion_and_segments_do_not_change_bits(
    size: int, lengths: list[int], dtype: str, op: rt.ReduceOp, segment_bytes: int, seed: int
) -> None:
    """One by one, as a group, or as one flat arena cut anywhere: always the bits of the fold in rank order."""
    parts = [[made((length,), dtype, rank, seed + i) for i, length in enumerate(lengths)] for rank in range(size)]
    expected = [folded([parts[rank][i] for rank in range(size)], op) for i in range(len(lengths))]
    cuts = sorted(np.random.default_rng(seed).integers(0, sum(lengths) + 1, size - 1).tolist())
    bounds = [0, *cuts, sum(lengths)]

    def reduce(rank: int) -> tuple[list[Array], list[Array], Array]:
        arena = np.concatenate(parts[rank])
        group_of().reduce_scatter(arena, bounds, op).wait()
        group_of().all_gather(arena, bounds).wait()
        return [rt.allreduce(x, op) for x in parts[rank]], rt.grouped_allreduce(parts[rank], op), arena

    with world_of(size, segment_bytes=segment_bytes) as world:
        for single, group, arena in world.run(reduce):
            for one, other, whole in zip(single, group, expected, strict=True):
                assert_same_bits(one, whole)
                assert_same_bits(other, whole)
            assert_same_bits(arena, np.concatenate(expected))


def _reduce_large(length: int, dtype: str) -> tuple[bytes, float]:
    import hashlib

    rt.init()
    x = made((length,), dtype, rt.rank())
    digests = set()
    for _ in range(3):
        digests.add(hashlib.sha256(rt.allreduce(x, rt.Sum).tobytes()).digest())
    assert len(digests) == 1
    return digests.pop(), float(rt.broadcast(x, rt.size() - 1)[-1])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_real_processes_agree_to_the_bit(size: int) -> None:
    """Several segments of 2 MiB between real processes: the fold in rank order, run after run."""
    import hashlib

    length = 3_000_017
    parts = [made((length,), "float32", rank) for rank in range(size)]
    expected = hashlib.sha256(folded(parts, rt.Sum).tobytes()).digest()
    results = run_ranks(_reduce_large, size, length, "float32", env={"RINGTRAIN_TRANSPORT": "grpc"})
    assert results == [(expected, float(parts[-1][-1]))] * size


class _CountingService:
    """Adds up the payload that a rank sends."""

    def __init__(self, service: TransportService) -> None:
        self._service = service
        self.payload_bytes = 0

    def answer(self, method: str, request: bytes, caller: TransportCaller) -> bytes:
        return self._service.answer(method, request, caller)

    def pull(self, request: bytes, caller: TransportCaller) -> Iterator[WireFrame]:
        for frame in self._service.pull(request, caller):
            self.payload_bytes += len(frame.payload)
            yield frame


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_sends_its_share_and_no_more(size: int, dtype: str) -> None:
    """2(N-1)/N of the payload in an allreduce, half of it in each of its halves, in the payload's own dtype."""
    length = 120 * size
    with world_of(size, segment_bytes=64) as world:
        x = made((length,), dtype, 0)
        counters = []
        for context in world.contexts:
            communicator = context.group().communicator
            assert isinstance(communicator, ExchangeCommunicator)
            transport = communicator._member.transport
            counter = _CountingService(communicator._member)
            transport.serve(counter)
            counters.append(counter)
        share = (size - 1) * x.nbytes // size

        def sent_in(collective: object) -> set[int]:
            before = [counter.payload_bytes for counter in counters]
            world.run(collective)
            return {counter.payload_bytes - b for counter, b in zip(counters, before, strict=True)}

        bounds = even_bounds(length, size)
        assert sent_in(lambda rank: rt.allreduce(x, rt.Sum)) == {2 * share}
        assert sent_in(lambda rank: group_of().reduce_scatter(x.copy(), bounds).wait()) == {share}
        assert sent_in(lambda rank: group_of().all_gather(x.copy(), bounds).wait()) == {share}
        assert sent_in(lambda rank: rt.barrier()) == {0}
