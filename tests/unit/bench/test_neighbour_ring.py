"""The textbook ring that the benchmarks run beside ours works on ringtrain's own exchange."""

import sys
from pathlib import Path

import numpy as np
from support.ranks import run_ranks

import ringtrain as rt
from ringtrain._core.process_groups.context import current


def largest() -> list[float]:
    sys.path.append(str(Path(__file__).parents[3]))
    from bench.neighbour_ring import ring_all_reduce

    rt.init()
    buffer = np.roll(np.arange(10, dtype=np.float32), rt.rank())
    network = current().group().communicator
    ring_all_reduce(network, buffer)  # type: ignore[arg-type]
    rt.shutdown()
    return [float(value) for value in buffer]


def test_every_rank_has_the_maximum() -> None:
    """Of each element over all ranks."""
    expected = np.max([np.roll(np.arange(10), rank) for rank in range(3)], axis=0).tolist()
    assert run_ranks(largest, 3, env={"RINGTRAIN_TRANSPORT": "grpc"}) == [expected] * 3
