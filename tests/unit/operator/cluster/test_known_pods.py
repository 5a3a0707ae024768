"""Pod changes of a large job that come from watches, and those that need a list."""

from typing import Any

import pytest

from ringtrain_operator.cluster.pods import KnownPods, PodChange
from ringtrain_operator.cluster.queue import JobKey

JOB = JobKey("default", "a")
Json = dict[str, Any]
RUNS = {"phase": "Running", "containerStatuses": [{"name": "train", "state": {"running": {}}}]}


def pod(name: str, version: int, status: Json = RUNS, **metadata: str) -> Json:
    """A pod as it is read."""
    return {"metadata": {"name": name, "resourceVersion": str(version), **metadata}, "status": status}


def change(new: Json, event: str | None = "MODIFIED") -> PodChange:
    """Return the change that a watch reports for `new`; with `event=None`, one from a list, without the object."""
    meta = new["metadata"]
    return PodChange(meta["name"], meta["resourceVersion"], event, None if event is None else new)


def listed(large: int = 2) -> KnownPods:
    """Pods a and b of the job, at versions 5 and 6."""
    known = KnownPods(large)
    known.complete(JOB, known.begin(JOB), [pod("a", 5), pod("b", 6)])
    return known


def versions(pods: list[Json] | None) -> dict[str, str] | None:
    return None if pods is None else {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in pods}


def test_a_change_is_told_by_a_watch() -> None:
    """Pods that did not change are the same objects as before, so that nobody looks at them again."""
    known = listed()
    before = known.cached(JOB)
    known.record(JOB, change(pod("b", 9)))
    now = known.cached(JOB)
    assert versions(now) == {"a": "5", "b": "9"}
    assert now[0] is before[0]


def test_an_init_container_that_ended_well_is_no_end() -> None:
    """Every pod of an image that ringtrain is brought into has one."""
    done = [{"name": "i", "state": {"terminated": {"exitCode": 0}}}]
    known = listed()
    known.record(JOB, change(pod("a", 9, {**RUNS, "initContainerStatuses": done})))
    assert versions(known.cached(JOB)) == {"a": "9", "b": "6"}


def test_a_change_from_before_the_list_is_none() -> None:
    """Also of a pod that was deleted before it, or made."""
    known = listed()
    known.record(JOB, change(pod("a", 4)))
    known.record(JOB, change(pod("b", 6), "ADDED"))
    known.record(JOB, change(pod("c", 3), "DELETED"))
    assert versions(known.cached(JOB)) == {"a": "5", "b": "6"}


def test_a_change_during_a_list_counts() -> None:
    """The list may have been made before it."""
    known = KnownPods(large=1)
    begun = known.begin(JOB)
    known.record(JOB, change(pod("a", 7)))
    known.complete(JOB, begun, [pod("a", 5)])
    assert versions(known.cached(JOB)) == {"a": "7"}


ENDED = {"terminated": {"exitCode": 1}}
OF_ENDS = {
    "failed": pod("a", 9, {"phase": "Failed"}),
    "a container ended": pod("a", 9, {**RUNS, "containerStatuses": [{"name": "train", "state": ENDED}]}),
    "a container was started again": pod(
        "a", 9, {**RUNS, "containerStatuses": [{"name": "train", "lastState": ENDED}]}
    ),
    "an init container failed": pod(
        "a", 9, {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": ENDED}]}
    ),
    "being deleted": pod("a", 9, deletionTimestamp="2026-01-01T00:00:00Z"),
    "taken away": pod("a", 9, {**RUNS, "conditions": [{"type": "DisruptionTarget", "status": "True"}]}),
}


@pytest.mark.parametrize("what", OF_ENDS)
def test_what_ends_asks_for_a_list(what: str) -> None:
    """In which all pods are of one moment: it tells who was first."""
    known = listed()
    known.record(JOB, change(OF_ENDS[what]))
    assert known.cached(JOB) is None


@pytest.mark.parametrize(
    "new",
    [
        change(pod("c", 9)),
        change(pod("c", 9), "ADDED"),
        change(pod("a", 9), "DELETED"),
        change(pod("a", 9), "ADDED"),
        change(pod("a", 5), None),
        PodChange("a", "9", "MODIFIED", None),
    ],
    ids=["unknown", "made", "deleted", "made again", "watched anew", "not brought"],
)
def test_pods_that_come_or_go_ask_for_a_list(new: PodChange) -> None:
    """So does a watch that began anew: what was deleted meanwhile has no event. Until it was listed again."""
    known = listed()
    known.record(JOB, new)
    assert known.cached(JOB) is None
    assert known.cached(JOB) is None
    known.complete(JOB, known.begin(JOB), [pod("a", 10), pod("c", 9)])
    assert versions(known.cached(JOB)) == {"a": "10", "c": "9"}


def test_few_pods_are_not_remembered() -> None:
    """Nor those of a list that has failed, or after pods were made or deleted by this process."""
    assert listed(large=3).cached(JOB) is None
    failed, forgotten = listed(), listed()
    failed.begin(JOB)
    assert failed.cached(JOB) is None
    forgotten.forget(JOB)
    forgotten.record(JOB, change(pod("a", 9)))
    assert forgotten.cached(JOB) is None


def test_a_lost_event_is_made_good_for() -> None:
    """By a list after five to ten minutes."""
    times = iter([0.0, 299.0, 601.0])
    known = KnownPods(1, lambda: next(times))
    known.complete(JOB, known.begin(JOB), [pod("a", 5)])
    assert versions(known.cached(JOB)) == {"a": "5"}
    assert known.cached(JOB) is None
