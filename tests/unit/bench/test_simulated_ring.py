"""The ring in simulated time gives what was measured, before anything else of it counts."""

import sys
from pathlib import Path

from support.commands import completed
from support.needs import need

ROOT = Path(__file__).parents[3]


def test_the_simulation_reproduces_what_was_measured() -> None:
    """Each measured row of 2 and 4 ranks, within the margin that bench/scale/ring.md states. In a process of its
    own: it puts simulated time in the place of the real one."""
    need("greenlet")
    done = completed([sys.executable, "-m", "bench.scale.ring", "check"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    written = (ROOT / "bench" / "scale" / "ring.md").read_text()
    assert done.stdout.count("\n") == 9
    assert all(line in written for line in done.stdout.splitlines()), done.stdout
