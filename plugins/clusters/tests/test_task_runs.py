"""A run in tasks of another scheduler, such as Spark or Ray: its driver is interrupted."""

import signal
import subprocess
import sys
from pathlib import Path

from support.gang import DEADLINE_S, until

RANK = """
import signal, time
asked = []
def train(log):
    def say(word):
        with open(log, "a") as file:
            file.write(word + "\\n")
    signal.signal(signal.SIGTERM, lambda *_: (asked.append(1), say("SIGTERM")))
    say("ready")
    while not asked:
        time.sleep(0.05)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        time.sleep(0.05)
    say("saved")
"""
# A scheduler with one place, in this process. Cancelling kills what runs there, as Spark and Ray do.
DRIVER = """
import sys
import psutil
import train
from ringtrain.shared.place import RankPlace
from ringtrain_clusters.tasks.agent import describe_task, run_agent
from ringtrain_clusters.tasks.launcher import (
    ScheduledTasks, TaskRunOptions, TaskRunOutput, TaskScheduler, pickled_by, run_in_tasks,
)

def run(task_run):
    return [(0, run_agent(task_run, describe_task(task_run.launcher, 0), RankPlace(0, 1, 0, 1, 0, 1)))]

def cancel():
    for process in psutil.Process().children(recursive=True):
        if "ringtrain_clusters.tasks.rank" in process.cmdline():
            process.kill()

options = TaskRunOptions(TaskScheduler("Here", "127.0.0.1", "pickle"), 1, None, TaskRunOutput(None, None, 0, "logs"))
work = pickled_by("pickle", train.train, (sys.argv[1],), None)
run_in_tasks(options, work, ScheduledTasks(run, cancel, lambda _: None))
"""


def test_ranks_save_when_the_driver_is_interrupted(tmp_path: Path) -> None:
    """Ranks get one stop request before their tasks are cancelled."""
    (tmp_path / "train.py").write_text(RANK)
    (tmp_path / "driver.py").write_text(DRIVER)
    log = tmp_path / "log"
    driver = subprocess.Popen([sys.executable, "driver.py", str(log)], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    until("the rank", lambda: driver.poll() is not None or (log.exists() and log.read_text() == "ready\n"))
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=DEADLINE_S)
    assert log.read_text().split() == ["ready", "SIGTERM", "saved"], err
    assert "KeyboardInterrupt" in err
