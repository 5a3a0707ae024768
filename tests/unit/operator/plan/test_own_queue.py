"""Resources that a job competes for: its devices, and the shortages that the scheduler reports."""

from datetime import timedelta

import pytest
from support.planworld import START

from ringtrain_operator.placement.own_queue import ROOM, PlacementContender, lacking_devices

GPU = "nvidia.com/gpu"
# Messages as kube-scheduler writes them, of several versions.
NOT_HELPFUL = "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
NO_VICTIMS = "preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims"


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        pytest.param(f"0/3 nodes are available: 3 Insufficient {GPU}.", {GPU}, id="devices"),
        pytest.param("0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient memory.", {ROOM}, id="processors"),
        pytest.param(
            f"0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient {GPU}. {NO_VICTIMS}",
            {GPU},
            id="devices-of-some-nodes",
        ),
        pytest.param(
            "0/3 nodes are available: 3 node(s) didn't have free ports for the requested pod ports.",
            {ROOM},
            id="ports",
        ),
        pytest.param(
            f"0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. {NOT_HELPFUL}",
            set(),
            id="no-node-has-the-label",
        ),
        pytest.param(
            "0/3 nodes are available: 3 node(s) had untolerated taint(s).",
            set(),
            id="without-a-word-on-preemption",
        ),
        pytest.param(
            f"0/3 nodes are available: 3 Insufficient memory. {NOT_HELPFUL}", set(), id="more-than-a-node-has"
        ),
        pytest.param("3 pods of the gang find room", {GPU, ROOM}, id="another-schedulers-words"),
    ],
)
def test_what_a_pod_lacks_is_in_the_schedulers_words(words: str, lacks: set[str]) -> None:
    """Names of devices, and one for all else that other pods use up; nothing where their end would not help."""
    assert lacking_devices(words, [GPU]) == lacks


def test_jobs_compete_where_one_may_have_what_the_other_lacks() -> None:
    """Those that want no device and lack processors do not stand behind those that lack devices alone."""
    devices, processors, both, other = (
        PlacementContender(START + timedelta(seconds=i), f"uid-{i}", wants=wants)
        for i, wants in enumerate(({GPU: 2}, {ROOM: 0}, {GPU: 2, ROOM: 0}, {"google.com/tpu": 4}))
    )
    assert not devices.competes_with(processors)
    assert devices.competes_with(both)
    assert both.competes_with(processors)
    assert not other.competes_with(both)
