"""A device's optimizer on the host goes on while ranks are lost, replaced and added."""

import elastic_device
from support.elastic_agent import started_slots


def test_a_replaced_rank_leaves_no_trace_on_the_device() -> None:
    """Killed in a step and replaced: ledger and weights on all devices are those of an undisturbed run."""
    with started_slots(elastic_device.trains, 2, ()) as slots:
        slots.form()
        undisturbed = slots.results()
    with started_slots(elastic_device.trains, 2, (3,)) as slots:
        assert slots.formed() == [3, 3]
        slots.replace(1)
        assert slots.formed(0) == [3, 3]
        slots.go_on(0, 1)
        disturbed = slots.results()
    assert disturbed == {0: undisturbed[0], 1: undisturbed[0]}
    assert undisturbed[0][0] == [(epoch, index) for epoch in range(2) for index in range(elastic_device.SAMPLES)]
