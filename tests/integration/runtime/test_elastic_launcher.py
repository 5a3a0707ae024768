"""An elastic job: launcher, agents and ranks as processes, and what happens to its world when some of them end."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import elastic_rank
from support.asking import ask
from support.gang import GangProcesses, PodProcess, until

RANK = (sys.executable, str(Path(elastic_rank.__file__)))
MakeGang = Callable[..., GangProcesses]


class ElasticJob:
    """Workers with one slot each, all started, in formation 1."""

    def __init__(self, gang: MakeGang, on_loss: str, workers: int = 3, **settings: str) -> None:
        elastic = {
            "RINGTRAIN_ELASTIC": on_loss,
            "RINGTRAIN_ELASTIC_MIN_RANKS": "1",
            "RINGTRAIN_ELASTIC_JOIN_DELAY": "0.2",
            "RINGTRAIN_TIMEOUT": "12",
        }
        self.job = gang(workers, 1, **{**elastic, **settings})
        self.job.settings["DIRECTORY"] = str(self.job.directory)
        self.launcher = self.job.launcher()
        started = int(settings.get("RINGTRAIN_ELASTIC_START_RANKS", workers))
        self.agents = {index: self.agent(index) for index in range(started)}
        self.until_formed(1, range(started))

    def agent(self, index: int) -> PodProcess:
        """A new pod of a worker."""
        return self.job.agent(index, *RANK)

    def worlds(self, slot: int) -> list[tuple[int, int, int, int]]:
        """Formation, rank, size and process id of each world that a slot was told."""
        found = re.findall(rb"^formation (\d+) rank (\d+) of (\d+) .* pid (\d+)$", self.job.rank_log(slot), re.M)
        return [(int(formation), int(rank), int(size), int(pid)) for formation, rank, size, pid in found]

    def until_formed(self, formation: int, slots: Any) -> dict[int, int]:
        """Wait for a formation of `slots`, by rank; returns their process ids."""
        slots = list(slots)

        def formed() -> bool:
            worlds = {slot: self.worlds(slot) for slot in slots}
            return all(
                found and found[-1][:3] == (formation, rank, len(slots))
                for rank, found in enumerate(worlds[slot] for slot in slots)
            )

        try:
            until(f"formation {formation} of {slots}", formed)
        except AssertionError as exc:
            raise AssertionError(f"{exc}; {self.launcher.err()}; {[self.worlds(slot) for slot in slots]}") from None
        return {slot: self.worlds(slot)[-1][3] for slot in slots}

    def pid(self, slot: int) -> int:
        return self.worlds(slot)[-1][3]

    def tell(self, word: str, slot: int) -> None:
        (self.job.directory / f"{word}-{slot}").touch()

    def elastic(self) -> Any:
        """The part of `/status` that is about the world."""
        return (self.job.status() or {}).get("elastic")

    def until_elastic(self, **wanted: object) -> Mapping[str, Any]:
        """Wait until `/status` says so; returns all that it says."""
        found = until(str(wanted), lambda: (said := self.elastic()) and wanted.items() <= said.items() and said)
        return dict(found)

    def put(self, path: str, body: bytes) -> tuple[int, str]:
        return ask(f"http://127.0.0.1:{self.job.status_port}{path}", body, "PUT")

    def finish(self, *slots: int) -> Any:
        """Have the ranks end with 0; returns the launcher's termination message."""
        for slot in slots:
            self.tell("end", slot)
        assert self.launcher.wait() == 0, self.launcher.err()
        return self.launcher.message()


