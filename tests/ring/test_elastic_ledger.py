"""Each sample once an epoch while the world is 2, 8, 3 and 5 ranks large and ranks are killed."""

from typing import Any

from support.elastic_agent import Slots, await_go_on, started_slots
from support.ranks import tell

import ringtrain as rt
from ringtrain import elastic

SAMPLES, EPOCHS = 700, 2


def _use(told: tuple[int, ...]) -> list[Any]:
    """Write down which samples each committed step has used; tell the steps in `told`, and wait in them."""
    rt.init()
    shard = elastic.shard(SAMPLES, elastic.FixedGlobal(20), seed=9)
    state = elastic.State(shard=shard, step=0, ledger=[])

    @elastic.run
    def train(state: Any) -> None:
        for epoch in state.shard.epochs(EPOCHS):
            for batch in state.shard:
                state.step += 1
                if state.step in told:
                    tell(state.step)
                    await_go_on()
                for used in rt.allgather_object(batch.indices[batch.mask].tolist()):
                    state.ledger += [(epoch, index) for index in used]
                state.commit()

    train(state)
    return [state.step, sorted(state.ledger)]


def _at(slots: Slots, step: int, *which: int) -> None:
    assert [slots.message(slot) for slot in which] == [step] * len(which)


def test_each_sample_counts_once_an_epoch() -> None:
    """2 to 8 by newcomers, to 3 by kills and leavers, to 5 by newcomers: no sample is lost, none comes twice."""
    with started_slots(_use, 2, (5, 20, 33, 50)) as slots:
        slots.form()
        _at(slots, 5, 0, 1)
        for slot in range(2, 8):
            slots.start(slot)
        slots.tell_change(slots=[1])
        slots.go_on(0, 1)
        slots.form()
        _at(slots, 20, *range(8))
        for slot in (1, 4, 6):
            slots.kill(slot, urgent=False)
        slots.tell_change(urgent=True)
        slots.go_on(0, 2, 3, 5, 7)
        for slot in (2, 7):  # who leaves in good order takes no sample along
            slots.leave(slot)
        slots.form()
        _at(slots, 20, 0, 3, 5)
        slots.go_on(0, 3, 5)
        _at(slots, 33, 0, 3, 5)
        slots.start(1)
        slots.start(2)
        slots.tell_change()
        slots.go_on(0, 3, 5)
        slots.form()
        _at(slots, 50, 0, 1, 2, 3, 5)
        slots.kill(3)
        slots.go_on(0, 1, 2, 5)
        slots.form()
        _at(slots, 50, 0, 1, 2, 5)
        slots.go_on(0, 1, 2, 5)
        results = slots.results()
    expected = [70, [(epoch, index) for epoch in range(EPOCHS) for index in range(SAMPLES)]]
    assert results == dict.fromkeys((0, 1, 2, 5), expected)
