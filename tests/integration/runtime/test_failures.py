"""Gangs that fail: who is named, how everybody ends, and that nothing is left."""

import os
import re
import signal
from collections.abc import Callable

import pytest
from support.gang import GangProcesses, runs, until

Gang = Callable[..., GangProcesses]

# A rank that waits for its peers: it notices within milliseconds that the marker of a dead one has appeared.
PEER = """
import os, pathlib, signal, sys, time
from ringtrain.errors import PeerLost
rank = int(os.environ["RANK"])
marker = pathlib.Path(os.environ["MARKER"])
print("rank", rank, "waits")
if rank == 3:
    FAIL
while not marker.exists():
    time.sleep(0.005)
raise PeerLost(3, f"rank {rank}: rank 3 closed its connection in allreduce 7")
"""


@pytest.mark.parametrize(
    ("fail", "code", "name", "message"),
    [
        pytest.param(
            "marker.touch(); os.kill(os.getpid(), signal.SIGKILL)",
            137, "SIGKILL", "rank 3 was killed by SIGKILL", id="killed",
        ),
        pytest.param(
            "marker.touch(); time.sleep(0.5); raise ValueError('bad sample')",
            1, None, "rank 3 exited with 1", id="slow-traceback",
        ),
        pytest.param(
            "marker.touch(); os.kill(os.getpid(), signal.SIGSTOP)",
            1, None, "rank 3 stopped answering and was lost by rank(s) 0-2: ringtrain.errors.PeerLost: rank",
            id="hangs",
        ),
    ],
)  # fmt: skip
def test_the_first_cause_is_named(gang: Gang, fail: str, code: int, name: str | None, message: str) -> None:
    """Not the ranks that merely lost their peer, though they end at the same moment or earlier."""
    job = gang(2, 2, RINGTRAIN_TIMEOUT="20")
    job.settings["MARKER"] = str(job.directory / "marker")
    launcher, agents = job.launcher(), job.agents(*job.python(PEER.replace("FAIL", fail)))
    assert launcher.wait() == code
    assert [agent.wait() for agent in agents] == [75, code]
    failure = launcher.message()["failure"]
    assert (failure["rank"], failure["pod"], failure["node"]) == (3, "job-worker-1", "node-1")
    assert (failure["exitCode"], failure["signal"]) == (code, name)
    assert failure["message"].startswith(message)
    assert failure["reason"] == "RankFailed"
    assert failure["logTail"]
    assert agents[0].message()["failure"] == failure


# A rank of a training that keeps its state when it hears that another one is lost.
KEEPS = """
import os, signal, time
import numpy as np
import ringtrain as rt
rt.init()
try:
    for step in range(1000):
        if (step, rt.rank()) == (5, 3):
            DIE
        rt.allreduce(np.ones(100))
except rt.PeerLost as error:
    time.sleep(0.5)
    print("kept", flush=True)
    raise
time.sleep(1000)
"""


