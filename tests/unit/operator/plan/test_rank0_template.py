"""The pod of worker 0 has spec.worker.rank0Template whenever it is created, and quota counts the larger of both."""

from typing import Any

import pytest
from support.jobs import job
from support.planworld import World, settled
from support.playedkueue import PlayedKueue

FIRST = "digits-worker-0"
IMAGES = {FIRST: "first:1", "digits-worker-1": "train:1", "digits-worker-2": "train:1"}
Json = dict[str, Any]


def two_templates(resources: Json | None = None, first: Json | None = None, **spec: Any) -> Json:
    """A job of three workers whose first one runs another image with another volume."""
    made = job(workers=3, **spec)
    worker = made["spec"]["worker"]
    main = {"name": "first", "image": "first:1", "command": ["first"], "resources": first or {}}
    worker["rank0Template"] = {"spec": {"containers": [main], "volumes": [{"name": "data", "emptyDir": {}}]}}
    worker["template"]["spec"]["containers"][0]["resources"] = resources or {}
    return made


def started(**spec: Any) -> World:
    """The same job, with its gang running."""
    w = settled(two_templates(**spec))
    w.start_gang()
    return w


def images(w: World) -> dict[str, str]:
    """Images of the workers' pods by name."""
    return {name: pod["spec"]["containers"][0]["image"] for name, pod in w.pods.items() if "worker" in name}


def test_only_worker_0_has_the_template() -> None:
    """Its volumes and command are those of rank0Template; the launcher's pod is completed from the other one."""
    w = started()
    assert images(w) == IMAGES
    names = {name: {v["name"] for v in w.pods[name]["spec"]["volumes"]} for name in w.pods}
    assert [name for name, volumes in names.items() if "data" in volumes] == [FIRST]
    assert w.pods[FIRST]["spec"]["containers"][0]["command"][-1] == "first"
    assert w.pods["digits-launcher"]["spec"]["containers"][0]["image"] == "train:1"


@pytest.mark.parametrize("elastic", [None, {"maxReplicas": 4}, {"maxReplicas": 4, "onLoss": "Restart"}])
@pytest.mark.parametrize("lost", IMAGES)
def test_it_has_it_again_after_a_loss(elastic: Json | None, lost: str) -> None:
    """Whether the gang restarts or the pod is replaced within the attempt."""
    w = started(**({} if elastic is None else {"elastic": elastic}))
    if elastic is not None:
        w.world_is(1, 3)
    before = w.uids()
    w.evict(lost)
    w.run(seconds=6)
    w.go_on(seconds=60)
    assert images(w) == IMAGES
    assert w.uids()[lost] != before[lost]


def test_it_has_it_again_after_a_suspension_and_at_another_size() -> None:
    """A changed template holds from the next attempt on."""
    w = started()
    w.change(runPolicy={"suspend": True})
    w.go_on(seconds=60)
    w.pods_go()
    changed = {**w.job["spec"]["worker"], "replicas": 2}
    changed["rank0Template"]["spec"]["containers"][0]["image"] = "first:2"
    w.change(runPolicy={"suspend": False}, worker=changed)
    assert images(w) == {FIRST: "first:2", "digits-worker-1": "train:1"}


def test_a_worker_that_ran_out_of_memory_names_its_own_limit() -> None:
    """That of worker 0 is in rank0Template."""
    w = started(resources={"limits": {"memory": "1Gi"}}, first={"limits": {"memory": "2Gi"}})
    w.pod_ends(FIRST, 137, reason="OOMKilled")
    w.go_on(seconds=60)
    assert w.status.failure is not None
    assert "its container may have 2Gi" in w.status.failure.message


@pytest.mark.parametrize(
    ("all_workers", "first", "counted"),
    [
        (
            {"requests": {"cpu": "500m", "memory": "2Gi"}},
            {"requests": {"cpu": 1, "memory": "3G"}},
            {"cpu": 1, "memory": "3G"},
        ),
        ({"requests": {"cpu": 2}}, {}, {"cpu": 2}),
        ({}, {"limits": {"memory": "1Gi"}}, {"memory": "1Gi"}),
        ({"limits": {"cpu": 4}}, {"requests": {"cpu": 1}}, {"cpu": 4}),
    ],
)
def test_quota_counts_each_worker_by_the_larger_amount(all_workers: Json, first: Json, counted: Json) -> None:
    """In one pod set, whose limits are never below its requests."""
    kueue = PlayedKueue()
    settled(two_templates(all_workers, first, scheduling={"queue": "research"}), kueue=kueue)
    [workers] = [one for one in kueue.workload["spec"]["podSets"] if one["name"] == "workers"]
    [main] = workers["template"]["spec"]["containers"]
    assert (workers["count"], main["image"], main["resources"]["requests"]) == (3, "train:1", counted)
    limits = main["resources"].get("limits", {})
    assert limits == {name: counted[name] for name in limits}
