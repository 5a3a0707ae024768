"""The operator reads both answers of a launcher's /status alike, and the brief one stays short."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.small_job import Clock, environment

from ringtrain_job.control.model import AgentState, RankPhase, RankState, Registration
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.status import LauncherReports, StatusSnapshot
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.store import LogStore
from ringtrain_operator.observe.pods import by_index, read_report

SLOTS = 4


def config_of(workers: int, **more: str) -> LauncherConfig:
    return LauncherConfig.from_env({**environment(workers, SLOTS), **more})


def registration(index: int, incarnation: int = 0) -> Registration:
    ports = tuple(range(SLOTS))
    return Registration(
        "uid-1", 1, index, SLOTS, f"i{index}", f"digits-worker-{index}", "node", f"10.0.0.{index}", 7360,
        ports, ports, 7390, incarnation=incarnation,
    )  # fmt: skip


def answers(snapshot: StatusSnapshot) -> tuple[Any, Any]:
    """Return the answers to `/status` and `/status?brief`."""
    return json.loads(json.dumps(snapshot.status())), json.loads(json.dumps(snapshot.brief_status()))


def running(directory: Path, config: LauncherConfig) -> StatusSnapshot:
    """A launcher whose gang runs, and has reported."""
    gang = Gang(config, time.monotonic)
    for index in range(config.workers):
        gang.register(registration(index))
        ranks = range(SLOTS * index, SLOTS * (index + 1))
        gang.sync(index, f"i{index}", AgentState(tuple(RankState(rank, RankPhase.RUNNING) for rank in ranks)))
    store = LogStore(AttemptFiles.of(directory, "default", "digits", 1), "uid-1", 1)
    snapshot = StatusSnapshot(config, gang, store, LauncherReports(config.world_size))
    snapshot.running_since = snapshot.last_progress = time.time()
    with snapshot.reports as reports:
        for step in range(8):
            for rank in range(config.world_size):
                times = {"inputWait": 0.1, "reductionWait": 0.5 - 0.4 * (rank == 3)}
                reports.add(rank, {"step": step, "time": 100.0 + step, "samples": 1, "loss": 0.5, **times})
    return snapshot


def test_both_answers_say_the_same_of_the_job(tmp_path: Path) -> None:
    """All that the operator reads of the whole one, but the ranks and the pods of workers, is in the brief one."""
    snapshot = running(tmp_path, config_of(3, RINGTRAIN_DATA_WORKERS="2"))
    snapshot.data = lambda: {"wanted": 2, "registered": 0, "workers": []}
    whole, brief = map(read_report, answers(snapshot))
    assert whole.slowest["rank"] == 3
    assert whole.data["waitFraction"] is not None
    assert replace(brief, workers=(), ranks=()) == replace(whole, workers=(), ranks=())
    assert (len(whole.ranks), brief.ranks) == (3 * SLOTS, ())


def test_the_brief_answer_does_not_grow_with_the_ranks(tmp_path: Path) -> None:
    """Of 50 workers it has some digits more than of 2, where the whole one has a line for each rank."""
    sizes = []
    for workers in (2, 50):
        whole, brief = answers(running(tmp_path / str(workers), config_of(workers)))
        sizes.append((len(json.dumps(whole)), len(json.dumps(brief))))
    (few_whole, few), (many_whole, many) = sizes
    assert many_whole > 10 * few_whole
    assert many < few + 32


@pytest.mark.parametrize("is_elastic", [False, True], ids=["fixed", "elastic"])
def test_workers_that_are_alike_are_one_entry(is_elastic: bool, tmp_path: Path) -> None:
    """Of each worker is said what the whole answer says; of an elastic job's its incarnation, too."""
    config = config_of(8, **({"RINGTRAIN_ELASTIC": "Replace"} if is_elastic else {}))
    clock = Clock()
    gang = Gang(config, clock)
    gang.register(registration(0, incarnation=1 if is_elastic else 0))
    clock.now = config.silence_s + config.behind_s + 1
    for index in (1, 2, 3, 5, 6):
        gang.register(registration(index, incarnation=(2 if index == 3 else 1) if is_elastic else 0))
    store = LogStore(AttemptFiles.of(tmp_path, "default", "digits", 1), "uid-1", 1)
    whole, brief = answers(StatusSnapshot(config, gang, store, LauncherReports(config.world_size)))
    there, lost, absent = ({"registered": r, "lost": gone} for r, gone in ((True, False), (True, True), (False, False)))
    if is_elastic:
        assert brief["workers"] == [
            {"index": 0, "incarnation": 1, **lost},
            {"index": 1, "incarnation": 1, **there, "to": 2},
            {"index": 3, "incarnation": 2, **there},
            {"index": 4, **absent},
            {"index": 5, "incarnation": 1, **there, "to": 6},
            {"index": 7, **absent},
        ]
    else:
        assert brief["workers"] == [
            {"index": 0, **lost},
            {"index": 1, **there, "to": 3},
            {"index": 4, **absent},
            {"index": 5, **there, "to": 6},
            {"index": 7, **absent},
        ]
    said = [by_index(read_report(answer).workers, 8) for answer in (whole, brief)]
    states = [[(one[index]["registered"], one[index]["lost"]) for index in range(8)] for one in said]
    assert states[0] == states[1]


def test_data_workers_that_are_alike_are_one_entry(tmp_path: Path) -> None:
    """As workers are."""
    snapshot = running(tmp_path, config_of(1, RINGTRAIN_DATA_WORKERS="4"))
    served = [{"index": i, "pod": f"digits-data-{i}", "registered": i != 2} for i in range(4)]
    snapshot.data = lambda: {"wanted": 4, "registered": 3, "workers": served}
    assert answers(snapshot)[1]["data"]["workers"] == [
        {"index": 0, "registered": True, "to": 1},
        {"index": 2, "registered": False},
        {"index": 3, "registered": True},
    ]
