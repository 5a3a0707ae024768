"""Rank, size and local rank of a rank in a task."""

from ringtrain_clusters.tasks.plan import Task, task_place_variables, task_places


def test_variables_of_horovod_and_ours_agree() -> None:
    """A rank in a task finds the same place under each name; its agent, which has one rank, knows another."""
    found = task_places([Task(0, "a", "10.0.0.1"), Task(1, "b", "10.0.0.2"), Task(2, "a", "10.0.0.1")])
    told = task_place_variables(found[2])
    for name, value in {"RANK": 1, "SIZE": 3, "LOCAL_RANK": 1, "LOCAL_SIZE": 2, "CROSS_SIZE": 1}.items():
        assert told[f"RINGTRAIN_{name}"] == told[f"HOROVOD_{name}"] == str(value)
    assert (told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == ("1", "2")