def test_a_killed_rank_is_replaced_and_the_others_keep_their_processes(gang: MakeGang) -> None:
    """One formation more; the status says what it cost, the log who was lost, the message that all succeeded."""
    job = ElasticJob(gang, "Replace")
    before = job.until_formed(1, [0, 1, 2])
    os.kill(before[0], signal.SIGKILL)
    after = job.until_formed(2, [1, 2, 0])
    assert {slot: after[slot] for slot in (1, 2)} == {slot: before[slot] for slot in (1, 2)}
    said = job.until_elastic(formation=2, phase="Running", ranks=3, recoveries=1, lostSteps=1, degraded=False)
    assert said["lastRecoverySeconds"] > 0
    assert "generation 1 has lost a rank: rank 0 was killed by SIGKILL; preparing generation 2" in job.launcher.err()
    metrics = job.job.get("/metrics")
    assert re.search(r"^ringtrain_formation{.*} 2.0$", metrics, re.M)
    assert re.search(r"^ringtrain_recoveries_total{.*} 1.0$", metrics, re.M)
    message = job.finish(0, 1, 2)
    assert (message["outcome"], message["worldSize"], message["ranksSucceeded"]) == ("Succeeded", 3, 3)


def test_a_stopped_rank_that_does_not_leave_is_killed_before_the_next_world(gang: MakeGang) -> None:
    """Nobody is told of a world while the stopped process may wake up in the former one."""
    job = ElasticJob(gang, "Replace", RINGTRAIN_TIMEOUT="4")
    before = job.until_formed(1, [0, 1, 2])
    os.kill(before[1], signal.SIGSTOP)
    os.kill(before[2], signal.SIGKILL)
    after = job.until_formed(2, [0, 1, 2])
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_pod_that_is_asked_to_stop_costs_no_step(gang: MakeGang) -> None:
    """Its rank leaves at a commit with the others, and ends; a new pod joins."""
    job = ElasticJob(gang, "Replace")
    job.agents[2].send(signal.SIGTERM)
    job.until_formed(2, [0, 1])
    said = job.until_elastic(formation=2, phase="Running")
    assert (said["lostSteps"], said["recoveries"]) == (0, 0)
    assert job.agents[2].wait() == 128 + signal.SIGTERM
    assert b"change 2 later" in job.job.rank_log(0)
    job.agents[2] = job.agent(2)
    job.until_formed(3, [0, 1, 2])


def test_the_number_of_workers_is_put(gang: MakeGang) -> None:
    """More come, fewer leave, and what is out of bounds is refused with the bounds."""
    job = ElasticJob(gang, "Replace", RINGTRAIN_ELASTIC_START_RANKS="1", RINGTRAIN_ELASTIC_MAX_RANKS="2")
    job.agents[1] = job.agent(1)
    assert job.put("/workers", b'{"workers": 2}')[0] == 204
    job.until_formed(2, [0, 1])
    assert job.put("/workers", b'{"workers": 3}') == (
        422,
        "workers is 3, which is 3 ranks; expected 1 to 2 ranks\n",
    )
    assert job.put("/workers", b'{"workers": true}')[0] == 422
    assert job.put("/workers", b"many")[0] == 422
    assert job.put("/ranks", b"{}")[0] == 404
    assert job.put("/workers", b'{"workers": 1}')[0] == 204
    job.until_formed(3, [0])
    until("the rank that is not wanted leaves", lambda: b"leaves:" in job.job.rank_log(1))


@pytest.mark.parametrize("phase", ["Running", "Preparing"])
def test_the_launcher_is_killed(gang: MakeGang, phase: str) -> None:
    """Its next process knows the world and repeats the phase; nobody leaves a world for it."""
    job = ElasticJob(gang, "Replace")
    before = job.until_formed(1, [0, 1, 2])
    if phase == "Preparing":
        job.agents[1].kill()
        until("the loss is seen", lambda: job.elastic()["phase"] == "Preparing")
    job.launcher.kill()
    job.launcher = job.job.launcher()
    if phase == "Preparing":
        job.agents[1] = job.agent(1)
        after = job.until_formed(2, [0, 2, 1])
        assert (after[0], after[2]) == (before[0], before[2])
    else:
        job.until_elastic(formation=1, phase="Running")
        until("all agents are back", lambda: all(w["registered"] for w in job.job.status()["workers"]))
        os.kill(before[1], signal.SIGKILL)
        after = job.until_formed(2, [0, 2, 1])
        assert (after[0], after[2]) == (before[0], before[2])
    assert job.finish(0, 1, 2)["outcome"] == "Succeeded"


