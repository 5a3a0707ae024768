"""Recovery of a job after a fault: an error that names the lost rank, and a checkpoint to continue from."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pods import Pods
from support.ranks import ranks_ended, run_ranks

import ringtrain as rt
from ringtrain.checkpoint import Checkpoints
from ringtrain.errors import PeerLost
from ringtrain.optim import SGD, AdamW, HostOptimizer


def _optimizer(**options: Any) -> HostOptimizer:
    return HostOptimizer({"a": np.ones((30, 20)), "b": np.ones(30)}, AdamW(0.1), bucket_bytes=1, **options)


def _advance(opt: HostOptimizer, steps: int) -> None:
    """The same exact gradients on every rank, so that the world size does not matter."""
    for step in range(opt.updates, opt.updates + steps):
        for name, weights in opt.weights.items():
            opt.submit(name, np.random.default_rng([step, weights.size]).integers(-8, 9, weights.shape) / 8)
        opt.step()


def _train_and_save(directory: str) -> None:
    rt.init()
    opt = _optimizer()
    _advance(opt, 3)
    # Every rank names its own directory: only rank 0's may come into being.
    Checkpoints(Path(directory) / str(rt.rank())).save(3, {"optimizer": opt.state_dict(root=0)})
    rt.shutdown()


def _resume(directory: str) -> tuple[int, bytes]:
    rt.init()
    opt = _optimizer()
    saved = Checkpoints(Path(directory) / str(rt.rank())).latest()
    opt.load_state_dict(saved.state["optimizer"])
    _advance(opt, 3)
    weights = b"".join(array.tobytes() for array in opt.weights.values())
    rt.shutdown()
    return saved.step, weights


def _uninterrupted() -> bytes:
    rt.init()
    opt = _optimizer()
    _advance(opt, 6)
    weights = b"".join(array.tobytes() for array in opt.weights.values())
    rt.shutdown()
    return weights


def test_a_job_continues_on_another_number_of_ranks(tmp_path: Path) -> None:
    """Two ranks save, four resume from rank 0's directory: the weights are those of an uninterrupted run."""
    run_ranks(_train_and_save, 2, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    (expected,) = run_ranks(_uninterrupted, 1)
    assert run_ranks(_resume, 4, str(tmp_path)) == [(3, expected)] * 4


def _lose_rank_1(clip_norm: float | None = None) -> Any:
    rt.init(timeout=10)
    opt = _optimizer(clip_norm=clip_norm)
    _advance(opt, 1)
    opt.submit("b", np.ones(30))
    if rt.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    opt.submit("a", np.ones((30, 20)))
    try:
        opt.step()
    except PeerLost as error:
        rt.shutdown()
        return error.rank, [t.name for t in threading.enumerate() if t.name.startswith("ringtrain")]
    return None


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_rank_lost_in_the_middle_of_an_update_is_named(transport: str) -> None:
    """step() raises PeerLost with its rank on all others, in one pass or in lanes; no thread is left then."""
    outcomes = ranks_ended(_lose_rank_1, 3, env={"RINGTRAIN_TRANSPORT": transport})
    assert [outcome.value for outcome in outcomes] == [(1, []), None, (1, [])]
    assert outcomes[1].exit_code == -signal.SIGKILL


@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["plain", "clipped"])
def test_a_rank_lost_in_the_middle_of_an_update_is_named_in_all_pods(clip_norm: float | None) -> None:
    outcomes = ranks_ended(_lose_rank_1, 4, clip_norm, env_of=Pods(2))
    assert [outcome.value for outcome in outcomes] == [(1, []), None, (1, []), (1, [])]
    assert outcomes[1].exit_code == -signal.SIGKILL


SAMPLES, EPOCHS = 83, 2


def _count_samples(directory: str, batch_size: int, dies_after: int) -> list[float]:
    """Weight i counts the updates that sample i was in. A rank dies `dies_after` steps, every second is saved."""
    rt.init()
    opt = HostOptimizer({"seen": np.zeros(SAMPLES)}, SGD(lr=float(rt.size())))
    shard = rt.data.shard(SAMPLES, batch_size)
    checkpoints = Checkpoints(directory)
    saved = checkpoints.latest()
    position = {"epoch": 0, "consumed": 0}
    if saved:
        opt.load_state_dict(saved.state["optimizer"])
        position = saved.state["position"]
    begun = opt.updates
    for epoch in range(position["epoch"], EPOCHS):
        for batch in shard.epoch(epoch, consumed=position["consumed"]):
            if opt.updates - begun == dies_after and rt.rank() == rt.size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            gradient = np.zeros(SAMPLES)
            np.add.at(gradient, batch.indices[batch.mask], -1.0)
            opt.submit("seen", gradient)
            opt.step()
            if opt.updates % 2 == 0:
                position = {"epoch": epoch, "consumed": batch.consumed}
                checkpoints.save(opt.updates, {"optimizer": opt.state_dict(root=0), "position": position})
        position = {"epoch": epoch + 1, "consumed": 0}
    return [round(float(count), 3) for count in opt.weights["seen"]]


def test_every_sample_counts_once_over_restarts(tmp_path: Path) -> None:
    """Killed in mid-epoch and gone on with another number of ranks: no sample is skipped, none is used twice."""
    for size, batch_size, dies_after in ((2, 3, 3), (4, 2, 5), (3, 5, 1)):
        outcomes = ranks_ended(_count_samples, size, str(tmp_path), batch_size, dies_after)
        assert outcomes[-1].exit_code == -signal.SIGKILL
        assert all(outcome.error and "PeerLost" in outcome.error for outcome in outcomes[:-1])
    assert run_ranks(_count_samples, 2, str(tmp_path), 4, -1) == [[float(EPOCHS)] * SAMPLES] * 2
