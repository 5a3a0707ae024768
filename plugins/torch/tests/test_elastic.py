"""Scenarios of ringtrain.torch.elastic: ranks are lost, replaced and added while a model is trained."""

from typing import Any

import elastic_torch
import numpy as np
import torch
from frameworks.scenarios import forked_slots, newcomer_that_calls

from ringtrain_torch.elastic.state import OptimizerStateHandler

RUN_IN = {"framework": "ringtrain.torch"}


def _a_replaced_rank_leaves_no_trace(kind: str) -> None:
    """Killed in a step and replaced: weights, rates and the ledger are those of an undisturbed run."""
    with forked_slots(elastic_torch.trains, 2, kind, 2, ()) as slots:
        slots.form()
        undisturbed = slots.results()
    with forked_slots(elastic_torch.trains, 2, kind, 2, (5, 11)) as slots:
        slots.form()
        for lost, step in ((1, 5), (0, 11)):
            assert [slots.message(slot) for slot in range(2)] == [step, step]
            slots.replace(lost)
            assert slots.formed(1 - lost) == [step, step]
            slots.go_on(0, 1)
        disturbed = slots.results()
    assert disturbed == {0: undisturbed[0], 1: undisturbed[0]}
    assert undisturbed[0]["ledger"] == [(e, i) for e in range(2) for i in range(elastic_torch.SAMPLES)]


def _the_ledger_over_growing_and_shrinking_worlds(kind: str) -> None:
    """1 to 3 to 2 ranks, with a kill: each sample once an epoch; all ranks end with the same weights."""
    with forked_slots(elastic_torch.trains, 1, kind, 2, (3, 9)) as slots:
        slots.form()
        assert slots.message(0) == 3
        slots.start(1)
        slots.start(2)
        slots.tell_change()
        assert slots.formed(0) == [9, 9, 9]
        slots.kill(1)
        assert slots.formed(0, 2) == [9, 9]
        slots.go_on(0, 2)
        results = slots.results()
    assert results[0] == results[2]
    assert results[0]["step"] == 16
    assert results[0]["ledger"] == [(e, i) for e in range(2) for i in range(elastic_torch.SAMPLES)]


def _a_sampler_goes_on_with_what_is_left(workers: int) -> None:
    """Two ranks, one is killed: every sample is used once in every epoch, and the second is not begun again."""
    with forked_slots(elastic_torch.samples, 2, 2, 8, (4, 9), workers) as slots:
        assert slots.formed() == [4, 4]
        slots.kill(1)
        slots.form(0)
        assert slots.message(0) == 4
        slots.go_on(0)
        assert slots.message(0) == 9
        slots.go_on(0)
        results: dict[int, Any] = slots.results()
    assert results[0] == [list(range(elastic_torch.SAMPLES))] * 2


def test_a_sampler_goes_on_with_what_is_left() -> None:
    _a_sampler_goes_on_with_what_is_left(workers=0)


def test_what_workers_of_a_loader_have_read_ahead_comes_again() -> None:
    _a_sampler_goes_on_with_what_is_left(workers=1)


def test_a_newcomer_that_reduces_first_is_met() -> None:
    """The others are on their way to the function: they add zeros, and calls without a name are paired anew."""
    with newcomer_that_calls(elastic_torch.calls_first, "allreduce") as slots:
        assert slots.results() == {0: [1, 1, 1, 2], 1: [1, 1, 1, 2]}


def test_a_newcomer_that_broadcasts_first_is_told_at_once() -> None:
    """It ends with an error that describes the solution, and the others continue without it."""
    with newcomer_that_calls(elastic_torch.calls_first, "broadcast") as slots:
        outcome = slots.ended(1)
        assert outcome.error is not None
        assert "'broadcast.parameters.weight': broadcast needs data from every rank" in outcome.error
        assert "call it only in the function that elastic.run calls" in outcome.error
        slots.form()
        assert slots.results() == {0: [1, 1, 1, 1]}


def test_a_replaced_rank_leaves_no_trace_with_the_distributed_optimizer() -> None:
    _a_replaced_rank_leaves_no_trace("distributed")


def test_a_replaced_rank_leaves_no_trace_with_the_host_optimizer() -> None:
    _a_replaced_rank_leaves_no_trace("host")


def test_the_ledger_over_growing_and_shrinking_worlds_with_the_distributed_optimizer() -> None:
    _the_ledger_over_growing_and_shrinking_worlds("distributed")


def test_the_ledger_over_growing_and_shrinking_worlds_with_the_host_optimizer() -> None:
    _the_ledger_over_growing_and_shrinking_worlds("host")


def _goes_on_as_if_nothing_had_happened(kind: str, size: int) -> None:
    """Ranks are killed and replaced, others join: weights and running statistics are those of an undisturbed run,
    to rounding where there are more ranks; schedule and scaler are its own."""
    with forked_slots(elastic_torch.goes_on, 1, kind, 20, ()) as slots:
        slots.form()
        wanted = slots.results()[0]
    with forked_slots(elastic_torch.goes_on, size, kind, 20, (5, 11)) as slots:
        assert set(slots.formed()) == {5}
        slots.replace(size - 1)
        assert set(slots.formed(*range(size - 1))) == {5}
        slots.start(size)
        slots.tell_change()
        assert set(slots.formed(*range(size))) == {11}
        slots.go_on(*range(size + 1))
        results = slots.results()
    for found in results.values():
        assert (found["left"], found["step"]) == (wanted["left"], wanted["step"])
        for name, value in wanted["model"].items():
            np.testing.assert_allclose(found["model"][name], value, rtol=1e-4, atol=1e-5, err_msg=name)
        assert found["model"] == results[0]["model"]


def test_a_training_with_the_distributed_optimizer_goes_on_as_if_nothing_had_happened() -> None:
    _goes_on_as_if_nothing_had_happened("distributed", 2)


def test_a_training_with_the_host_optimizer_goes_on_as_if_nothing_had_happened() -> None:
    _goes_on_as_if_nothing_had_happened("host", 2)


def test_an_optimizer_is_saved_in_place_and_what_it_is_restored_to_stays_saved() -> None:
    """A commit takes the memory of the last one. A step after a restore changes state in place, not the commit."""
    parameter = torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)

    def step() -> None:
        parameter.grad = parameter.detach() * 3
        optimizer.step()

    step()
    handler = OptimizerStateHandler(optimizer)
    first = vars(handler)["_saved"]["state"][0]["exp_avg"]
    step()
    optimizer.param_groups[0]["lr"] = 0.2
    handler.save()
    committed = optimizer.state[parameter]["exp_avg"].clone()
    assert vars(handler)["_saved"]["state"][0]["exp_avg"] is first
    for _ in range(2):
        optimizer.param_groups[0]["lr"] = 0.3
        step()
        assert not torch.equal(optimizer.state[parameter]["exp_avg"], committed)
        handler.restore()
        assert torch.equal(optimizer.state[parameter]["exp_avg"], committed)
        assert optimizer.param_groups[0]["lr"] == 0.2
