"""Output of the launcher, which continues if the terminal is slow or closed."""

import os
import pty
from pathlib import Path

from ringtrain_job.launcher.console import Console, ConsoleProgressBar
from ringtrain_job.launcher.throughput import Progress


def test_a_terminal_that_no_longer_tells_its_width(tmp_path: Path) -> None:
    """Lines are written although the width is unknown."""
    ours, theirs = pty.openpty()
    console = Console(theirs, person=True)
    with (tmp_path / "shown").open("wb") as file:
        os.dup2(file.fileno(), theirs)
    console.show_progress(ConsoleProgressBar(Progress(1, None, None, None, "samples", None, {}), None, None), "")
    console.show(b"a line\n")
    console.close(timeout_s=60)
    os.close(ours)
    os.close(theirs)
    assert b"a line\n" in (tmp_path / "shown").read_bytes()
