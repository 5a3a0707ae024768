"""Lines of ranks are in the log files once and in order, whatever happens to the launcher."""

import re
import signal
from collections.abc import Callable

from support.gang import GangProcesses, PodProcess, until

LINES = 50_000
FAST = f"""
import os, sys
rank = os.environ["RANK"]
for number in range({LINES}):
    print("line", number, "of rank", rank)
"""


def test_launcher_killed_half_way(gang: Callable[..., GangProcesses]) -> None:
    """4 ranks × 50,000 lines as fast as they go, launcher killed and restarted: every line once and in order."""
    job = gang(2, 2, RINGTRAIN_TIMEOUT="40")
    first = job.launcher()
    agents = job.agents(*job.python(FAST))
    until("lines stored", lambda: (job.logs / "job.log").exists() and (job.logs / "job.log").stat().st_size > 500_000)
    first.kill()
    written = len(job.job_log())
    assert 0 < written < 4 * LINES
    second = job.launcher()
    assert [second.wait(), *(agent.wait() for agent in agents)] == [0, 0, 0]
    merged: dict[int, list[bytes]] = {rank: [] for rank in range(4)}
    for line in job.job_log():
        mark, _, text = line.partition(b" ")
        merged[int(mark.strip(b"[]"))].append(text)
    for rank in range(4):
        expected = [b"line %d of rank %d" % (number, rank) for number in range(LINES)]
        assert job.rank_log(rank).splitlines() == expected
        assert merged[rank] == expected
    assert "its ranks are already running" in second.err()
    assert job.status() == {}


def test_launcher_started_again_after_the_end(gang: Callable[..., GangProcesses]) -> None:
    """A launcher that starts when its attempt is over repeats how it ended."""
    job = gang(1, 1)
    launcher, agent = job.launcher(), job.agent(0, "sh", "-c", "exit 5")
    assert [launcher.wait(), agent.wait()] == [5, 5]
    again = job.launcher(RINGTRAIN_TERMINATION_MESSAGE_PATH=str(job.directory / "again"))
    assert again.wait() == 5
    assert again.message() == launcher.message()


ODD = r"""
import os, sys, time
out = sys.stdout.buffer
out.write(b"plain\n")
out.write(b"\x00\xff binary \xfe\n")
out.write(b"50%\r100%\rdone\n")
out.write(b"windows\r\n\n")
out.write(b"x" * 200_000 + b"\n")
out.flush()
os.write(2, b"no newline at the end")
"""


def test_odd_bytes(gang: Callable[..., GangProcesses]) -> None:
    """Binary bytes, carriage returns, very long lines and a missing last newline arrive unchanged."""
    job = gang(1, 1)
    launcher, agent = job.launcher(), job.agent(0, *job.python(ODD))
    assert [launcher.wait(), agent.wait()] == [0, 0]
    assert job.rank_log(0) == (
        b"plain\n\x00\xff binary \xfe\n50%\r100%\rdone\nwindows\r\n\n" + b"x" * 200_000 + b"\nno newline at the end"
    )
    lines = (job.logs / "job.log").read_bytes().split(b"\n")
    assert lines[:7] == [
        b"[0] plain", b"[0] \x00\xff binary \xfe", b"[0] 50%", b"[0] 100%", b"[0] done", b"[0] windows", b"[0] ",
    ]  # fmt: skip
    assert lines[-2:] == [b"[0] no newline at the end", b""]
    assert sum(line.count(b"x") for line in lines) == 200_000
    assert all(line.startswith(b"[0] ") for line in lines[:-1])


def test_the_tail_of_a_killed_launcher_is_cut(gang: Callable[..., GangProcesses]) -> None:
    """Bytes that a killed launcher wrote but never acknowledged are not in the files twice."""
    job = gang(1, 1, RINGTRAIN_TIMEOUT="40")
    gate = job.directory / "gate"
    script = f"echo before; while ! test -e {gate}; do sleep 0.02; done; echo after"
    first, agent = job.launcher(), job.agent(0, "sh", "-c", script)
    until("the first line", lambda: job.rank_log(0) == b"before\n")
    first.send(signal.SIGSTOP)
    first.kill()
    for name in ("rank-0000.log", "job.log", ".journal"):
        with (job.logs / name).open("ab") as file:
            file.write(b"half a li")
    second = job.launcher()
    until("the second launcher", lambda: job.status().get("phase") == "Running")
    gate.touch()
    assert [second.wait(), agent.wait()] == [0, 0]
    assert job.rank_log(0) == b"before\nafter\n"
    assert job.job_log() == [b"[0] before", b"[0] after"]


def test_a_success_says_that_lines_are_in_no_file(gang: Callable[..., GangProcesses]) -> None:
    """As where the launcher's disk is full: its termination message has it for the job's condition, and the
    worker's own says how many lines there are."""
    job = gang(1, 2, RINGTRAIN_TIMEOUT="5")
    limited, environment = ("prlimit", f"--fsize={64 << 10}"), job.environment("launcher", "job-launcher")
    launcher = PodProcess("job-launcher", ["launcher"], environment, job.directory, inside=limited)
    job.pods.append(launcher)
    (agent,) = job.agents(*job.python(FAST))
    assert [launcher.wait(), agent.wait()] == [0, 0]
    lost = agent.message()["lostLogLines"]
    assert lost == 2 * LINES - len(job.job_log())
    assert re.search(
        "some of the last lines of ranks could not be written to .*File too large", launcher.message()["warning"]
    )
