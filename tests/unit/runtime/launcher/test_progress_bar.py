"""The line of progress on a terminal."""

from dataclasses import replace

import pytest

from ringtrain_job.launcher.console import ConsoleProgressBar
from ringtrain_job.launcher.throughput import Progress, Speed

PROGRESS = Progress(step=40, total_steps=300, epoch=None, samples_per_s=5120.3, unit="images", loss=0.41234, metrics={})
BAR = ConsoleProgressBar(PROGRESS, Speed(5120.3, 31.2, 12.4), 200.0)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (
            100,
            "Step 40/300  13 %  [####-------------------------------]  3 min left  5120.3 images/sec  loss: 0.412",
        ),
        (75, "Step 40/300  13 %  [#---------]  3 min left  5120.3 images/sec  loss: 0.412"),
        (74, "Step 40/300  13 %  3 min left  5120.3 images/sec  loss: 0.412"),
        (55, "Step 40/300  13 %  3 min left  5120.3 images/sec"),
        (40, "Step 40/300  13 %  3 min left"),
        (12, "Step 40/300"),
        (4, "Step"),
    ],
)
def test_what_has_no_room_is_left_out(columns: int, line: str) -> None:
    """The bar first, then from the end on; no line is longer than the terminal is wide."""
    found = BAR.line(columns)
    assert len(found) <= columns
    assert found == line


def test_no_step_is_forestalled() -> None:
    """Percentages are rounded down: 100 appears only when no step is left."""
    almost = replace(PROGRESS, step=2999, total_steps=3000)
    assert "  99 %  [#######################################-]  0 s left" in ConsoleProgressBar(almost, None, 0.1).line(
        200
    )
    done = replace(PROGRESS, step=3000, total_steps=3000)
    assert f"Step 3000/3000  100 %  [{'#' * 40}]  ending  loss" in ConsoleProgressBar(done, None, 0.0).line(200)


def test_without_an_end() -> None:
    """Without a known end there is no bar."""
    assert ConsoleProgressBar(replace(PROGRESS, total_steps=None), None, None).line(80) == "Step 40  loss: 0.412"
