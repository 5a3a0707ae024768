"""Training that lives through losses: launcher, agents and ranks as processes, killed and stopped at random."""

import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.gang import GangProcesses, PodProcess, until

MakeGang = Callable[..., GangProcesses]

# Adds up a mean of ones, so that the weights are the number of committed steps if each counts once and whole.
TRAIN = """
import os, time
import numpy as np
import ringtrain as rt
from ringtrain import elastic

rt.init()
state = elastic.State(weights=np.zeros(5000), step=0)

@elastic.run
def train(state):
    print("world", os.environ["RINGTRAIN_FORMATION"], rt.size(), "pid", os.getpid(), flush=True)
    while True:
        state.step += 1
        state.weights += rt.allreduce(np.ones(5000), rt.Average)
        over = rt.allreduce(np.array([float(os.path.exists(os.environ["END"]))]), rt.Max)
        state.commit()
        print("step", state.step, flush=True)
        if over[0]:
            return
        time.sleep(0.02)

train(state)
print("done", state.step, sorted(set(state.weights.tolist())), flush=True)
"""


class Training:
    """Three workers with a rank each that train until they are told to end."""

    def __init__(self, gang: MakeGang, on_loss: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.job = gang(
            3,
            1,
            RINGTRAIN_ELASTIC=on_loss,
            RINGTRAIN_ELASTIC_MIN_RANKS="1",
            RINGTRAIN_ELASTIC_JOIN_DELAY="0.2",
            RINGTRAIN_ELASTIC_FORMATION_LIMIT="1000",
            RINGTRAIN_TIMEOUT="8",
        )
        self.end = self.job.directory / "end"
        self.job.settings["END"] = str(self.end)
        script = self.job.directory / "train.py"
        script.write_text(TRAIN)
        self.command = (sys.executable, str(script))
        self.launcher = self.job.launcher()
        self.agents: dict[int, PodProcess] = {index: self.job.agent(index, *self.command) for index in range(3)}

    def said(self, slot: int, pattern: str) -> list[str]:
        return re.findall(pattern, self.job.rank_log(slot).decode(), re.M)

    def steps(self) -> int:
        """The highest step that any rank has committed."""
        return max([0, *(int(step) for slot in range(3) for step in self.said(slot, r"^step (\d+)$")[-1:])])

    def until_steps(self, more: int) -> None:
        """Wait until the training has gone on by `more` steps."""
        begun = self.steps()
        try:
            until(f"{more} steps after {begun}", lambda: self.steps() >= begun + more, 120)
        except AssertionError as exc:
            logs = [self.job.rank_log(slot).decode()[-1500:] for slot in range(3)]
            raise AssertionError(f"{exc}\n{self.launcher.err()[-3000:]}\n{logs}") from None

    def pids(self) -> dict[int, int]:
        """The newest process of each slot that has been in a world."""
        found = {slot: self.said(slot, r"^world .* pid (\d+)$") for slot in range(3)}
        return {slot: int(pids[-1]) for slot, pids in found.items() if pids}

    def fault(self) -> None:
        """Do one thing at random."""
        what = self.random.choice(["kill", "kill", "stop", "pod", "leave", "launcher"])
        slot = self.random.randrange(3)
        # Anywhere in a step, or in what the fault before has caused.
        time.sleep(self.random.uniform(0, 1.5))
        if what in ("kill", "stop"):
            pid = self.pids().get(slot)
            if pid and Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        elif what == "launcher":
            self.launcher.kill()
            self.launcher = self.job.launcher()
        else:
            agent = self.agents[slot]
            if what == "pod":
                agent.kill()
            else:
                agent.send(signal.SIGTERM)
                agent.wait()
            self.agents[slot] = self.job.agent(slot, *self.command)


@pytest.mark.parametrize("on_loss", ["Replace", "Shrink"])
@pytest.mark.parametrize("seed", range(2))
def test_every_step_counts_once_whatever_dies(gang: MakeGang, on_loss: str, seed: int) -> None:
    """Ranks, pods and the launcher are killed, stopped and asked to leave; the weights are the number of steps."""
    training = Training(gang, on_loss, seed)
    training.until_steps(10)
    for _ in range(4):
        training.fault()
        training.until_steps(5)
    training.end.touch()
    assert training.launcher.wait(120) == 0, training.launcher.err()
    done = [line for slot in range(3) for line in training.said(slot, r"^done (\d+ \[.*\])$")]
    assert done
    for line in done:
        steps, weights = line.split(" ", 1)
        assert weights == f"[{float(steps)}]"
