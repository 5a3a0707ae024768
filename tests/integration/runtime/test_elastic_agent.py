"""An agent of an elastic job: its ranks are started, told their worlds, and ended one by one."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support import elastic_rank
from support.gang import GangProcesses, pid_runs, runs, until
from support.scripted_launcher import ScriptedLauncher

from ringtrain_job.control.model import (
    Failure,
    Outcome,
    Prepare,
    RankPhase,
    RankState,
    Reason,
    Release,
    Stop,
    Verdict,
)

RANK = (sys.executable, str(Path(elastic_rank.__file__)))
SUCCEEDED = Verdict(Outcome.SUCCEEDED, 0, 2)
ALL = (0, 1)


class Pod:
    """One agent with two slots, and the test as its launcher."""

    def __init__(self, job: GangProcesses) -> None:
        self.job = job
        self.launcher = ScriptedLauncher(job)
        self.agent = job.agent(0, *RANK)
        self.launcher.until_registered(0)

    def told(self, slot: int) -> list[str]:
        """Return the lines in which a slot's processes log what they received, without their process ids."""
        return re.sub(r" pid \d+$", "", self.job.rank_log(slot).decode(), flags=re.MULTILINE).splitlines()

    def pid(self, slot: int) -> int:
        """Process id of the newest process that said anything in a slot."""
        return int(re.findall(rb" pid (\d+)$", self.job.rank_log(slot), flags=re.MULTILINE)[-1])

    def until_told(self, slot: int, line: str) -> None:
        until(f"slot {slot} says {line!r}", lambda: line in self.told(slot))

    def tell(self, word: str, slot: int) -> None:
        (self.job.directory / f"{word}-{slot}").touch()

    def parked(self, *slots: int, life: int = 1) -> None:
        for slot in slots:
            self.launcher.until(slot, parked=True, life=life)

    def assemble(self) -> None:
        """Formation 1 of both slots."""
        self.launcher.give(Prepare(1, ALL))
        self.parked(*ALL)
        self.launcher.form(1, [(0, 1), (1, 1)], ALL)
        for slot in ALL:
            self.until_told(slot, f"formation 1 rank {slot} of 2 generation 1000001")

    def end(self, verdict: Verdict = SUCCEEDED) -> int:
        self.launcher.give(Stop(verdict))
        until("all lines handed over", self.launcher.gang.all_drained)
        self.launcher.give(Release(verdict))
        return self.agent.wait()


MakePod = Callable[..., Pod]


@pytest.fixture
def pod(gang: Callable[..., GangProcesses]) -> Iterator[MakePod]:
    made: list[Pod] = []

    def make(on_loss: str = "Replace", **settings: str) -> Pod:
        job = gang(1, 2, RINGTRAIN_ELASTIC=on_loss, **{"RINGTRAIN_TIMEOUT": "30", **settings})
        job.settings["DIRECTORY"] = str(job.directory)
        made.append(Pod(job))
        return made[-1]

    yield make
    for one in made:
        one.launcher.close()


def ended(state: RankState) -> tuple[RankPhase, int | None, str, int]:
    return state.phase, state.exit_code, state.signal, state.life


