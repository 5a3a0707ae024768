"""Where a rank is told to be, by whoever starts it."""

from ringtrain.shared.place import RankPlace
from ringtrain_clusters.tasks.plan import Task, task_place_variables, task_places


def test_ranks_of_two_hosts() -> None:
    """Each is counted among those of its host, and among those in its position on all hosts."""
    hosts = [[0, 1, 2], [3, 4]]
    assert [RankPlace.among(hosts, rank) for rank in range(5)] == [
        RankPlace(0, 5, 0, 3, 0, 2),
        RankPlace(1, 5, 1, 3, 0, 2),
        RankPlace(2, 5, 2, 3, 0, 1),
        RankPlace(3, 5, 0, 2, 1, 2),
        RankPlace(4, 5, 1, 2, 1, 2),
    ]


def test_variables_of_horovod_and_ours_agree() -> None:
    """A rank in a task finds the same place under each name; its agent, which has one rank, knows another."""
    found = task_places([Task(0, "a", "10.0.0.1"), Task(1, "b", "10.0.0.2"), Task(2, "a", "10.0.0.1")])
    told = task_place_variables(found[2])
    for name, value in {"RANK": 1, "SIZE": 3, "LOCAL_RANK": 1, "LOCAL_SIZE": 2, "CROSS_SIZE": 1}.items():
        assert told[f"RINGTRAIN_{name}"] == told[f"HOROVOD_{name}"] == str(value)
    assert (told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == ("1", "2")