@pytest.mark.parametrize("way", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM", "exit"])
def test_every_other_rank_hears_of_it(gang: Gang, way: str) -> None:
    """They raise PeerLost, and have time for what they do then, whichever way the one went."""
    die = "os._exit(3)" if way == "exit" else f"os.kill(os.getpid(), signal.{way})"
    job = gang(2, 2)
    launcher, agents = job.launcher(), job.agents(*job.python(KEEPS.replace("DIE", die)))
    assert launcher.wait() == (3 if way == "exit" else 128 + getattr(signal, way))
    assert [agent.wait() for agent in agents] == [75, launcher.wait()]
    for rank in range(3):
        log = job.rank_log(rank)
        assert b"kept\n" in log
        assert b"PeerLost: rank 3" in log
    assert launcher.message()["failure"]["rank"] == 3


def test_a_rank_that_hears_nothing_gets_sigterm(gang: Gang) -> None:
    """A rank that is in no collective is ended all the same, and may end in order."""
    job = gang(1, 2, RINGTRAIN_TIMEOUT="6")
    alone = """
import os, signal, sys, time
def leave(*_):
    print("asked to end", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
"""
    launcher, agent = job.launcher(), job.agent(0, *job.python(alone))
    assert [launcher.wait(), agent.wait()] == [137, 137]
    assert job.rank_log(0) == b"ready\nasked to end\n"


@pytest.mark.parametrize("code", [3, 70, 200])
def test_exit_codes_are_exact(gang: Gang, code: int) -> None:
    """The code of the first failed rank is the code of its agent and of the launcher."""
    job = gang(1, 2)
    script = f'if [ "$RANK" = 1 ]; then echo last line; exit {code}; fi; sleep 1000'
    launcher, agent = job.launcher(), job.agent(0, "sh", "-c", script)
    assert [launcher.wait(), agent.wait()] == [code, code]
    failure = agent.message()["failure"]
    assert (failure["rank"], failure["exitCode"], failure["logTail"]) == (1, code, ["last line"])


def test_logs_that_cannot_be_kept(gang: Gang) -> None:
    """A log directory that cannot be written is a setting to mend, not a defect: 64, and the path is named."""
    job = gang(1, 1)
    (job.directory / "file").touch()
    launcher = job.launcher(RINGTRAIN_LOG_DIR=str(job.directory / "file"))
    assert launcher.wait() == 64
    failure = launcher.message()["failure"]
    assert failure["reason"] == "BadConfiguration"
    assert failure["message"].startswith(f"RINGTRAIN_LOG_DIR='{job.directory}/file': ")
    assert "Not a directory" in failure["message"]


def test_a_disk_that_is_full_at_the_end(gang: Gang) -> None:
    """If the outcome cannot be written into the log directory, the job keeps it and the launcher prints the error."""
    job = gang(1, 1)
    gate = job.directory / "gate"
    launcher, agent = job.launcher(), job.agent(0, "sh", "-c", f"until test -e {gate}; do sleep 0.02; done")
    job.until_running()
    (job.logs / ".outcome.tmp").symlink_to("/dev/full")
    gate.touch()
    assert [launcher.wait(), agent.wait()] == [0, 0]
    assert launcher.message()["outcome"] == "Succeeded"
    assert "No space left on device" in launcher.err()


def test_a_command_that_does_not_exist(gang: Gang) -> None:
    """127, as in a shell; the failure, the rank's log and the merged log say which program."""
    job = gang(1, 1)
    launcher, agent = job.launcher(), job.agent(0, "no-such-program")
    assert [launcher.wait(), agent.wait()] == [127, 127]
    message_text = "ringtrain: cannot execute no-such-program: No such file or directory"
    for message in (agent.message(), launcher.message()):
        assert message["failure"]["message"] == f"rank 0 exited with 127: {message_text}"
        assert message["failure"]["logTail"] == [message_text]
    assert job.rank_log(0) == f"{message_text}\n".encode()
    assert f"[0] {message_text}\n" in launcher.out()


def test_a_killed_agent(gang: Gang) -> None:
    """AgentLost names its pod, also by its uid, its node and ranks; its ranks die with it; the others are stopped
    with 75."""
    job = gang(2, 2, RINGTRAIN_TIMEOUT="20")
    launcher, agents = job.launcher(), job.agents("sh", "-c", "echo ready; exec sleep 1000")
    until("all ranks ready", lambda: all(job.rank_log(rank) == b"ready\n" for rank in range(4)))
    ranks = job.descendants()
    assert len(ranks) == 4
    agents[1].kill()
    assert [launcher.wait(), agents[0].wait()] == [75, 75]
    failure = launcher.message()["failure"]
    assert (failure["reason"], failure["rank"], failure["pod"], failure["node"]) == (
        "AgentLost", 2, "job-worker-1", "node-1",
    )  # fmt: skip
    assert failure["podUid"] == "uid of job-worker-1"
    assert "rank(s) 2, 3" in failure["message"]
    assert failure["logTail"] == ["ready"]
    until("no rank left", lambda: not any(runs(rank) for rank in ranks))


def test_workers_that_never_come(gang: Gang) -> None:
    """The launcher names who is missing and ends with 69, and so do those that came."""
    job = gang(3, 1)
    agent = job.agent(1, "true")
    until("the agent dials", lambda: "connects to the launcher" in agent.err())
    launcher = job.launcher(RINGTRAIN_START_TIMEOUT="3")
    assert [launcher.wait(), agent.wait()] == [69, 69]
    message = launcher.message()
    assert message["failure"]["reason"] == "NotAssembled"
    message_text = "2 of 3 workers did not register within 3 s: job-worker-0, job-worker-2"
    assert message["failure"]["message"] == message_text
    assert message["ranksSucceeded"] == 0


def test_sites_that_nobody_says(gang: Gang) -> None:
    """All workers are here, and no rank starts: the launcher names the label and what the operator needs."""
    job = gang(1, 1)
    agent = job.agent(0, "false")
    launcher = job.launcher(RINGTRAIN_START_TIMEOUT="8", RINGTRAIN_SITE_LABEL="zone")
    assert launcher.wait() == 69
    agent.wait()
    failure = launcher.message()["failure"]
    assert failure["reason"] == "NotAssembled"
    assert "the workers' sites within" in failure["message"]


def test_a_launcher_that_never_comes(gang: Gang) -> None:
    """The agent says which address it did not reach, and why, in its log every few seconds, and ends with 69."""
    job = gang(2, 1, RINGTRAIN_START_TIMEOUT="7")
    agent = job.agent(0, "true")
    nowhere = job.agent(1, "true", RINGTRAIN_LAUNCHER_ADDRESS="job-launcher.invalid:7350")
    assert [agent.wait(), nowhere.wait()] == [69, 69]
    message = agent.message()["failure"]["message"]
    assert f"cannot reach the launcher at 127.0.0.1:{job.control_port} within 7 s" in message
    assert "Connection refused" in message
    assert re.search(r"has not been reached for \d+ s: UNAVAILABLE: .*Connection refused", agent.err())
    assert "the launcher at job-launcher.invalid:7350 has not been reached for" in nowhere.err()


def test_a_launcher_that_stays_away(gang: Gang) -> None:
    """Ranks are stopped when the launcher has not come back within the timeout; the agent ends with 75."""
    job = gang(1, 1)
    launcher, agent = job.launcher(), job.agent(0, "sleep", "1000", RINGTRAIN_TIMEOUT="4")
    job.until_running()
    launcher.kill()
    assert agent.wait() == 75
    assert agent.message()["failure"]["reason"] == "LauncherFailed"


def test_a_second_agent_for_the_same_worker(gang: Gang) -> None:
    """It is refused with the reason, the first one goes on."""
    job = gang(1, 1)
    gate = job.directory / "gate"
    launcher, first = job.launcher(), job.agent(0, "sh", "-c", f"while ! test -e {gate}; do sleep 0.02; done")
    job.until_running()
    second = job.agent(0, "true", name="impostor")
    assert second.wait() == 69
    message_text = second.message()["failure"]["message"]
    assert "worker 0 is already registered in attempt 1 from pod job-worker-0" in message_text
    gate.touch()
    assert [launcher.wait(), first.wait()] == [0, 0]
    assert "refused worker 0 (impostor" in launcher.err()


@pytest.mark.parametrize(
    ("setting", "message_text"),
    [
        ({"RINGTRAIN_ATTEMPT": "2"}, "attempt is 2 at the worker, but 1 at the launcher"),
        ({"RINGTRAIN_SLOTS_PER_WORKER": "3"}, "slots per worker is 3 at the worker, but 1 at the launcher"),
    ],
    ids=["attempt", "slots"],
)
def test_an_agent_that_was_told_something_else(gang: Gang, setting: dict[str, str], message_text: str) -> None:
    """It is refused, and 64 says that trying again will not help."""
    job = gang(1, 1)
    job.launcher()
    agent = job.agent(0, "true", **setting)
    assert agent.wait() == 64
    assert message_text in agent.message()["failure"]["message"]


def test_bad_configuration(gang: Gang) -> None:
    """A wrong variable: 64, and the termination message names variable, value and what was expected."""
    job = gang(2, 1)
    agent = job.agent(0, "true", RINGTRAIN_WORKER_INDEX="7")
    launcher = job.launcher(RINGTRAIN_NUM_WORKERS="")
    assert [agent.wait(), launcher.wait()] == [64, 64]
    assert agent.message()["failure"]["reason"] == "BadConfiguration"
    assert agent.message()["failure"]["message"] == "RINGTRAIN_WORKER_INDEX='7': expected an integer from 0 to 1"
    assert "RINGTRAIN_NUM_WORKERS is not set" in launcher.message()["failure"]["message"]


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("got SIGTERM"))
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"])
print("ready")
while True:
    time.sleep(0.05)