def test_a_killed_rank_is_replaced(pod: MakePod) -> None:
    """The survivor's process goes through three formations; the slot's log goes on; lives are counted."""
    one = pod()
    one.assemble()
    survivor = one.pid(0)
    os.kill(one.pid(1), signal.SIGKILL)
    state = one.launcher.until(1, RankPhase.FAILED)
    assert ended(state) == (RankPhase.FAILED, 137, "SIGKILL", 1)
    assert state.formation == 1
    one.launcher.give(Prepare(2, ALL, urgent=True))
    one.parked(0)
    one.parked(1, life=2)
    assert one.launcher.state(0).lost_steps == 1
    one.launcher.form(2, [(0, 1), (1, 2)], ALL)
    for slot in ALL:
        one.until_told(slot, f"formation 2 rank {slot} of 2 generation 1000002")
        one.launcher.until(slot, joined=True)
    until("commits are told", lambda: all(one.launcher.state(slot).committed for slot in ALL))
    one.launcher.give(Prepare(3, (0,)))
    one.parked(1, life=2)  # until the next world is made: what it holds may be needed
    one.launcher.form(3, [(0, 1)], (0,))
    assert ended(one.launcher.until(1, RankPhase.STOPPED)) == (RankPhase.STOPPED, 0, "", 2)
    one.until_told(0, "formation 3 rank 0 of 1 generation 1000003")
    assert one.pid(0) == survivor
    assert one.told(0)[1:] == [
        "change 2 urgent",
        "formation 2 rank 0 of 2 generation 1000002",
        "change 3 later",
        "formation 3 rank 0 of 1 generation 1000003",
    ]
    assert one.told(1) == [
        "formation 1 rank 1 of 2 generation 1000001",
        "[ringtrain] process 2 of slot 1 begins",
        "formation 2 rank 1 of 2 generation 1000002",
        "change 3 later",
        "leaves: the next generation does not use this slot",
    ]
    assert one.end() == 0
    assert one.launcher.store.dropped == 0


def test_what_a_lost_rank_has_started_ends_with_it(pod: MakePod) -> None:
    """Whatever session it is in, though other ranks go on: it would keep devices from the next process."""
    one = pod()
    one.tell("child", 1)
    one.assemble()
    (child,) = re.findall(r"^child (\d+) pid", one.job.rank_log(1).decode(), flags=re.MULTILINE)
    os.kill(one.pid(1), signal.SIGKILL)
    one.launcher.until(1, RankPhase.FAILED)
    until("the child is gone", lambda: not pid_runs(int(child)))
    assert pid_runs(one.pid(0))
    assert one.end() == 0


def test_a_loss_is_not_mended_before_the_launcher_says_so(pod: MakePod) -> None:
    """While the order is the formation that the rank was a member of, its slot stays as it ended."""
    one = pod()
    one.assemble()
    one.tell("fail", 1)
    state = one.launcher.until(1, RankPhase.FAILED)
    assert ended(state) == (RankPhase.FAILED, 3, "", 1)
    one.launcher.form(1, [(0, 1), (1, 1)], (0, 1))  # once more: an order may come again
    one.tell("end", 0)
    one.launcher.until(0, RankPhase.SUCCEEDED)
    assert ended(one.launcher.state(1)) == (RankPhase.FAILED, 3, "", 1)
    assert one.end() == 0


@pytest.mark.parametrize("stopped", [False, True], ids=["deaf", "stopped-by-a-signal"])
def test_who_does_not_leave_is_killed(pod: MakePod, stopped: bool) -> None:
    """A rank that stays in a broken world is killed when its time is over, and said to be; a new one follows."""
    one = pod(RINGTRAIN_TIMEOUT="4")
    one.assemble()
    one.tell("deaf", 0)
    pid = one.pid(0)
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    os.kill(one.pid(1), signal.SIGKILL)
    one.launcher.until(1, RankPhase.FAILED)
    one.launcher.give(Prepare(2, (1,), urgent=True))
    state = one.launcher.until(0, RankPhase.STOPPED)
    why = "a signal stopped it in generation 1, which generation 2 replaces"
    why = why if stopped else "it did not leave generation 1 within 4 s for generation 2"
    assert (state.signal, state.message) == ("SIGKILL", f"killed: {why}")
    assert not pid_runs(pid)
    one.until_told(0, f"[ringtrain] {state.message}")
    one.parked(1, life=2)
    assert one.launcher.state(0) == one.launcher.until(0, RankPhase.STOPPED)
    one.launcher.form(2, [(1, 2)], (1,))
    one.until_told(1, "formation 2 rank 0 of 1 generation 1000002")
    assert one.end() == 0


