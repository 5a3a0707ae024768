"""`ringtrain rsh`, called inside a launcher like mpirun does: it behaves like ssh."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi_jobs import MpiGang
from mpi_libraries import OPEN_MPI, python
from support.commands import completed
from support.deadlines import patient
from support.gang import until

# Runs in the launcher, where RINGTRAIN_RSH_SOCKET is set. `short` is the executable that mpirun gets.
ASK = """
import json, os, signal, subprocess, sys
short, whole = [os.environ["OMPI_MCA_plm_rsh_agent"]], [sys.executable, "-m", "ringtrain", "rsh"]
found = {}

def ask(name, program, *words, stdin=b""):
    done = subprocess.run([*program, *words], input=stdin, capture_output=True)
    found[name] = [done.returncode, done.stdout.decode(), done.stderr.decode()]

ask("streams", whole, "-x", "-l", "user", "ringtrain-worker-0", "cat; echo problem >&2", stdin=b"hello")
ask("worker 1", short, "ringtrain-worker-1", "echo", "$RINGTRAIN_POD_NAME")
ask("large", short, "ringtrain-worker-1", "wc", "-c", stdin=bytes(5 << 20))
ask("no command", short, "ringtrain-worker-0")

lost = subprocess.Popen([*short, "ringtrain-worker-0", "echo $$; exec sleep 600"], stdout=subprocess.PIPE)
found["left behind"] = int(lost.stdout.readline())

told = subprocess.Popen(
    [*short, "ringtrain-worker-0", "trap 'echo asked; exit 9' TERM; echo ready; while :; do sleep 0.02; done"],
    stdout=subprocess.PIPE,
)
told.stdout.readline()
# Last: two seconds after the first daemon that ends badly the launcher gives the job up.
ask("killed", short, "ringtrain-worker-0", "kill -KILL $$")
ask("stranger", short, "ringtrain-worker-7", "true")
told.send_signal(signal.SIGTERM)
lost.kill()
found["signal"] = [told.wait(), told.stdout.read().decode(), ""]

with open("FOUND.draft", "w") as file:
    json.dump(found, file)
os.rename("FOUND.draft", "FOUND")
"""

# What the launcher's mpirun hands on: its ranks are behind the wrapper.
AS_MPIRUN = {"RINGTRAIN_MPI_WRAPPED": "1"}


def asked(job: MpiGang, script: str, directory: Path) -> Any:
    """Return the result of the launcher's `script`; the launcher is still running."""
    job.launcher(
        *python(f"import os; os.chdir({str(directory)!r})\n{script}\nimport time; time.sleep(600)"), **AS_MPIRUN
    )
    file = directory / "FOUND"
    until("the script has asked", file.exists)
    return json.loads(file.read_text())


def test_it_behaves_like_ssh(local_gang: Callable[..., MpiGang], short_path: Path) -> None:
    """stdin, stdout, stderr, signals and the exit code are forwarded; a process is ended if its client has ended."""
    OPEN_MPI.need()
    job = local_gang(2, 1, "OpenMPI")
    job.agents()
    found = asked(job, ASK, short_path)
    assert found["streams"] == [0, "hello", "problem\n"]
    assert found["worker 1"] == [0, "job-worker-1\n", ""]
    assert found["large"] == [0, f"{5 << 20}\n", ""]
    assert found["killed"] == [128 + signal.SIGKILL, "", ""]
    assert found["signal"] == [9, "asked\n", ""]
    code, _, stderr = found["stranger"]
    assert code == 255
    assert "; expected one of ringtrain-worker-0, ringtrain-worker-1" in stderr
    code, _, stderr = found["no command"]
    assert (code, stderr) == (255, "ringtrain rsh: usage: ringtrain rsh [ssh options] HOST COMMAND...\n")
    until("the daemon ends with its call", lambda: not Path(f"/proc/{found['left behind']}").exists())


SLOW = """
import json, os, subprocess, sys
child = subprocess.Popen([os.environ["OMPI_MCA_plm_rsh_agent"], "ringtrain-worker-0", "echo late"], stdout=-1)
open("ASKED", "w").close()
out, _ = child.communicate()
with open("FOUND.draft", "w") as file:
    json.dump([child.returncode, out.decode()], file)
os.rename("FOUND.draft", "FOUND")
"""
BEFORE = """
import os, time
open("READY", "w").close()
while not os.path.exists("GO"): time.sleep(0.01)
"""


def test_it_survives_a_slow_agent(local_gang: Callable[..., MpiGang], short_path: Path) -> None:
    """An agent that gets no CPU time at first starts the daemon later."""
    OPEN_MPI.need()
    job = local_gang(1, 1, "OpenMPI", RINGTRAIN_TIMEOUT="60")
    (agent,) = job.agents()
    script = f"import os; os.chdir({str(short_path)!r})\n{BEFORE}\n{SLOW}\nimport time; time.sleep(600)"
    job.launcher(*python(script), **AS_MPIRUN)
    until("the script runs", (short_path / "READY").exists)
    agent.send(signal.SIGSTOP)
    (short_path / "GO").touch()
    until("it has asked", (short_path / "ASKED").exists)
    agent.send(signal.SIGCONT)
    until("the agent has answered", (short_path / "FOUND").exists)
    assert json.loads((short_path / "FOUND").read_text()) == [0, "late\n"]


def test_outside_of_a_launcher_it_says_where_it_belongs() -> None:
    command = [sys.executable, "-m", "ringtrain", "rsh", "host", "true"]
    done = completed(command, timeout=patient(60))
    assert done.returncode == 255
    assert "RINGTRAIN_RSH_SOCKET is not set; only mpirun in the launcher of an mpi job" in done.stderr
