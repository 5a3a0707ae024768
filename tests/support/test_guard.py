"""A process that a test starts ends with the test, however the test ends."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
# Starts two processes in groups of their own, tells who they are, and waits to be killed.
STARTER = """
import signal, subprocess, sys
sys.path.insert(0, {tests!r})
from support.guard import GUARD
left, ended = (subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2))
GUARD.begun(left.pid)
GUARD.begun(ended.pid)
GUARD.ended(ended.pid)
print(left.pid, ended.pid, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_guarded_process_ends_with_its_starter(number: signal.Signals) -> None:
    """One whose end was told is left alone: its number may be another's by then."""
    program = [sys.executable, "-c", STARTER.format(tests=str(TESTS))]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as starter:
        left, ended = (psutil.Process(int(pid)) for pid in starter.stdout.readline().split())
        starter.send_signal(number)
    try:
        left.wait(20)
        assert ended.is_running()
    finally:
        ended.kill()