"""


def test_asked_to_stop(gang: Gang) -> None:
    """SIGTERM to the launcher reaches every rank; after a grace all their processes are killed."""
    job = gang(1, 2)
    launcher, agent = job.launcher(), job.agent(0, *job.python(STUBBORN), RINGTRAIN_TIMEOUT="12")
    until("both ranks ready", lambda: job.rank_log(0) == job.rank_log(1) == b"ready\n")
    left = until("their children", lambda: len(found := job.descendants()) >= 10 and found)
    launcher.send(signal.SIGTERM)
    assert [launcher.wait(), agent.wait()] == [143, 143]
    assert launcher.message()["outcome"] == agent.message()["outcome"] == "Stopped"
    # At the end of the grace what is left is asked as well: the shell says that its child was.
    assert [log.count(b"got SIGTERM") for log in (job.rank_log(0), job.rank_log(1))] == [1, 1]
    assert [process for process in left if runs(process)] == []


POLITE = """
import signal, sys
def leave(*_):
    print("goodbye")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready")
signal.pause()
"""


def test_a_worker_asked_to_stop(gang: Gang) -> None:
    """SIGTERM to one agent: its ranks may say goodbye, the launcher names the pod, the others are stopped."""
    job = gang(2, 1, RINGTRAIN_TIMEOUT="20")
    launcher, agents = job.launcher(), job.agents(*job.python(POLITE))
    until("both ranks ready", lambda: job.rank_log(0) == job.rank_log(1) == b"ready\n")
    agents[1].send(signal.SIGTERM)
    assert [launcher.wait(), agents[0].wait(), agents[1].wait()] == [143, 75, 143]
    failure = launcher.message()["failure"]
    assert (failure["reason"], failure["pod"], failure["signal"]) == ("AgentLost", "job-worker-1", "SIGTERM")
    assert job.rank_log(1) == b"ready\ngoodbye\n"


@pytest.mark.parametrize("then", ["launcher", "nobody"])
def test_all_workers_asked_to_stop(gang: Gang, then: str) -> None:
    """If SIGTERM came to all workers, and to the launcher later or not, the attempt is stopped: no worker is its
    cause."""
    job = gang(2, 1, RINGTRAIN_TIMEOUT="60")
    launcher, agents = job.launcher(), job.agents(*job.python(POLITE))
    until("both ranks ready", lambda: job.rank_log(0) == job.rank_log(1) == b"ready\n")
    for agent in agents:
        agent.send(signal.SIGTERM)
    until("both ranks said goodbye", lambda: b"goodbye" in job.rank_log(0) and b"goodbye" in job.rank_log(1))
    if then == "launcher":
        launcher.send(signal.SIGTERM)
    assert [launcher.wait(), agents[0].wait(), agents[1].wait()] == [143, 143, 143]
    assert launcher.message()["outcome"] == "Stopped"
    assert "failure" not in launcher.message()


def test_what_a_rank_leaves_behind(gang: Gang) -> None:
    """A process that a rank left in the background is gone, and does not hold up the end."""
    job = gang(1, 1)
    launcher, agent = job.launcher(), job.agent(0, "sh", "-c", "setsid sleep 1000 & echo $!; exec true")
    assert [launcher.wait(), agent.wait()] == [0, 0]
    left = int(job.rank_log(0))
    assert not os.path.exists(f"/proc/{left}")
