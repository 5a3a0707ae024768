"""Agent and launcher end with the threads and descriptors that they began with."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.gang import DEADLINE_S, GangProcesses, until

COUNTED = """
import os, sys, threading, time
inherited = dict(os.environ)
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # as the commands do: its fork handlers abort a rank now and then
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.main import run_agent
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.main import run_launcher

def held():
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}").split(":")[0])
        except OSError:  # that of listdir itself
            pass
    # gRPC keeps descriptors of its own for polling (eventfd, epoll): sockets, pipes and files are ours.
    return sorted(name for name in names if name != "anon_inode")

before = held()
if os.environ["RINGTRAIN_ROLE"] == "worker":
    code = run_agent(AgentConfig.from_env(os.environ), ["sh", "-c", "echo hello"], inherited)
else:
    code = run_launcher(LauncherConfig.from_env(os.environ))
deadline = time.monotonic() + 60  # gRPC closes its sockets in a thread of its own
while (held() != before or threading.active_count() > 1) and time.monotonic() < deadline:
    time.sleep(0.02)
print("left", held() == before, held(), file=sys.stderr)
print("threads", [thread.name for thread in threading.enumerate()], file=sys.stderr)
sys.exit(code)
"""


def test_threads_and_descriptors(gang: Callable[..., GangProcesses]) -> None:
    """No thread, socket, pipe or file is left by a whole attempt, nor any file beside the logs."""
    job = gang(1, 2)
    launcher = job.script("job-launcher", COUNTED, job.environment("launcher", "job-launcher"))
    agent = job.script("job-worker-0", COUNTED, job.environment("worker", "job-worker-0"))
    assert [launcher.wait(), agent.wait()] == [0, 0]
    for pod in (launcher, agent):
        assert "left True" in pod.err()
        assert "threads ['MainThread']" in pod.err()
    assert _files(job.directory) == {
        *(f"{name}.{kind}" for name in ("job-launcher", "job-worker-0") for kind in ("out", "err", "message")),
        *(f"logs/default/job/1/{name}" for name in ("job.log", "rank-0000.log", "rank-0001.log", "events.jsonl")),
        *(f"logs/default/job/1/{name}" for name in (".journal", ".outcome.json", "run.json")),
    }


# A child in a session of its own, and one whose parent has ended: what a rank's data loaders and services are.
WITH_CHILDREN = """
import os, subprocess, time
import ringtrain as rt
rt.init()
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.run(["sh", "-c", "setsid sleep 600 &"])
open(f"begun-{os.getpid()}", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("victim", "options"),
    [("run", []), ("run", ["--min-np", "1", "--data-workers", "1"]), ("agent", []), ("launcher", [])],
    ids=["run", "elastic-run", "agent", "launcher"],
)
def test_a_process_of_a_run_is_killed(victim: str, options: list[str], tmp_path: Path) -> None:
    """Whichever: nothing that the run has started lives on, and no folder of it stays."""
    mark, folders = str(uuid.uuid4()), tmp_path / "tmp"
    folders.mkdir()
    (tmp_path / "train.py").write_text(WITH_CHILDREN)
    words = ["run", "-np", "2", *options, sys.executable, "train.py"]
    run = subprocess.Popen(
        [sys.executable, "-m", "ringtrain", *words],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(folders), "MARK": mark, "RINGTRAIN_TIMEOUT": "8"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until("both ranks and their children", lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        assert len(_marked(mark)) >= 9
        (pid,) = [one.pid for one in _marked(mark) if _ringtrain_command(one) == victim]
        os.kill(pid, signal.SIGKILL)
        assert run.wait(DEADLINE_S) != 0
        until("the end of all processes", lambda: not _marked(mark))
        until("the end of all folders", lambda: not list(folders.iterdir()))
    finally:
        for one in _marked(mark):
            one.kill()


def _ringtrain_command(process: psutil.Process) -> str | None:
    """Return `agent` for `python -m ringtrain agent`; None for another program than ringtrain."""
    words = process.cmdline()
    return words[words.index("ringtrain") + 1] if "ringtrain" in words else None


def _marked(mark: str) -> list[psutil.Process]:
    """Living processes that were started with `mark` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
