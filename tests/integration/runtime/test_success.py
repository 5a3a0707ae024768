"""A gang that succeeds: what ranks find, what files hold, what the launcher says."""

import json
import re
from collections.abc import Callable

from support.gang import GangProcesses, until

TRAIN = """
import json, os, sys, time
from ringtrain.report import report
rank = int(os.environ["RANK"])
print("rank", rank, "starts")
print("a complaint of rank", rank, file=sys.stderr)
for step in range(1, 4):
    report(step, total_steps=3, samples=10, loss=1 / step, unit="images", metrics={"accuracy": 0.5})
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
         "TF_CONFIG", "RINGTRAIN_RANK", "RINGTRAIN_SIZE", "RINGTRAIN_LOCAL_RANK", "RINGTRAIN_LOCAL_SIZE",
         "RINGTRAIN_CROSS_RANK", "RINGTRAIN_CROSS_SIZE", "RINGTRAIN_RING_ADDRESSES", "RINGTRAIN_GENERATION",
         "RINGTRAIN_ATTEMPT", "RINGTRAIN_TIMEOUT", "RINGTRAIN_JOB_NAME", "RINGTRAIN_JOB_NAMESPACE",
         "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS")
print(json.dumps({name: os.environ[name] for name in names}))
gate = os.environ["GATE"]
while not os.path.exists(gate):
    time.sleep(0.02)
"""


def test_a_gang_from_barrier_to_success(gang: Callable[..., GangProcesses]) -> None:
    """Ranks find their world, /status follows them, files and messages hold what the contract says."""
    job = gang(2, 2, RINGTRAIN_TIMEOUT="30", OMP_NUM_THREADS="1")
    gate = job.directory / "gate"
    job.settings["GATE"] = str(gate)
    launcher, agents = job.launcher(), job.agents(*job.python(TRAIN))
    until("all lines stored", lambda: (status := job.status()) and status["logs"]["lines"] == 12)
    status = until("progress", lambda: (s := job.status())["progress"] and s["progress"]["step"] == 3 and s)
    assert status["phase"] == "Running"
    assert [worker["pod"] for worker in status["workers"]] == ["job-worker-0", "job-worker-1"]
    assert [rank["state"] for rank in status["ranks"]] == ["Running"] * 4
    brief = json.loads(job.get("/status?brief"))
    assert brief["workers"] == [{"index": 0, "to": 1, "registered": True, "lost": False}]
    assert status["progress"]["totalSteps"] == 3
    assert status["progress"]["unit"] == "images"
    assert status["progress"]["metrics"] == {"accuracy": 0.5}
    metrics = job.get("/metrics")
    assert re.search(r"^ringtrain_workers_registered{.*} 2.0$", metrics, re.M)
    assert re.search(r'^ringtrain_ranks{.*state="Running"} 4.0$', metrics, re.M)
    assert re.search(r"^ringtrain_log_lines_total{.*} 12.0$", metrics, re.M)
    assert job.get("/healthz") == "ok\n"
    gate.touch()
    assert [launcher.wait(), *(agent.wait() for agent in agents)] == [0, 0, 0]
    ended = {"version": 1, "attempt": 1, "outcome": "Succeeded", "worldSize": 4, "ranksSucceeded": 4}
    last_words = launcher.message()
    assert last_words.pop("progress")["step"] == 3
    assert (last_words.pop("logLines"), last_words.pop("rankLogLines")) == (12, [3, 3, 3, 3])
    ended["warning"] = last_words["warning"]  # they only wait for each other by a file
    assert "each trained independently" in last_words["warning"]
    assert last_words == ended
    assert [agent.message() for agent in agents] == [ended, ended]
    worlds = [_check_rank(job, rank) for rank in range(4)]
    assert len({tuple(world) for world in worlds}) == 1
    assert len(set(worlds[0])) == 4
    assert sorted(job.job_log()) == sorted(
        b"[%d] %s" % (rank, line) for rank in range(4) for line in job.rank_log(rank).splitlines()
    )
    assert launcher.out().count("a complaint of rank") == 4
    assert "total images/sec: " in launcher.out()
    rows = [json.loads(row) for row in (job.logs / "metrics.jsonl").read_text().splitlines()]
    assert sorted((row["rank"], row["step"]) for row in rows) == [(r, s) for r in range(4) for s in (1, 2, 3)]
    assert {row["attempt"] for row in rows} == {1}


def _check_rank(job: GangProcesses, rank: int) -> list[str]:
    lines = job.rank_log(rank).decode().splitlines()
    assert lines[:2] == [f"rank {rank} starts", f"a complaint of rank {rank}"]
    env = json.loads(lines[2])
    place = {name: env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")}
    local, worker = str(rank % 2), str(rank // 2)
    assert list(place.values()) == [str(rank), local, "4", "2", worker]
    assert (env["RINGTRAIN_RANK"], env["RINGTRAIN_SIZE"]) == (str(rank), "4")
    assert (env["RINGTRAIN_LOCAL_RANK"], env["RINGTRAIN_LOCAL_SIZE"]) == (local, "2")
    assert (env["RINGTRAIN_CROSS_RANK"], env["RINGTRAIN_CROSS_SIZE"]) == (worker, "2")
    assert (env["RINGTRAIN_GENERATION"], env["RINGTRAIN_ATTEMPT"], env["RINGTRAIN_TIMEOUT"]) == ("1", "1", "30")
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["MASTER_ADDR"] == "127.0.0.1"
    tf = json.loads(env["TF_CONFIG"])
    assert tf["task"] == {"type": "worker", "index": rank}
    assert len(set(tf["cluster"]["worker"])) == 4
    addresses: list[str] = env["RINGTRAIN_RING_ADDRESSES"].split(",")
    return addresses
