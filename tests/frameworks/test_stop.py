"""A training with a DataLoader's workers is asked to stop, and saves: the workers serve it until then."""

import signal
import sys
from pathlib import Path

from support.commands import ringtrain_run
from support.gang import DEADLINE_S

SCRIPT = """
import sys
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
import ringtrain as rt
from ringtrain.checkpoint import Checkpoints, StopRequest

rt.init()
data = TensorDataset(torch.randn(1000000, 1))
left = None
with StopRequest() as stop:
    for step, _ in enumerate(DataLoader(data, batch_size=1, num_workers=2, persistent_workers=True)):
        if step == 3:
            print("ready", flush=True)
        if left is None and stop.agreed():
            left = 200  # further batches, of which most are not loaded yet
        elif left is not None:
            left -= 1
        if left == 0:
            Checkpoints(sys.argv[1]).save(step, {"w": np.zeros(3)})
            print("saved", flush=True)
            break
"""


def test_loader_workers_outlive_the_request(tmp_path: Path) -> None:
    """Behind a script and a pipe."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "run.sh").write_text(f"set -eo pipefail\n{sys.executable} train.py kept 2>&1 | tee -a log\necho end\n")
    run = ringtrain_run(tmp_path, "-np", "2", "-q", "bash", "run.sh")
    assert run.stdout is not None
    assert sorted(run.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=DEADLINE_S)
    assert sorted(out.splitlines()) == ["[0] end", "[0] saved", "[1] end", "[1] saved"], err
    assert run.returncode == 130