def test_who_is_told_to_leave_and_stays(pod: MakePod) -> None:
    """It is killed, too."""
    one = pod(RINGTRAIN_TIMEOUT="4")
    one.assemble()
    one.tell("stay", 1)
    one.launcher.give(Prepare(2, (0,)))
    one.parked(1)
    one.launcher.form(2, [(0, 1)], (0,))
    state = one.launcher.until(1, RankPhase.STOPPED)
    assert state.message == "killed: it did not end within 4 s, and generation 2 does not use its slot"
    assert one.end() == 0


def test_who_was_told_to_leave_is_no_newcomer_when_its_slot_is_wanted_again(pod: MakePod) -> None:
    """While its process has not ended yet, nobody waits in the slot; then the next process does."""
    one = pod()
    one.assemble()
    one.tell("stay", 1)
    one.launcher.give(Prepare(2, (0,)))
    one.parked(1)
    one.launcher.form(2, [(0, 1)], (0,))
    one.until_told(1, "leaves: the next generation does not use this slot")
    one.launcher.until(1, parked=False, formation=0, life=1)
    one.launcher.form(2, [(0, 1)], ALL)
    (one.job.directory / "stay-1").unlink()
    one.parked(1, life=2)
    assert one.end() == 0


def test_newcomers_that_end_before_they_are_ready(pod: MakePod) -> None:
    """They are started again, each time after a longer pause; a world in being is not told of them."""
    one = pod()
    one.launcher.give(Prepare(1, (0,)))
    one.parked(0)
    one.launcher.form(1, [(0, 1)], ALL)
    one.tell("slow", 1)
    one.launcher.until(1, life=1)
    first = [child for child in one.job.descendants() if child.pid != one.pid(0)]
    assert len(first) == 1
    first[0].kill()
    one.launcher.until(1, life=2)
    (one.job.directory / "slow-1").unlink()
    one.parked(1, life=2)
    assert one.told(0) == ["formation 1 rank 0 of 1 generation 1000001"]
    one.launcher.give(Prepare(2, ALL))
    one.parked(0)
    one.launcher.form(2, [(0, 1), (1, 2)], ALL)
    one.until_told(1, "formation 2 rank 1 of 2 generation 1000002")
    assert one.end() == 0


def test_a_newcomer_that_is_stopped(pod: MakePod) -> None:
    """Another takes its slot: one that does nothing cannot keep it."""
    one = pod(RINGTRAIN_TIMEOUT="4")
    one.tell("slow", 0)
    one.launcher.give(Prepare(1, (0,)))
    one.launcher.until(0, life=1)
    (first,) = until("the process", one.job.descendants)
    first.suspend()
    (one.job.directory / "slow-0").unlink()
    one.parked(0, life=2)
    assert one.told(0)[0] == "[ringtrain] killed: a signal stopped it before it was in any generation"
    assert one.end() == 0


def test_a_pod_that_is_asked_to_stop(pod: MakePod) -> None:
    """Ranks hand over and leave by themselves, with no step lost and no signal; then the pod ends as asked."""
    one = pod()
    one.assemble()
    one.agent.send(signal.SIGTERM)
    until("the launcher knows", lambda: one.launcher.gang.view().workers[0].leaving == "SIGTERM")
    one.launcher.give(Prepare(2, ()))
    assert one.agent.wait() == 143
    for slot in ALL:
        assert one.told(slot)[1:] == ["change 2 later", "leaves: the next generation does not use this slot"]
        state = one.launcher.state(slot)
        assert (*ended(state), state.lost_steps) == (RankPhase.STOPPED, 0, "", 1, 0)
    assert one.agent.message()["outcome"] == "Stopped"


def test_the_attempt_ends_because_a_pod_is_asked_to_stop(pod: MakePod) -> None:
    """It ends as it was asked to also where the end of the attempt reaches it before it has left."""
    one = pod()
    one.assemble()
    one.agent.send(signal.SIGTERM)
    until("the launcher knows", lambda: one.launcher.gang.view().workers[0].leaving == "SIGTERM")
    failure = Failure(Reason.AGENT_LOST, "asked to stop", pod="job-worker-0", signal="SIGTERM")
    one.launcher.give(Release(Verdict(Outcome.FAILED, 143, failure=failure)))
    assert one.agent.wait() == 143
    assert one.agent.message()["outcome"] == "Stopped"


