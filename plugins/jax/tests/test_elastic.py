"""Scenarios of JAX in elastic worlds: ranks are lost, replaced, added and removed during training."""

import tempfile
from typing import Any

import elastic_jax
from frameworks.scenarios import forked_slots, newcomer_that_calls

# What takes longest here is compiling.
RUN_IN = {
    "framework": "ringtrain.jax",
    "env": {"XLA_FLAGS": "--xla_backend_optimization_level=0"},
    "needs": ["jax", "optax"],
}


def _as_if_nothing_had_happened(kind: str) -> None:
    """2 ranks, one is killed and replaced; 4; 2 as planned, the donor among those that leave; a kill; 1: all is to
    the bit what one process has."""
    with forked_slots(elastic_jax.trains, 1, kind, ()) as slots:
        slots.form()
        (expected,) = slots.results().values()
    with forked_slots(elastic_jax.trains, 2, kind, (3, 5, 7, 9)) as slots:
        slots.form()
        at(slots, 3, 0, 1)
        slots.replace(0)
        slots.form(1)
        at(slots, 3, 0, 1)
        slots.go_on(0, 1)
        at(slots, 5, 0, 1)
        slots.start(2)
        slots.start(3)
        slots.tell_change()
        slots.form(0, 1)
        at(slots, 7, 0, 1, 2, 3)
        slots.tell_change(leaving=[1, 2])
        slots.go_on(0, 1, 2, 3)
        for slot in (1, 2):
            slots.leave(slot)
        slots.form()
        at(slots, 9, 0, 3)
        slots.kill(0)
        slots.form(3)
        at(slots, 9, 3)
        slots.go_on(3)
        results: dict[int, Any] = slots.results()
    assert results == {3: expected}


def at(slots: Any, step: int, *of: int) -> None:
    assert [slots.message(slot) for slot in of] == [step] * len(of)


def test_optax_goes_on_as_if_nothing_had_happened() -> None:
    _as_if_nothing_had_happened("optax")


def test_the_host_optimizer_goes_on_as_if_nothing_had_happened() -> None:
    _as_if_nothing_had_happened("host")


def _resumes_at_another_size(kind: str) -> None:
    """Half of a training on 2 ranks, the rest on 4 and on 1: to the bit what one process has. Adam, its schedule,
    an average in bfloat16 and a typed key are parts of it."""

    def run(ranks: int, folder: str, source: str, steps: int) -> Any:
        with forked_slots(elastic_jax.resumes, ranks, kind, folder, source, steps) as slots:
            slots.form()
            first, *others = slots.results().values()
            assert all(other == first for other in others)
            return first

    with tempfile.TemporaryDirectory() as folder:
        expected = run(1, f"{folder}/whole", "plain", elastic_jax.STEPS)
        for ranks, source in ((4, "plain"), (1, "sharded")):
            run(2, f"{folder}/{source}", source, 6)
            assert run(ranks, f"{folder}/{source}", source, elastic_jax.STEPS) == expected


def test_a_training_with_optax_resumes_at_another_size() -> None:
    _resumes_at_another_size("optax")


def test_a_training_with_the_host_optimizer_resumes_at_another_size() -> None:
    _resumes_at_another_size("host")


def test_a_newcomer_that_reduces_first_is_met() -> None:
    """The others are on their way to the function, and add zeros."""
    with newcomer_that_calls(elastic_jax.calls_first, "allreduce") as slots:
        assert slots.results() == {0: [1, 1, 1, 2], 1: [1, 1, 1, 2]}


def test_a_newcomer_that_broadcasts_first_is_told_at_once() -> None:
    """Its error describes the solution, and the others continue without it."""
    with newcomer_that_calls(elastic_jax.calls_first, "broadcast") as slots:
        outcome = slots.ended(1)
        assert outcome.error is not None
        assert "call it only in the function that elastic.run calls" in outcome.error
        slots.form()
        assert slots.results() == {0: [1, 1, 1, 1]}
