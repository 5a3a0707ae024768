"""Agent and launcher end with the threads and descriptors that they began with."""

from collections.abc import Callable
from pathlib import Path

from support.gang import GangProcesses

COUNTED = """
import os, sys, threading, time
inherited = dict(os.environ)
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # as the commands do: its fork handlers abort a rank now and then
from ringtrain.agent.config import AgentConfig
from ringtrain.agent.main import run_agent
from ringtrain.launcher.config import LauncherConfig
from ringtrain.launcher.main import run_launcher

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
        *(f"logs/default/job/1/{name}" for name in (".journal", ".outcome.json")),
    }


def _files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
