"""Variables of the ranks of a generation."""

from dataclasses import replace

from support.small_job import of_agent

from ringtrain._core.world.config import WorkerConfig
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.rank_env import generation_variables, rank_variables, slot_environment
from ringtrain_job.control.model import Member, World

CONFIG = AgentConfig.from_env(of_agent(ELASTIC="Shrink"))


def world(*slots: int) -> World:
    addresses = tuple(f"w{slot // 2}:{slot}" for slot in slots)
    return World(2, addresses, addresses, "w1", 7390, 4, tuple(Member(slot, 1) for slot in slots))


def test_a_whole_world_has_the_variables_of_a_gang() -> None:
    """With all slots in order, only its number distinguishes a generation from the world of a job that is not
    elastic."""
    whole = world(*range(6))
    own = generation_variables(CONFIG, whole, 3)
    assert (own.pop("RINGTRAIN_FORMATION"), own.pop("RINGTRAIN_SLOT")) == ("4", "3")
    assert own.pop("RINGTRAIN_COMMITTED") == "0"
    assert own["RINGTRAIN_GENERATION"] == "2000004"
    assert own == rank_variables(CONFIG, whole, 3)
    fixed = replace(whole, formation=0, members=())
    assert rank_variables(CONFIG, fixed, 3) == {**own, "RINGTRAIN_GENERATION": "2"}


def test_places_in_a_world_with_gaps() -> None:
    """Pods count in the order of their first ranks: worker 1 first, then half of 0. Local ranks are those of the
    slots."""
    formed = world(2, 3, 1)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    cross = ("RINGTRAIN_CROSS_RANK", "RINGTRAIN_CROSS_SIZE")
    found = {slot: generation_variables(CONFIG, formed, slot) for slot in (2, 3, 1)}
    assert {slot: [int(own[name]) for name in (*names, *cross)] for slot, own in found.items()} == {
        2: [0, 3, 0, 2, 0, 0, 2],
        3: [1, 3, 1, 2, 0, 0, 1],
        1: [2, 3, 1, 1, 1, 1, 2],
    }


def test_a_process_keeps_its_local_rank_and_a_newcomer_takes_the_free_one() -> None:
    """Devices are chosen by it: no two processes of a pod have the same, whichever is lost and replaced. Each
    knows its pod."""
    chosen: dict[int, set[str]] = {}
    for slots in ((2, 3, 4), (3, 4), (3, 2, 4), (3, 5, 4)):
        formed = world(*slots)
        configs = {}
        for slot in slots:
            config = replace(CONFIG, index=slot // 2)
            variables = generation_variables(config, formed, slot)
            chosen.setdefault(slot, set()).add(variables["LOCAL_RANK"])
            assert variables["RINGTRAIN_LOCAL_RANK"] == variables["LOCAL_RANK"]
            configs[slot] = WorkerConfig.from_env(variables)
        assert {slot: config.pod for slot, config in configs.items()} == {slot: slot // 2 * 2 for slot in slots}
    assert chosen == {2: {"0"}, 3: {"1"}, 4: {"0"}, 5: {"1"}}


def test_a_process_that_lives_on_starts_without_a_place() -> None:
    """The process does not get variables of the pod that describe a world; it gets all others."""
    left_over = {"RANK": "7", "WORLD_SIZE": "9", "TF_CONFIG": "{}", "HOME": "/"}
    found = slot_environment(CONFIG, 3, "/run/3-1", left_over, cores=4)
    assert found["HOME"] == "/"
    assert (found["RINGTRAIN_SLOT"], found["RINGTRAIN_AGENT_SOCKET"]) == ("3", "/run/3-1")
    assert found["RINGTRAIN_ATTEMPT"] == "2"
    job = {"RINGTRAIN_ATTEMPT", "RINGTRAIN_TIMEOUT", "RINGTRAIN_JOB_NAME", "RINGTRAIN_JOB_NAMESPACE"}
    told_later = generation_variables(CONFIG, world(3), 3)
    assert told_later.keys() & found.keys() == {*job, "RINGTRAIN_SLOT"}
