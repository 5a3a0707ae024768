"""`ringtrain run` that is stopped while it connects to other hosts."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.commands import ringtrain_run
from support.gang import DEADLINE_S, until, until_ended


@pytest.fixture(autouse=True)
def hang_up_ends_programs() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, also by what tests start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def _sleeping(parent: int) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(parent).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that starts programs is there for a moment
            found += [child] if child.name() == "sleep" else []
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_stopped_before_hosts_have_answered(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for them, and no secret is left in the directory of temporary files."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 1000\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    run = ringtrain_run(tmp_path, "-np", "2", "-H", "node-a:1,node-b:1", "true")
    hosts = until("ssh", lambda: len(found := _sleeping(run.pid)) == 2 and found)
    run.send_signal(number)
    begun = time.monotonic()
    _, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 128 + number
    assert err.endswith("stopped before the ranks started\n")
    assert time.monotonic() - begun < 60  # agents that were at work get 40 s each
    until_ended(hosts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "ssh"]