def test_a_newcomer_that_has_the_state_waits_for_nobody(gang: MakeGang) -> None:
    """It has got all of it in a world whose other member is silent since: it says so, and goes on."""
    job = ElasticJob(
        gang,
        "Shrink",
        workers=2,
        RINGTRAIN_ELASTIC_START_RANKS="1",
        RINGTRAIN_TIMEOUT="8",
        RINGTRAIN_ELASTIC_REPLACE_TIMEOUT="600",
    )
    for word, slot in (("idle", 0), ("idle", 1), ("adopted", 1)):
        job.tell(word, slot)
    job.agents[1] = job.agent(1)
    assert job.put("/workers", b'{"workers": 2}')[0] == 204
    before = job.until_formed(2, [0, 1])
    job.agents[0].send(signal.SIGSTOP)
    os.kill(before[0], signal.SIGSTOP)
    job.tell("flee", 1)
    assert job.until_formed(3, [1]) == {1: before[1]}
    assert "has the training state" not in job.launcher.err()
    job.agents[0].kill()
    assert job.finish(1)["outcome"] == "Succeeded"


def test_a_pod_that_is_confirmed_gone_is_not_waited_for(gang: MakeGang) -> None:
    """The operator knows before the silence has lasted; and an agent of that pod is not taken in again. So many
    pods may have ended as a job may have workers."""
    job = ElasticJob(gang, "Shrink", workers=2, RINGTRAIN_TIMEOUT="600", RINGTRAIN_INCARNATION="1")
    job.agents[1].kill()
    gone = {str(index): 1 for index in range(1, 4096)}
    assert job.put("/workers", json.dumps({"workers": 2, "gone": gone}).encode())[0] == 204
    job.until_formed(2, [0])
    late = job.agent(1)
    assert late.wait() == 69
    assert "of incarnation 1 has ended according to the operator" in late.err()
    job.agents[1] = job.job.agent(1, *RANK, RINGTRAIN_INCARNATION="2")
    job.until_formed(3, [0, 1])
    assert job.put("/workers", b'{"workers": 2, "gone": {"one": 1}}')[0] == 422
    assert job.finish(0, 1)["outcome"] == "Succeeded"


@pytest.mark.parametrize(
    ("logs", "lost"),
    [("kept", False), ("gone", False), ("gone", True)],
    ids=["logs-kept", "logs-gone", "logs-gone-and-a-rank-lost"],
)
def test_the_launchers_pod_is_lost(gang: MakeGang, logs: str, lost: bool) -> None:
    """Asked to stop with its pod it leaves the ranks running; the next launcher learns the world from the agents,
    makes a later formation of the same processes if it must, and says which lines are gone."""
    job = ElasticJob(gang, "Replace")
    before = job.until_formed(1, [0, 1, 2])
    job.launcher.send(signal.SIGTERM)
    assert job.launcher.wait() == 128 + signal.SIGTERM
    assert job.launcher.message()["outcome"] == "Stopped"
    if lost:
        os.kill(before[1], signal.SIGKILL)
    settings = {"RINGTRAIN_ELASTIC_FORMATION": "1"}
    if logs == "gone":
        settings["RINGTRAIN_LOG_DIR"] = str(job.job.directory / "other")
        job.job.logs = job.job.directory / "other" / "default" / "job" / "1"
    job.launcher = job.job.launcher(**settings)
    if lost or logs == "gone":
        after = job.until_formed(2, [0, 2, 1] if lost else [0, 1, 2])
        survivors = (0, 2) if lost else (0, 1, 2)
        assert {slot: after[slot] for slot in survivors} == {slot: before[slot] for slot in survivors}
        assert job.until_elastic(formation=2, phase="Running", ranks=3)
    else:
        job.until_elastic(formation=1, phase="Running", ranks=3)
    said = "are missing: they were lost with an earlier launcher's files"
    assert job.finish(0, 1, 2)["ranksSucceeded"] == 3
    assert (said.encode() in job.job.rank_log(0)) == (logs == "gone")


