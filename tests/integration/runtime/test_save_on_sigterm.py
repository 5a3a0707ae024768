"""Ranks of all pods save at the same step when one pod is asked to stop, within that pod's grace period."""

import signal
from collections.abc import Callable
from pathlib import Path

from support.gang import GangProcesses, until

# The save takes longer than ranks of a job without checkpoints would have, and than RINGTRAIN_TIMEOUT.
SAVES = """
import os, sys, time
import numpy as np
import ringtrain as rt
from ringtrain.checkpoint import ShardedCheckpoints, StopRequest, job_uri
rt.init()
with StopRequest() as stop, ShardedCheckpoints(job_uri()) as checkpoints:
    saved = checkpoints.latest()
    print("begins at", saved.step if saved else 0)
    for step in range(1, 1_000_000):
        rt.allreduce(np.ones(4, np.float32))
        if step == 3:
            print("trains")
        if stop.agreed():
            time.sleep(7.5)
            checkpoints.save(step, {"weights": np.arange(50_000.0)})
            print("saved", step)
            break
"""


def test_all_ranks_save_when_one_pod_is_asked_to_stop(gang: Callable[..., GangProcesses], tmp_path: Path) -> None:
    """The checkpoint is whole, although SIGTERM came to one of two pods alone."""
    uri = f"file://{tmp_path}/store/digits-1"
    settings = {"RINGTRAIN_TIMEOUT": "6", "RINGTRAIN_GRACE_PERIOD": "60", "RINGTRAIN_CHECKPOINT_URI": uri}
    job = gang(2, 1, **settings)
    launcher = job.launcher()
    agents = job.agents(*job.python(SAVES))
    for rank in (0, 1):
        until("ranks train", lambda rank=rank: b"trains" in job.rank_log(rank))
    agents[0].process.send_signal(signal.SIGTERM)
    assert agents[0].wait() == 128 + signal.SIGTERM
    agents[1].wait()
    assert launcher.wait() == 128 + signal.SIGTERM
    said = {job.rank_log(rank).splitlines()[-1] for rank in (0, 1)}
    assert len(said) == 1
    assert said.pop().startswith(b"saved ")
    assert len(list(tmp_path.glob("store/digits-1/attempt-0001/*/manifest.json"))) == 1
