"""Pods of an elastic job's workers that count as confirmed gone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ringtrain_operator.cluster.memory import ENDS_WITHIN_S, ReconcileMemory
from ringtrain_operator.observe.model import PodEnd, PodIdentity, PodPlace, PodReason, PodView

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDENTITY = PodIdentity("digits-worker-1", "uid-1", "worker", 1, index=1, incarnation=3)
POD = PodView(IDENTITY, phase="Running", place=PodPlace("node-a"))


def being_deleted(*, node_ready: bool | None = None) -> PodView:
    """The pod, half a minute before its grace period is over."""
    return replace(POD, deletion_time=NOW + timedelta(seconds=30), place=PodPlace("node-a", node_ready))


def gone_after(*looks: tuple[PodView | None, float]) -> dict[int, int]:
    """Return the lost incarnations after observations of the pod, each `seconds` after NOW."""
    memory = ReconcileMemory()
    for pod, seconds in looks:
        memory.record_lost_pods([pod] if pod else [], NOW + timedelta(seconds=seconds))
    return memory.lost_incarnations


@pytest.mark.parametrize(
    ("looks", "gone"),
    [
        ([(POD, 0)], False),
        ([(replace(POD, end=PodEnd(137)), 0)], True),
        ([(replace(POD, phase="Failed", state=PodReason("NodeLost")), 0)], False),
        ([(being_deleted(), 0)], False),
        ([(being_deleted(), 0), (None, 20)], True),
        ([(being_deleted(), 0), (None, 31 + ENDS_WITHIN_S)], False),
        ([(POD, 0), (None, 1)], False),
        ([(being_deleted(node_ready=False), 0), (None, 20)], False),
    ],
    ids=[
        "runs",
        "container-ended",
        "node-lost",
        "being-deleted",
        "deleted-and-gone",
        "gone-too-late",
        "vanished",
        "deleted-on-a-dead-node",
    ],
)
def test_a_pod_is_gone_when_its_container_has_ended(looks: list[tuple[PodView | None, float]], gone: bool) -> None:
    """Or when it was deleted with its grace period and is gone in time; what else vanishes may run still."""
    assert gone_after(*looks) == ({1: 3} if gone else {})


def test_what_is_known_to_be_gone_only_grows() -> None:
    """A later look at nothing takes nothing back, and the next incarnation is not gone with the one before."""
    ended = replace(POD, end=PodEnd(1))
    later = replace(POD, id=replace(IDENTITY, uid="uid-2", incarnation=4))
    assert gone_after((ended, 0), (later, 9)) == {1: 3}
