"""Each sample once an epoch while the world is 2, 8, 3 and 5 ranks large and ranks are killed."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.elastic_agent import Slots, pause, started_slots
from support.ranks import ranks_ended, run_ranks

import ringtrain as rt
from ringtrain import elastic
from ringtrain.checkpoint import Checkpoints
from ringtrain.errors import ConfigurationError
from ringtrain.optim import SGD, HostOptimizer

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
                pause(state.step, told)
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
        slots.form(0, 1)
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
        slots.form(0, 3, 5)
        _at(slots, 50, 0, 1, 2, 3, 5)
        slots.kill(3)
        slots.form(0, 1, 2, 5)
        _at(slots, 50, 0, 1, 2, 5)
        slots.go_on(0, 1, 2, 5)
        results = slots.results()
    expected = [70, [(epoch, index) for epoch in range(EPOCHS) for index in range(SAMPLES)]]
    assert results == dict.fromkeys((0, 1, 2, 5), expected)


def _train_in_micro_batches(told: tuple[int, ...], micro_batch: int | None) -> tuple[list[Any], list[float]]:
    """An epoch whose every sample pulls at the weights in its own way: the samples by step, and the weights."""
    rt.init()
    optimizer = HostOptimizer({"w": np.ones(300)}, SGD(0.1, momentum=0.9), elastic=True)
    shard = elastic.shard(200, elastic.FixedGlobal(20, micro_batch), seed=3)
    state = elastic.State(optimizer=optimizer, shard=shard, step=0, ledger=[])

    @elastic.run
    def train(state: Any) -> None:
        state.optimizer.set_backward_passes_per_step(state.shard.passes)
        for batch in state.shard:
            state.step += 1
            for number, part in enumerate(batch.micro_batches):
                if number == 1 and state.step in told:  # in the middle of an update
                    pause(state.step)
                pull = np.sin(part.indices[:, None] + np.arange(300.0)) * state.optimizer.weights["w"]
                state.optimizer.submit("w", pull.mean(0), part.weight)
                state.optimizer.step()
            for used in rt.allgather_object(batch.indices[batch.mask].tolist()):
                state.ledger += used
            state.commit()

    train(state)
    return sorted(state.ledger), state.optimizer.weights["w"].tolist()


def test_a_step_takes_more_micro_batches_in_a_smaller_world() -> None:
    """Three ranks, two, one, and two again, of which some are lost between two micro-batches: each sample counts
    once, and the weights are those of one rank that nothing happened to, but for the order in which floats are
    added."""
    with started_slots(_train_in_micro_batches, 3, (2, 4, 6), 6) as slots:
        slots.form()
        _at(slots, 2, 0, 1, 2)
        slots.kill(2)
        slots.form(0, 1)
        _at(slots, 2, 0, 1)  # the step that was lost, again
        slots.go_on(0, 1)
        _at(slots, 4, 0, 1)
        slots.kill(0)
        slots.form(1)
        _at(slots, 4, 1)
        slots.go_on(1)
        _at(slots, 6, 1)
        slots.start(0)
        slots.tell_change()
        slots.form(1)
        results = slots.results()
    (alone,) = run_ranks(_train_in_micro_batches, 1, (), None)
    assert alone[0] == list(range(200))
    for ledger, weights in results.values():
        assert ledger == alone[0]
        assert weights == pytest.approx(alone[1], rel=1e-12)


def _commit_too_early() -> None:
    rt.init()
    optimizer = HostOptimizer({"w": np.ones(3)}, SGD(0.1), elastic=True)
    state = elastic.State(optimizer=optimizer, shard=elastic.shard(8, elastic.FixedGlobal(4, 2)))
    state.sync()
    optimizer.set_backward_passes_per_step(state.shard.passes)
    batch = next(iter(state.shard))
    optimizer.submit("w", np.ones(3), batch.micro_batches[0].weight)
    assert not optimizer.step()
    for early in (state.commit, state.check_host_updates):
        with pytest.raises(ConfigurationError, match="'optimizer' has gradients of an incomplete update"):
            early()


def test_a_commit_in_the_middle_of_an_update_is_refused() -> None:
    """The samples of its micro-batches would count, and their gradients would be lost with a rank, or as workers
    join or leave."""
    run_ranks(_commit_too_early, 1)


def _count_from_checkpoints(directory: str, dies_after: int = -1, told: tuple[int, ...] = ()) -> list[float]:
    """Weight i counts the updates that sample i was in. The last rank dies in the step after `dies_after`; every
    second step is saved."""
    rt.init(timeout=30)
    optimizer = HostOptimizer({"seen": np.zeros(83)}, SGD(1.0), elastic=True)
    shard = elastic.shard(83, elastic.FixedGlobal(9, micro_batch=2), seed=8)
    state = elastic.State(optimizer=optimizer, shard=shard, step=0)

    @elastic.run
    def train(state: Any) -> None:
        state.optimizer.set_backward_passes_per_step(state.shard.passes)
        checkpoints = Checkpoints(directory)
        if not state.committed and (saved := checkpoints.latest()):
            state.optimizer.load_state_dict(saved.state["optimizer"])
            state.shard.load_state_dict(saved.state["shard"])
            state.step = saved.step
            state.save()
            state.commit()
        begun = state.step
        for _ in state.shard.epochs(2):
            for batch in state.shard:
                if state.step - begun == dies_after and rt.rank() == rt.size() - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                state.step += 1
                pause(state.step, told)
                for part in batch.micro_batches:
                    gradient = np.zeros(83)
                    gradient[part.indices[part.mask]] = -rt.size() * batch.passes
                    state.optimizer.submit("seen", gradient)
                    state.optimizer.step()
                state.commit()
                if state.step % 2 == 0:
                    saved_state = {"optimizer": optimizer.state_dict(root=0), "shard": shard.state_dict()}
                    checkpoints.save(state.step, saved_state)

    train(state)
    return [round(float(count), 9) for count in optimizer.weights["seen"]]


def test_each_sample_counts_once_over_restarts_from_checkpoints(tmp_path: Path) -> None:
    """Two ranks and then three die in mid-epoch, in a job that is not elastic; an elastic one goes on with two, of
    which one is replaced: what no saved step has used comes again, and nothing else."""
    for size, dies_after in ((2, 3), (3, 5)):
        outcomes = ranks_ended(_count_from_checkpoints, size, str(tmp_path), dies_after)
        assert outcomes[-1].exit_code == -signal.SIGKILL
        assert all(outcome.error and "PeerLost" in outcome.error for outcome in outcomes[:-1])
    with started_slots(_count_from_checkpoints, 2, str(tmp_path), -1, (9,)) as slots:
        slots.form()
        _at(slots, 9, 0, 1)  # the third life of the job begins with step 7
        slots.replace(1)
        slots.form(0)
        _at(slots, 9, 0, 1)
        slots.go_on(0, 1)
        results = slots.results()
    assert results == dict.fromkeys((0, 1), [2.0] * 83)
