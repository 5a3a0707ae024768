"""The ring in simulated time gives what was measured, before anything else of it counts."""

import sys
from pathlib import Path

import pytest
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


def test_the_simulation_is_of_ranks_that_watch_a_few_others() -> None:
    """Milliseconds until all hear a verdict, which is passed on, are those of bench/scale/ring.md, up to 256 ranks."""
    need("greenlet")
    program = (
        "from bench.scale.ring import SLOPES; row, = (one for one in SLOPES if one.name == 'all hear a verdict'); "
    )
    program += "print(*(f'{1000 * row.seconds(size):.1f}' for size in (8, 16, 32, 64, 128, 256)))"
    done = completed([sys.executable, "-c", program], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [one for one in (ROOT / "bench/scale/ring.md").read_text().splitlines() if "| all hear a verdict" in one]
    published = [float(cell) for cell in line.split("|")[2:8]]
    assert [float(word) for word in done.stdout.split()] == pytest.approx(published, rel=0.03)
