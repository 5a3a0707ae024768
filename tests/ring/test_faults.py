"""A rank that dies or stops at any place of any collective makes all others raise PeerLost naming it, in time.

To replay one seed: RINGTRAIN_TEST_SEEDS=17 pytest tests/ring/test_faults.py
"""

import functools
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.faults import FaultPlan
from support.ranks import started_ranks

import ringtrain as rt
from ring.leftovers import leftovers
from ringtrain.optim import AdamW, HostOptimizer
from ringtrain.process_groups.rank_context import RankContext
from ringtrain.transport.rpc import RpcTransport
from ringtrain.world.config import WorkerConfig

SIZE = 3
TIMEOUT_S = 10.0
SEEDS = [int(seed) for seed in os.environ.get("RINGTRAIN_TEST_SEEDS", "").split(",") if seed] or list(range(50))
AT_ONCE = 10

# Large enough for several segments of 4 KiB to each rank.
COLLECTIVES = [
    lambda x: rt.allreduce(x, rt.Sum),
    lambda x: rt.allreduce(x[:3], rt.Sum),
    lambda x: rt.reducescatter(x, rt.Average),
    lambda x: rt.allgather(x[: 100 * (rt.rank() + 1)]),
    lambda x: rt.broadcast(x, 0),
    lambda x: rt.broadcast(np.repeat(x, 4), 1),
    lambda x: rt.alltoall(x[:9999]),
    lambda x: rt.barrier(),
    lambda x: rt.grouped_allreduce([x[:10], x], rt.Max),
    lambda x: rt.synchronize(rt.allreduce_async(x, rt.Sum)),
    lambda x: _update(x),
]
SEQUENCES = 20  # a round: the last of these are the optimizer's


@functools.cache
def _optimizer() -> HostOptimizer:
    """One bucket for each parameter: several updates are under way at the same time."""
    return HostOptimizer({f"p{i}": np.ones(i * 3000, np.float32) for i in range(1, 4)}, AdamW(0.1), bucket_bytes=1)


def _update(x: np.ndarray) -> None:
    for name, weights in reversed(_optimizer().weights.items()):
        _optimizer().submit(name, x[: len(weights)])
    _optimizer().step()


def _train_until_a_fault(plan: FaultPlan) -> dict[str, object]:
    """Run collectives round after round; return how it ended on this rank."""
    config = WorkerConfig.from_env(os.environ)
    network = RpcTransport(config.rank, config.addresses, config.timeout_s, config.data_path == "auto")
    transport = plan.applied_to(network, config.rank)
    x = np.arange(10_000, dtype=np.float32)
    started = time.monotonic()
    try:
        context = RankContext(config, transport, segment_bytes=4096)
    except rt.errors.PeerLost as error:  # the others had met, and one was dead, before this rank was through
        return {**_lost(error, started), "again": str(error), "left": leftovers()}
    with context.entered():
        try:
            while True:
                for collective in COLLECTIVES:
                    started = time.monotonic()
                    collective(x)
        except rt.errors.PeerLost as error:
            lost = _lost(error, started)
            again = _error_of(lambda: rt.allreduce(x))
            context.close()
            return {**lost, "again": again, "left": leftovers()}


def _lost(error: rt.errors.PeerLost, started: float) -> dict[str, object]:
    return {"lost": error.rank, "message": str(error), "took_s": time.monotonic() - started}


def _error_of(call):
    try:
        return f"returned {call()}"
    except rt.errors.RingtrainError as error:
        return str(error)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "seeds", [SEEDS[i : i + AT_ONCE] for i in range(0, len(SEEDS), AT_ONCE)], ids=lambda s: f"seeds-{s[0]}-{s[-1]}"
)
def test_a_rank_that_dies_or_stops_is_named_by_all_others(seeds: list[int]) -> None:
    """For every seed the fault fires, all others raise PeerLost naming the victim within the timeout, and go on
    raising it; after shutdown they have no thread and no socket left."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = [problem for problem in pool.map(_problem_of, seeds) if problem]
    assert not problems, "\n".join(problems)


def _problem_of(seed: int) -> str | None:
    plan = FaultPlan.of_seed(seed, SIZE, SEQUENCES)
    survivors = [rank for rank in range(SIZE) if rank != plan.rank]
    env = {
        "RINGTRAIN_TIMEOUT": str(TIMEOUT_S),
        "RINGTRAIN_TRANSPORT": "grpc",
        "RINGTRAIN_DATA_PATH": "grpcio" if seed % 5 == 0 else "auto",
    }
    with started_ranks(_train_until_a_fault, SIZE, plan, env=env) as ranks:
        assert ranks.message(plan.rank) == "fired"
        outcomes = ranks.outcomes(ranks=survivors)
    for outcome in outcomes:
        ended = outcome.value
        if not outcome.ok or ended["lost"] != plan.rank or ended["again"] != ended["message"]:
            return f"seed {seed}: {plan}: {outcome}"
        if ended["took_s"] > TIMEOUT_S or ended["left"]:
            return f"seed {seed}: {plan}: after {ended['took_s']:.1f} s, left behind {ended['left']}: {ended}"
    return None
