"""Jobs of thousands of workers: a look costs in proportion to the workers, and what is written fits."""

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from support.jobs import job
from support.planworld import World, settled

from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.cluster.observe import split_owned
from ringtrain_operator.observe.model import Refusal
from ringtrain_operator.spec.base import MOST_WORKERS
from ringtrain_operator.workers.incarnations import MAX_LOSSES

# etcd takes 1.5 MiB of an object; 128 KiB leave room for a spec, and for what the API server notes beside.
STATUS_BYTES_MAX = 128 * 1024


def running_world(workers: int, *, is_elastic: bool) -> World:
    """A job of so many workers that run, whose launcher names every agent."""
    bounds = {"minReplicas": 1, "maxReplicas": workers}
    w = settled(job(workers=workers, **({"elastic": bounds} if is_elastic else {})))
    w.pods_run()
    agents = [{"index": index, "registered": True} for index in range(workers)]
    w.report = {"version": 1, "attempt": 1, "phase": "Running", "worldSize": workers, "workers": agents}
    w.settle()
    return w


def refused(w: World) -> World:
    """The same, whose pods are gone, and for every one of which the API has no quota."""
    pods = [name for name in w.pods if not name.endswith("-launcher")]
    for name in pods:
        del w.pods[name]
    w.refusals = tuple(Refusal(ObjectRef("Pod", name), 403, "Forbidden", "exceeded quota") for name in pods)
    return w


def unchanged(w: World) -> World:
    """The same."""
    return w


def steps(work: Callable[[], Any]) -> int:
    """Instructions of Python that `work` takes in the operator's own code."""
    count = 0

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        if "ringtrain_operator" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("trouble", [unchanged, refused], ids=["all-run", "all-refused"])
@pytest.mark.parametrize("is_elastic", [False, True], ids=["fixed", "elastic"])
def test_a_look_costs_in_proportion_to_the_workers(trouble: Callable[[World], World], is_elastic: bool) -> None:
    """A plan for eight times as many workers takes no more than nine times as many instructions."""
    few, many = (steps(trouble(running_world(n, is_elastic=is_elastic)).plan) for n in (32, 256))
    assert 0 < many < 9 * few, f"{many / few:.1f} times as many"


class Incomparable(dict[str, Any]):
    """A pod that no other may be compared with."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("two pods were compared, which costs the square of their number")

    __hash__ = None  # type: ignore[assignment]


def test_pods_are_told_from_others_without_comparing_them() -> None:
    """Each pod's owner is checked once, without a comparison of pods."""
    owner = {"kind": "DistributedTrainingJob", "name": "digits", "controller": True, "uid": "ours"}
    mine = [Incomparable(metadata={"name": f"digits-{i}", "ownerReferences": [owner]}) for i in range(3)]
    other = Incomparable(metadata={"name": "stranger"})
    ours, others = split_owned([*mine, other], "ours")
    assert [pod["metadata"]["name"] for pod in ours] == ["digits-0", "digits-1", "digits-2"]
    assert [(one.ref.name, one.owner) for one in others] == [("stranger", "")]


@pytest.mark.slow
def test_the_largest_status_is_far_from_what_an_object_may_have() -> None:
    """An elastic job of as many workers as the CRD takes, all of which were lost, has a status of bounded size."""
    w = running_world(MOST_WORKERS, is_elastic=True)
    for name in list(w.pods):
        if not name.endswith("-launcher"):
            w.pod_ends(name, 137, reason="OOMKilled")
    w.run(seconds=6)
    assert len(w.job["status"]["ledger"]["incarnations"]["losses"]) == MAX_LOSSES
    assert len(json.dumps(w.job["status"])) < STATUS_BYTES_MAX
