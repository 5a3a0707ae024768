"""A world of 20,000 ranks, of which this machine has one: its agent starts it, and it knows its peers."""

import sys
from collections.abc import Callable

import pytest
from support.gang import GangProcesses, until
from support.scripted_launcher import ScriptedLauncher

from ringtrain_job.control.model import Form, Member, Prepare, Start, World

SIZE = 20_000
RING = tuple(f"job-worker-{rank}.job.default.svc:7400" for rank in range(SIZE))
TF = tuple(f"job-worker-{rank}.job.default.svc:7500" for rank in range(SIZE))

RANK = """
import json, os, subprocess
from ringtrain._core.process_groups.formations import own_agent
from ringtrain._core.world.agent_socket import WorldReadiness
from ringtrain._core.world.config import WorkerConfig

agent = own_agent()
if agent is not None:
    os.environ.update(agent.next_world(WorldReadiness()))
config = WorkerConfig.from_env(os.environ)
with open(os.environ["RINGTRAIN_WORLD_FILE"]) as file:
    world = json.load(file)
child = subprocess.run(["true"]).returncode
ring = config.addresses
print(config.place.rank, config.place.size, ring[0], ring[-1], world["tfAddresses"][-1], child, flush=True)
"""


def _start(launcher: ScriptedLauncher) -> None:
    launcher.give(Start(World(1, RING, TF, "job-worker-0", 7390)))


def _form(launcher: ScriptedLauncher) -> None:
    launcher.give(Prepare(1, (0,)))
    launcher.until(0, parked=True)
    members = tuple(Member(slot, 1) for slot in range(SIZE))
    launcher.give(Form(World(1, RING, TF, "job-worker-0", 7390, 1, members), (0,)))


@pytest.mark.parametrize(
    ("begin", "settings"), [(_start, {}), (_form, {"RINGTRAIN_ELASTIC": "Replace"})], ids=["fixed", "elastic"]
)
def test_an_agent_starts_a_rank_of_a_large_world(
    gang: Callable[..., GangProcesses], begin: Callable[[ScriptedLauncher], None], settings: dict[str, str]
) -> None:
    """Its addresses are longer than any variable may be: the rank reads them from a file, can start programs of
    its own, and the file is gone with the agent."""
    job = gang(1, 1, **{"RINGTRAIN_TIMEOUT": "30", **settings})
    launcher = ScriptedLauncher(job)
    try:
        agent = job.agent(0, sys.executable, "-c", RANK, RINGTRAIN_NUM_WORKERS=str(SIZE))
        launcher.until_registered(0)
        begin(launcher)
        until("the rank has said where it is", lambda: job.rank_log(0).endswith(b"\n"))
        assert job.rank_log(0).decode() == f"0 {SIZE} {RING[0]} {RING[-1]} {TF[-1]} 0\n"
        assert len(list(job.directory.glob("ringtrain-world-*/*.json"))) == 1
        agent.send(15)
        agent.wait()
        assert not list(job.directory.glob("ringtrain-world-*"))
    finally:
        launcher.close()
