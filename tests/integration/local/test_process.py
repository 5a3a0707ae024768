"""Pods as process groups: a container that its own rules start again in its pod; and their end."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest
from support.gang import pid_runs
from support.jobs import job
from support.local import until

from ringtrain_client.local import process
from ringtrain_client.local.process import LocalProcessRunner
from ringtrain_operator.build import build_launcher_pod
from ringtrain_operator.spec.parse import parse_job

# Says which process it is, and stays.
PROGRAM = "import os, pathlib, time; pathlib.Path('{}').open('a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[LocalProcessRunner]:
    """A runner that is closed at the end."""
    found = LocalProcessRunner(tmp_path / "run", tmp_path / "claims")
    yield found
    found.close()


def launcher(pids: Path, **spec: Any) -> dict[str, Any]:
    """The launcher's pod with a program that appends its process id to `pids`."""
    manifest = job(**spec)
    manifest["metadata"]["uid"] = "0a1b2c3d"
    pod = build_launcher_pod(parse_job(manifest), 1)
    pod["spec"]["containers"][0]["command"] = [sys.executable, "-c", PROGRAM.format(pids)]
    pod["spec"]["volumes"] = [v for v in pod["spec"]["volumes"] if "secret" not in v]
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    pod["spec"]["containers"][0]["volumeMounts"] = [m for m in mounts if m["name"] != "ringtrain-secret"]
    return pod


def started(pids: Path) -> list[int]:
    """Process ids so far."""
    return [int(line) for line in pids.read_text().splitlines()] if pids.exists() else []


def test_a_killed_launcher_of_an_elastic_job_comes_back_in_its_pod(runner: LocalProcessRunner, tmp_path: Path) -> None:
    """Its pod has not ended, and is the same. It tells how the process before ended, as a kubelet's does."""
    pids = tmp_path / "pids"
    runner.start(launcher(pids, elastic={"maxReplicas": 4}), {})
    (before,) = runner.pods()
    (first,) = until(lambda: started(pids))
    os.kill(first, signal.SIGKILL)
    until(lambda: runner.pods()[0]["status"]["containerStatuses"][0]["lastState"])
    assert not runner.pods()[0]["status"]["containerStatuses"][0]["ready"]
    until(lambda: runner.pods() and len(started(pids)) == 2)
    (after,) = runner.pods()
    assert after["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["phase"] == "Running"
    assert after["status"]["containerStatuses"][0]["restartCount"] == 1


def test_a_killed_launcher_of_another_job_has_failed(runner: LocalProcessRunner, tmp_path: Path) -> None:
    """As in a cluster: the gang restarts with a new pod."""
    pids = tmp_path / "pids"
    runner.start(launcher(pids), {})
    (first,) = until(lambda: started(pids))
    os.kill(first, signal.SIGKILL)
    until(lambda: runner.pods()[0]["status"]["phase"] == "Failed")
    assert not pid_runs(first)


def test_a_deleted_pod_starts_nothing_again(runner: LocalProcessRunner, tmp_path: Path) -> None:
    """It is gone when its process has ended, however that ended."""
    pids = tmp_path / "pids"
    runner.start(launcher(pids, elastic={"maxReplicas": 4}), {})
    until(lambda: started(pids))
    runner.delete("digits-launcher", 0)
    until(lambda: runner.pods() == [])
    assert len(started(pids)) == 1


def interrupted_at(moment: int) -> Callable[..., Any]:
    """A tracer that raises KeyboardInterrupt before the `moment`-th line that a closing runner runs of its own."""
    lines = iter(range(1, moment + 1))

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename != process.__file__ or frame.f_code.co_name == "close":
            return trace
        if event == "line" and next(lines, 0) == moment:
            raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.parametrize("moment", [1, 2, 3, 8, 12, 16, 20])
def test_ctrl_c_at_any_moment_of_the_end_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """No process, and no directory of pods, where their secrets lie: whenever it comes while a runner closes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runner = LocalProcessRunner(tmp_path / "run", tmp_path / "claims")
    pod = launcher(tmp_path / "pids")
    pod["spec"]["containers"][0]["command"] = ["sleep", "600"]
    others = psutil.Process().children()
    runner.start(pod, {})
    (child,) = set(psutil.Process().children()) - set(others)
    sys.settrace(interrupted_at(moment))
    try:
        runner.close()
    finally:
        sys.settrace(None)
    assert not child.is_running()
    assert not list(tmp_path.glob("dtj-*"))
