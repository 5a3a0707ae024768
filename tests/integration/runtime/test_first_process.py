"""Commands of pods as a container's first process, whose SIGTERM the kernel ignores until it has a handler."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.commands import completed
from support.gang import DEADLINE_S, until

# Makes the import of a module, which a command begins with, take as long as the test wants.
SITECUSTOMIZE = """
import importlib.abc, importlib.util, pathlib, sys, time
class Slow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == {module!r} else None
    def exec_module(self, module):
        pathlib.Path("imports").touch()
        time.sleep(600)
sys.meta_path.insert(0, Slow())
"""


@pytest.mark.parametrize(
    ("command", "module", "code"),
    [
        (["ringtrain", "agent", "true"], "ringtrain_job.agent.config", 143),
        (["ringtrain", "launcher"], "ringtrain_job.launcher.config", 143),
        (["ringtrain", "data-worker"], "ringtrain_data_service.server", 143),
        (["ringtrain_operator"], "ringtrain_operator.cluster.config", 0),
    ],
    ids=["agent", "launcher", "data-worker", "operator"],
)
def test_a_stop_while_it_starts(command: list[str], module: str, code: int, tmp_path: Path) -> None:
    """SIGTERM ends it at once, with the exit code that it has after SIGTERM later."""
    if completed(["unshare", "--pid", "--fork", "true"]).returncode:
        pytest.skip("a PID namespace needs root")
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE.format(module=module))
    run = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    try:
        until("the import begins", (tmp_path / "imports").exists)
        [first] = psutil.Process(run.pid).children()
        first.send_signal(signal.SIGTERM)
        assert run.wait(DEADLINE_S) == code
    finally:
        run.kill()
        run.wait(DEADLINE_S)
