"""For any events in any order: generation numbers only grow, no process is in two generations, every change ends."""

from dataclasses import replace

import pytest
from support.elastic_world import RULES, World

from ringtrain_job.launcher.elastic_end import Ruin

WAYS = {
    "replace": RULES,
    "shrink": replace(RULES, shrinks=True),
    "restart": replace(RULES, restarts=True),
}


def disturb(world: World) -> None:
    """Do one thing at random, or nothing."""
    dice = world.random
    slot, worker = dice.randrange(world.workers * world.slots), dice.randrange(world.workers)
    what = dice.choice(
        ["kill", "kill", "hold", "lose", "start", "start", "cut", "back", "leave", "launcher", "forget", "scale"]
        + ["nothing"] * 8
    )
    agent = world.agents.get(worker)
    if what == "kill":
        world.kill(slot)
    elif what == "hold":
        world.hold(slot)
    elif what == "lose":
        world.lose(worker)
    elif what == "start":
        world.start(worker)
    elif what in ("cut", "back") and agent:
        agent.cut = what == "cut"
    elif what == "leave" and agent:
        agent.leaving = True
    elif what == "launcher":
        world.restart_launcher()
    elif what == "forget" and dice.random() < 0.2:
        world.forget()
    elif what == "scale":
        world.asked = frozenset(range(dice.randint(1, world.workers) * world.slots))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block", range(4))
def test_any_order_of_faults(way: str, block: int) -> None:
    """Invariants are true at every generation, and all requested slots join when the faults end."""
    for seed in range(block * 20, block * 20 + 20):
        world = World(seed, WAYS[way])
        for worker in range(3):
            world.start(worker)
        for _ in range(150):
            disturb(world)
            world.step()
        for worker, agent in list(world.agents.items()):
            agent.cut = False
            for rank in agent.ranks.values():
                rank.held = False
            if agent.leaving:
                world.lose(worker)
        for _ in range(300):
            for worker in range(world.workers):
                world.start(worker)
            world.step()
            if world.settled() or world.end:
                break
        # Too few for too long is an end, too.
        ended = world.end and world.end.ruin in (Ruin.TOO_FEW, Ruin.NOT_ASSEMBLED)
        assert world.settled() or ended, (seed, world.state, world.end)
        assert world.orders == sorted(set(world.orders)), seed
