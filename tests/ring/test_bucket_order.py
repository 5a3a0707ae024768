"""Buckets that wait are reduced in the order of the next forward pass; weights do not tell."""

import numpy as np
import pytest
from support.pods import Pods
from support.ranks import run_ranks

import ringtrain as rt
from ringtrain.optim import AdamW, HostOptimizer

LAYERS = 7
UPDATES = 20


def _trained(wait: bool, clip_norm: float | None = None, elastic: bool = False) -> tuple[list[int], list[bytes]]:
    """The order of buckets in the end, and the weights, where all gradients are there when the first bucket is."""
    rt.init()
    params = {f"layer {index}": np.zeros(40_000, np.float32) for index in range(LAYERS)}
    opt = HostOptimizer(
        params, AdamW(0.01), bucket_bytes=160_000, clip_norm=clip_norm, elastic=elastic, update_during_backward=True
    )
    for step in range(UPDATES):
        for name in params:
            opt.wait_for(name)
        rt.barrier()  # where all weights are there, ranks may have other things to do together
        for index, name in enumerate(params):
            opt.submit(name, np.full(40_000, rt.rank() + step + index, np.float32))
        opt.step(wait=wait)
    opt.wait_for()
    order = [bucket.index for bucket in opt._cut.context.transfers.order.buckets]
    weights = [weights.tobytes() for weights in opt.weights.values()]
    rt.shutdown()
    return order, weights


NATURAL = list(range(LAYERS))


@pytest.mark.parametrize(("clip_norm", "elastic"), [(None, False), (0.5, False), (None, True)])
@pytest.mark.parametrize("world", ["grpc", "shm", "pods"])
def test_what_the_next_forward_pass_needs_first_goes_first(world: str, clip_norm: float | None, elastic: bool) -> None:
    """If ranks do not wait for all weights in `step`, bits stay the same and all ranks use the same order."""
    size = 4 if world == "pods" else 2
    env = {"RINGTRAIN_TRANSPORT": "grpc" if world == "grpc" else "auto"}
    waited, ahead = (
        run_ranks(_trained, size, wait, clip_norm, elastic, env=env, env_of=Pods(2) if world == "pods" else None)
        for wait in (True, False)
    )
    assert [order for order, _ in waited] == [NATURAL] * size
    expected = (
        [0, 1, *reversed(NATURAL[2:])] if clip_norm is None else NATURAL
    )  # no weight is new before all are reduced
    assert [order for order, _ in ahead] == [expected] * size
    assert {tuple(weights) for _, weights in [*waited, *ahead]} == {tuple(waited[0][1])}
