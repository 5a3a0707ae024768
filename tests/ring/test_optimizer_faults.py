"""What a job needs after a fault: an error that names the lost rank, and a checkpoint to continue from."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ranks import ranks_ended, run_ranks

import ringtrain as rt
from ringtrain.checkpoint import Checkpoints
from ringtrain.errors import PeerLost
from ringtrain.optim import AdamW, HostOptimizer


def _optimizer() -> HostOptimizer:
    return HostOptimizer({"a": np.ones((30, 20)), "b": np.ones(30)}, AdamW(0.1), bucket_bytes=1)


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
    assert saved is not None
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


def _lose_rank_1() -> Any:
    rt.init(timeout=10)
    opt = _optimizer()
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