def test_a_launcher_that_is_asked_to_stop_with_all_workers_ends_the_attempt(gang: MakeGang) -> None:
    """The whole job goes: ranks are stopped at once, and none waits for a launcher that will not come."""
    job = ElasticJob(gang, "Replace", workers=2)
    for pod in (*job.agents.values(), job.launcher):
        pod.send(signal.SIGTERM)
    assert job.launcher.wait() == 128 + signal.SIGTERM
    assert [agent.wait() for agent in job.agents.values()] == [128 + signal.SIGTERM] * 2


def test_restart_with_a_lost_pod(gang: MakeGang) -> None:
    """The other pods stay, and all ranks begin when the new pod is there."""
    job = ElasticJob(gang, "Restart")
    job.agents[2].kill()
    until("the loss is seen", lambda: job.elastic()["phase"] == "Preparing")
    job.agents[2] = job.agent(2)
    job.until_formed(2, [0, 1, 2])
    assert job.finish(0, 1, 2)["outcome"] == "Succeeded"


def test_a_program_that_always_fails_ends_the_attempt(gang: MakeGang) -> None:
    """Three lives, then the rank's own exit code and cause."""
    job = ElasticJob(gang, "Restart")
    job.tell("fail", 1)
    assert job.launcher.wait() == 3
    failure = job.launcher.message()["failure"]
    assert (failure["rank"], failure["exitCode"], failure["reason"]) == (1, 3, "RankFailed")
    assert failure["message"] == "rank 1 exited with 3, three times without a completed step in between"


@pytest.mark.parametrize("on_loss", ["Replace", "Restart"])
def test_a_program_that_does_not_exist_is_tried_once(gang: MakeGang, on_loss: str) -> None:
    """The reason is that of other jobs: no other process would find the program."""
    job = gang(2, 1, RINGTRAIN_ELASTIC=on_loss, RINGTRAIN_ELASTIC_MIN_RANKS="1", RINGTRAIN_ELASTIC_JOIN_DELAY="0.2")
    launcher, _ = job.launcher(), [job.agent(index, "/no/program") for index in range(2)]
    assert launcher.wait() == 127
    failure = launcher.message()["failure"]
    assert failure["reason"] == "CannotStart"
    why = "exited with 127: ringtrain: cannot execute /no/program: No such file or directory"
    assert failure["message"] in [f"rank {rank} {why}" for rank in range(2)]


def test_too_few_ranks_for_too_long(gang: MakeGang) -> None:
    """The attempt fails as one that lost a worker, and says how long it has waited."""
    times = {"RINGTRAIN_ELASTIC_REPLACE_TIMEOUT": "0.5", "RINGTRAIN_START_TIMEOUT": "15", "RINGTRAIN_TIMEOUT": "4"}
    job = ElasticJob(gang, "Replace", workers=2, RINGTRAIN_ELASTIC_MIN_RANKS="2", **times)
    job.agents[1].kill()
    assert job.launcher.wait() == 75
    failure = json.loads(json.dumps(job.launcher.message()["failure"]))
    assert (failure["reason"], failure["pod"]) == ("AgentLost", "job-worker-1")
    assert failure["message"].startswith("fewer than 2 ranks for 15.5 s: worker 1 (pod job-worker-1")


def test_a_rank_that_has_finished_is_not_started_again(gang: MakeGang) -> None:
    """It ends with 0 after an order that lists its slot; when the other has finished, the job has."""
    job = ElasticJob(gang, "Replace", RINGTRAIN_ELASTIC_START_RANKS="2", RINGTRAIN_ELASTIC_MAX_RANKS="3")
    for slot in (0, 1):
        job.tell("deaf", slot)
    job.agents[2] = job.agent(2)
    assert job.put("/workers", b'{"workers": 3}')[0] == 204
    job.until_elastic(phase="Preparing")
    job.tell("end", 0)
    until("rank 0 has finished", lambda: job.job.status()["ranks"][0]["state"] == "Succeeded")
    message = job.finish(1)
    assert (message["outcome"], message["worldSize"], message["ranksSucceeded"]) == ("Succeeded", 2, 2)
    assert b"process 2 of slot 0" not in job.job.rank_log(0)
