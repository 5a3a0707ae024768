"""Output of the launcher, which continues if the terminal is slow or closed."""

import os
import pty
from pathlib import Path

import pytest

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


def test_lines_that_a_slow_reader_does_not_read_are_counted() -> None:
    """A pipe has room for some lines; the others are in job.log, and the message says how many these are."""
    reader, writer = os.pipe()
    line, written = b"x" * 99 + b"\n", 5000
    console = Console(writer, bound=1 << 30)
    for _ in range(written):
        console.show(line)
    message = console.close(timeout_s=0.2)
    os.set_blocking(reader, False)
    in_pipe = os.read(reader, 1 << 20).count(b"\n")
    os.close(reader)
    assert message == (
        f"{written - in_pipe} lines not printed: the reader of stdout did not read them within 0.2 s; see job.log"
    )


@pytest.mark.parametrize("reads", [False, True], ids=["full", "closed"])
def test_output_that_fails(reads: bool) -> None:
    """A full disk is reported; a reader that has ended, such as head, has read enough."""
    ours, theirs = os.pipe() if reads else (-1, os.open("/dev/full", os.O_WRONLY))
    if reads:
        os.close(ours)
    console = Console(theirs)
    console.show(b"a\nb\n")
    message = console.close(timeout_s=60)
    os.close(theirs)
    full = "2 lines not printed: No space left on device; see job.log"
    assert message == ("" if reads else full)