def test_a_pod_that_is_asked_again(pod: MakePod) -> None:
    """Another SIGTERM changes nothing; Ctrl-C ends the wait for the launcher."""
    one = pod()
    one.assemble()
    one.agent.send(signal.SIGTERM)
    until("the launcher knows", lambda: one.launcher.gang.view().workers[0].leaving == "SIGTERM")
    one.agent.send(signal.SIGTERM)
    one.launcher.give(Prepare(2, ()))
    for slot in ALL:
        one.until_told(slot, "change 2 later")
    one.agent.send(signal.SIGINT)
    assert one.agent.wait() == 143
    assert {one.launcher.state(slot).phase for slot in ALL} == {RankPhase.STOPPED}


def test_a_launcher_that_is_restarted(pod: MakePod) -> None:
    """The agent registers again with the true state: one rank works, one waits."""
    one = pod()
    one.launcher.give(Prepare(1, ALL))
    one.parked(*ALL)
    one.launcher.form(1, [(0, 1)], ALL)
    one.until_told(0, "formation 1 rank 0 of 1 generation 1000001")
    one.launcher.close()
    one.launcher = ScriptedLauncher(one.job)
    one.launcher.until_registered(0)
    until("commits are told", lambda: one.launcher.state(0).committed)
    assert (one.launcher.state(0).formation, one.launcher.state(0).parked) == (1, False)
    assert (one.launcher.state(1).formation, one.launcher.state(1).parked) == (0, True)
    pids = one.pid(0)
    one.launcher.give(Prepare(2, ALL, urgent=True))
    one.parked(*ALL)
    one.launcher.form(2, [(0, 1), (1, 1)], ALL)
    for slot in ALL:
        one.until_told(slot, f"formation 2 rank {slot} of 2 generation 1000002")
    assert one.pid(0) == pids
    assert one.end() == 0


def test_ranks_are_restarted_in_place(pod: MakePod) -> None:
    """Every process ends, and only then does one start in each slot, with its world in its environment."""
    one = pod("Restart")
    one.launcher.give(Prepare(1, ALL, restart=True))
    for slot in ALL:
        one.launcher.until(slot, RankPhase.WAITING)
    one.launcher.form(1, [(0, 0), (1, 0)], ALL)
    for slot in ALL:
        one.until_told(slot, f"formation 1 rank {slot} of 2 generation 1000001")
        one.launcher.until(slot, formation=1, life=1)
    survivor = psutil.Process(one.pid(0))
    os.kill(one.pid(1), signal.SIGKILL)
    one.launcher.until(1, RankPhase.FAILED)
    one.launcher.give(Prepare(2, ALL, urgent=True, restart=True))
    assert ended(one.launcher.until(0, RankPhase.STOPPED)) == (RankPhase.STOPPED, 143, "SIGTERM", 1)
    assert not runs(survivor)
    one.launcher.form(2, [(1, 1), (0, 1)], ALL)
    for rank, slot in enumerate((1, 0)):
        one.until_told(slot, f"formation 2 rank {rank} of 2 generation 1000002")
        one.launcher.until(slot, formation=2, life=2)
    assert one.end() == 0


def test_a_pod_that_takes_anothers_place(pod: MakePod) -> None:
    """Log records count on from the lost pod's: no line of the new one is taken for a repeated one."""
    one = pod()
    one.assemble()
    one.agent.kill()
    one.launcher.close()
    one.launcher = ScriptedLauncher(one.job)
    one.agent = one.job.agent(0, *RANK)
    one.launcher.until_registered(0)
    one.launcher.give(Prepare(2, ALL, urgent=True))
    one.parked(*ALL)
    one.launcher.form(2, [(0, 1), (1, 1)], ALL)
    for slot in ALL:
        one.until_told(slot, f"formation 2 rank {slot} of 2 generation 1000002")
        assert len(one.told(slot)) == 2
    assert one.end() == 0
