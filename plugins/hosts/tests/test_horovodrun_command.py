"""`horovodrun` as it is installed."""

import json
import os
import sys
from pathlib import Path

from support.commands import completed
from support.gang import DEADLINE_S

HOROVODRUN = Path(sys.executable).parent / "horovodrun"
SCRIPT = """
import logging, numpy as np, ringtrain as rt
rt.init()
print(rt.rank(), rt.allreduce(np.ones(2, np.float32), op=rt.Sum))
logging.getLogger("ringtrain").info("said by rank %d", rt.rank())
"""


def test_a_line_for_horovodrun_works_as_it_is(tmp_path: Path) -> None:
    """Ranks meet; files are where the options say; what has no meaning is said; Horovod's variables are read."""
    words = ["-np", "2", "-H", "localhost:2", "--gloo", "--output-filename", "out", sys.executable, "-c", SCRIPT]
    settings = {"HOROVOD_TIMELINE": str(tmp_path / "h.json"), "HOROVOD_LOG_LEVEL": "INFO", "TMPDIR": str(tmp_path)}
    done = completed([HOROVODRUN, *words], cwd=tmp_path, env={**os.environ, **settings}, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--gloo is accepted but has no effect: " in done.stderr
    assert "ringtrain launcher: all workers have registered" in done.stderr
    for rank in range(2):
        assert (tmp_path / f"out/rank.{rank}/stdout").read_text().splitlines() == [
            f"{rank} [2. 2.]",
            f"said by rank {rank}",
        ]
    events = json.loads((tmp_path / "h.json").read_bytes())
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1}
