"""Log lines while the launcher receives none, and neither memory nor disk has room for more."""

import re
import signal
from collections.abc import Callable

from support.gang import GangProcesses, PodProcess, until

# 50 bytes each: about twice what the spool keeps in memory.
LINES = 600_000
SCRIPT = f"""
import pathlib, sys, time
for number in range({LINES}):
    print("%-49d" % number)
pathlib.Path("written").touch()
while not pathlib.Path("last").exists():
    time.sleep(0.02)
print("last")
"""
NOTICE = re.compile(rb"\[ringtrain\] dropped (\d+) lines? of rank 0: the launcher did not receive them in time")


def test_dropped_lines_are_counted_and_said(gang: Callable[..., GangProcesses]) -> None:
    """A rank is not held up by a launcher that hangs. Its lines are in the log once and in order, and where some
    are missing it is said how many; /status and /metrics count them."""
    job = gang(1, 1)
    launcher, agent = job.launcher(), _agent_with_a_small_disk(job)
    job.until_running()
    launcher.send(signal.SIGSTOP)
    until("all lines written", (job.directory / "written").exists)
    launcher.send(signal.SIGCONT)
    until("every line stored or counted", lambda: _accounted(job) >= LINES)
    counted = job.status()["logs"]["dropped"]
    assert counted > 0
    assert re.search(r"^ringtrain_log_lines_dropped_total{.*} [1-9]", job.get("/metrics"), re.MULTILINE)
    (job.directory / "last").touch()
    assert [launcher.wait(), agent.wait()] == [0, 0]
    lines = job.rank_log(0).splitlines()
    dropped = [int(match[1]) for line in lines if (match := NOTICE.match(line))]
    *numbers, last = [line for line in lines if not NOTICE.match(line)]
    assert last == b"last"
    assert sum(dropped) == LINES - len(numbers) >= counted
    assert sorted({int(number) for number in numbers}) == [int(number) for number in numbers]


def _accounted(job: GangProcesses) -> int:
    logs = job.status().get("logs", {"lines": 0, "dropped": 0})
    return int(logs["lines"] + logs["dropped"])


def _agent_with_a_small_disk(job: GangProcesses) -> PodProcess:
    """An agent none of whose files can grow beyond 1 MiB."""
    limited = ("sh", "-c", 'cd "$0" && ulimit -f 2048 && exec "$@"', str(job.directory))
    words = ["agent", "--", *job.python(SCRIPT)]
    environment = job.environment("worker", "job-worker-0")
    job.pods.append(PodProcess("job-worker-0", words, environment, job.directory, inside=limited))
    return job.pods[-1]
