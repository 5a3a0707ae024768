"""DiLoCo whose world changes: a rank is lost at any point of its schedule, judged by a plain computation.

Survivors say from which commit they went on. Whether the lost rank's part in the synchronization of that commit
counts depends on the moment of its end: then on all ranks and in all of the fragment. All else follows.
"""

import functools
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.elastic_agent import pause, started_slots
from support.ranks import tell

import ringtrain as rt
from diloco.mortal_weights import SHAPES, STEPS, SYNC_EVERY, Array, MortalWeights, Point, due, has_weights
from ringtrain import elastic
from ringtrain.diloco import DiLoCo
from ringtrain.errors import ConfigurationError
from ringtrain.optim import SGD, Nesterov

SIZE, LOST = 3, 1
LR, MOMENTUM = 0.5, 0.5


@dataclass(frozen=True)
class Case:
    """Arguments of a DiLoCo; `is_replaced`: another process takes the place of the lost one at once."""

    fragments: int = 1
    overlap_steps: int = 0
    mix: float = 0.0
    is_replaced: bool = False

    def __str__(self) -> str:
        after = "replaced" if self.is_replaced else "fewer"
        return f"{self.fragments}-fragments-{self.overlap_steps}-{self.mix}-{after}"


SCHEDULES = [(1, 0, 0.0), (1, 2, 0.5), (2, 0, 0.0), (2, 0, 0.5), (2, 2, 0.0), (3, 1, 0.5)]
# Before an inner step; before weights are read or written for the nth time, as at a commit, when its exchange
# begins and when it has ended; and so many milliseconds after the nth time that they were read.
POINTS = [
    *(("step", number, 0.0) for number in range(1, STEPS + 1)),
    *(("read", number, 0.0) for number in range(2, 12)),
    *(("write", number, 0.0) for number in range(4, 18, 2)),
    *(("read", number, delay_ms) for number in (3, 5, 7, 9) for delay_ms in (0.3, 1, 3)),
]

# Each point with and without a replacement. Schedules take turns, so that each has points of every kind.
LOSSES = [
    (Case(*SCHEDULES[number % len(SCHEDULES)], is_replaced), point)
    for number, point in enumerate(POINTS)
    for is_replaced in (False, True)
]


def _change(slot: int, step: int, name: str) -> Array:
    random = np.random.default_rng([step, slot, ord(name)])
    return random.integers(-4, 5, SHAPES[name]).astype(np.float64)


class _Momentum:
    """An inner optimizer with a state: a rank that goes back to a commit needs the one that it had there."""

    def __init__(self) -> None:
        self._moments = {name: np.zeros(shape) for name, shape in SHAPES.items()}

    def state_dict(self) -> dict[str, Array]:
        return self._moments

    def load_state_dict(self, state: dict[str, Array]) -> None:
        self._moments = state

    def step(self, weights: dict[str, Array], slot: int, step: int) -> dict[str, Array]:
        self._moments = {name: MOMENTUM * m + _change(slot, step, name) for name, m in self._moments.items()}
        return {name: array + self._moments[name] for name, array in weights.items()}


def _step(local: MortalWeights, inner: _Momentum, slot: int, step: int) -> None:
    for name, weights in inner.step(local.arrays, slot, step).items():
        local.arrays[name][...] = weights


def _made(case: Case, local: MortalWeights, inner: _Momentum) -> DiLoCo:
    options: dict[str, Any] = {key: value for key, value in vars(case).items() if key != "is_replaced"}
    options |= {"initial": dict(local.arrays), "sync_every": SYNC_EVERY, "redundancy": 2, "elastic": True}
    options["inner"] = inner
    return DiLoCo(local, outer=Nesterov(lr=LR, momentum=MOMENTUM), **options)


def _result(diloco: DiLoCo, local: MortalWeights, entered: list[int]) -> dict[str, Any]:
    outer = {name: array.copy() for name, array in diloco.outer_weights.items()}
    return {"entered": entered, "local": local.arrays, "outer": outer, "steps": diloco.steps}


def _train(case: Case, point: Point) -> dict[str, Any]:
    rt.init()
    slot = rt.rank()
    local = MortalWeights(point if slot == LOST and os.environ["RINGTRAIN_FORMATION"] == "1" else None)
    inner = _Momentum()
    diloco = _made(case, local, inner)
    state: Any = elastic.State(diloco=diloco, step=0)
    if os.environ["RINGTRAIN_FORMATION"] != "1":
        slot = LOST
    entered: list[int] = []

    @elastic.run
    def run(state: Any) -> None:
        entered.append(state.step)
        while state.step < STEPS:
            local.come_to("step", state.step + 1)
            _step(local, inner, slot, state.step + 1)
            state.step += 1
            if state.step == STEPS:
                local.point = None  # after this commit the others may have finished
            if state.diloco.step() or state.step == STEPS:
                state.commit()
        diloco.finish()

    run(state)
    return _result(diloco, local, entered)


class _Reference:
    """Plain numpy. `lost_at`: after the commit of that inner step the world goes on without the lost rank, or with
    one that begins from the outer weights; `counted`: the lost rank's part in that synchronization counts. A rank
    counts by its inner steps since the last one."""

    def __init__(self, case: Case, lost_at: int, counted: bool) -> None:
        self._case = case
        self.outer = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self._velocity = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self.local = [dict(self.outer) for _ in range(SIZE)]
        self._inner = [_Momentum() for _ in range(SIZE)]
        self._ranks = list(range(SIZE))
        self._sent_at, self._entered_at = dict.fromkeys(SHAPES, 0), [0] * SIZE
        self._sent: dict[str, Array] = {}
        if lost_at == 0:
            self._change_world(0)
        for step in range(1, STEPS + 1):
            for rank in self._ranks:
                self.local[rank] = self._inner[rank].step(self.local[rank], rank, step)
            if self._sent and step == max(self._sent_at.values()) + case.overlap_steps:
                self._take(case.mix)
            names = due(step, self._case.fragments)
            if step == lost_at and counted:
                self._send(names, step)
                self._take(case.mix)
            if step == lost_at:
                self._change_world(step)
            if step == lost_at and counted:
                continue
            self._send(names, step)
            if not case.overlap_steps or step == STEPS:
                self._take(case.mix)
        rest = "".join(name for name in SHAPES if self._sent_at[name] < STEPS)
        self._send(rest, STEPS)
        self._take(0)
        for rank in self._ranks:
            self.local[rank] = dict(self.outer)

    def _send(self, names: str, step: int) -> None:
        for name in names:
            steps = [step - max(self._sent_at[name], self._entered_at[rank]) for rank in self._ranks]
            parts = [self.outer[name] - self.local[rank][name] for rank in self._ranks]
            self._sent[name] = np.average(parts, axis=0, weights=steps)
            self._sent_at[name] = step

    def _take(self, mix: float) -> None:
        for name in list(self._sent):
            mean = self._sent.pop(name)
            self._velocity[name] = MOMENTUM * self._velocity[name] + mean
            self.outer[name] = self.outer[name] - LR * (mean + MOMENTUM * self._velocity[name])
            for rank in self._ranks:
                self.local[rank][name] = mix * self.local[rank][name] + (1 - mix) * self.outer[name]

    def _change_world(self, step: int) -> None:
        if self._case.is_replaced:
            self.local[LOST], self._entered_at[LOST] = dict(self.outer), step
            self._inner[LOST] = _Momentum()
        else:
            self._ranks.remove(LOST)


@functools.cache
def _reference(case: Case, lost_at: int, counted: bool) -> _Reference:
    return _Reference(case, lost_at, counted)


@pytest.mark.parametrize(
    ("case", "point"),
    [pytest.param(case, point, id=f"{case}-{'-'.join(map(str, point))}") for case, point in LOSSES],
)
def test_a_rank_that_is_lost_anywhere_costs_its_own_inner_steps(case: Case, point: Point) -> None:
    """All that are left have the weights of a computation in which it has no part from some commit on."""
    with started_slots(_train, SIZE, case, point, sites=("a", "b", "c")) as slots:
        slots.form()
        outcome = slots.ended(LOST)
        assert outcome.ok or outcome.exit_code == -signal.SIGKILL, outcome
        if not outcome.ok:
            slots.tell_change(urgent=True)
            if case.is_replaced:
                slots.start(LOST)
            slots.form()
        results = slots.results()
    (step,) = {result["entered"][-1] for result in results.values()}
    possible = [_reference(case, -1 if outcome.ok else step, counted) for counted in (False, True)]
    assert any(all(has_weights(result, one.outer) for result in results.values()) for one in possible), (
        f"survivors went on from step {step}, and have other weights than with or without the lost rank's part"
    )


class _Telling(MortalWeights):
    """Tells when a commit reads the weights, once `tells` is set."""

    tells = False

    def read(self, names: Sequence[str]) -> Sequence[Array]:
        if self.tells:
            self.tells = False
            tell("commits")
        return super().read(names)


def _train_with_a_rank_that_leaves_between_commits(case: Case) -> dict[str, Any]:
    rt.init()
    slot = rt.rank()
    local = _Telling(None)
    inner = _Momentum()
    diloco = _made(case, local, inner)
    state: Any = elastic.State(diloco=diloco, step=0)
    entered: list[int] = []

    @elastic.run
    def run(state: Any) -> None:
        entered.append(state.step)
        is_first = len(entered) == 1
        if is_first:
            state.commit()  # with nothing to synchronize
        while state.step < STEPS:
            if is_first and slot and state.step == 2:
                pause("waits")
                rt.barrier()
            _step(local, inner, slot, state.step + 1)
            state.step += 1
            if state.diloco.step() or state.step == STEPS:
                local.tells = is_first
                state.commit()
        diloco.finish()

    run(state)
    return _result(diloco, local, entered)


@pytest.mark.parametrize("case", [Case(), Case(2, 2, 0.5)], ids=str)
def test_a_rank_that_leaves_before_the_commit_at_which_another_one_is(case: Case) -> None:
    """Both begin again from the commit before, which the other one had left behind, also where it had no steps."""
    with started_slots(_train_with_a_rank_that_leaves_between_commits, SIZE, case) as slots:
        assert slots.formed() == ["commits", "waits", "waits"]
        slots.kill(LOST)
        slots.form(2)
        results = slots.results()
    for result in results.values():
        assert (result["entered"], result["steps"]) == ([0, 0], STEPS)
        assert has_weights(result, _reference(case, 0, counted=False).outer)


def _train_apart() -> tuple[list[float], list[str]]:
    """Slot 1 waits in its first world, as if it were cut off, until slot 0 has made 8 steps alone."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ringtrain").addHandler(handler)
    rt.init()
    slot, weights = rt.rank(), np.zeros(1)
    diloco = DiLoCo({"w": weights}, outer=SGD(lr=1.0), sync_every=4, elastic=True)
    state: Any = elastic.State(diloco=diloco, step=0)

    @elastic.run
    def run(state: Any) -> None:
        while state.step < 12:
            if slot and os.environ["RINGTRAIN_FORMATION"] == "1" and state.step == 6:
                pause("cut off")
                rt.barrier()
            if os.environ["RINGTRAIN_FORMATION"] == "2" and state.step == 8:
                pause("alone")
                state.check_host_updates()
            weights.fill(weights[0] + 1 + slot)
            state.step += 1
            if state.diloco.step():
                state.commit()

    run(state)
    return weights.tolist(), [text for text in said if "this rank discards its inner steps" in text]


def test_a_rank_that_was_cut_off_gives_its_steps_up_and_says_so() -> None:
    """It is no second world: what it did since the last common synchronization counts nowhere."""
    with started_slots(_train_apart, 2) as slots:
        slots.form()
        assert slots.message(1) == "cut off"
        slots.tell_change(urgent=True, slots=[0])
        slots.form(slots=[0])
        assert slots.message(0) == "alone"
        slots.tell_change(slots=[0])
        slots.living[1].send({"type": "change", "formation": 3, "urgent": True})
        slots.go_on(0)
        slots.living[1].ranks.answer(0, "change")
        slots.form()
        results = slots.results()
    assert [weights for weights, _ in results.values()] == [[6.0 + 4.0 + 6.0]] * 2
    told = "this rank discards its inner steps 5 to 6"
    assert [len(said) for _, said in results.values()] == [0, 1]
    assert results[1][1][0].startswith(told)


def _train_far_from_a_commit() -> tuple[int, float]:
    """Inner steps for ever in the first world, none in the next one."""
    rt.init()
    weights = np.zeros(4)
    diloco = DiLoCo({"w": weights}, sync_every=10**7, elastic=True)
    state: Any = elastic.State(diloco=diloco, step=0)

    @elastic.run
    def run(state: Any) -> None:
        if os.environ["RINGTRAIN_FORMATION"] == "1":
            tell("trains")
            while True:
                weights.fill(weights[0] + 1)
                state.step += 1
                state.diloco.step()

    run(state)
    return diloco.steps, weights.tolist()[0]


def test_a_rank_whose_next_commit_is_too_far_away_goes_back_to_its_last() -> None:
    """Its agent would end it before it comes there: after RINGTRAIN_TIMEOUT."""
    with started_slots(_train_far_from_a_commit, 2, env={"RINGTRAIN_TIMEOUT": "4"}) as slots:
        assert slots.formed() == ["trains"] * 2
        slots.kill(1)
        slots.form()
        assert slots.results() == {0: (0, 0.0)}


def _refused(size: int) -> str:
    """Train until the world has `size` ranks; the error then."""
    rt.init()
    try:
        diloco = DiLoCo({"w": np.zeros(1)}, sync_every=4, elastic=True)
        state: Any = elastic.State(diloco=diloco)

        @elastic.run
        def run(state: Any) -> None:
            pause("alone")
            while rt.size() < size:
                state.commit()

        run(state)
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("starts", [3, 2], ids=["at-the-start", "as-a-rank-joins"])
def test_a_site_of_several_ranks_is_refused_on_all_of_them(starts: int) -> None:
    """One line says what was found and what to do; also on ranks that were in the world before."""
    with started_slots(_refused, starts, 3, sites=("a", "b", "a")) as slots:
        slots.form()
        if starts < 3:
            assert [slots.message(slot) for slot in range(starts)] == ["alone"] * starts
            slots.start(2)
            slots.tell_change()
            slots.go_on(0, 1)
            slots.form()
        results = slots.results()
    (said,) = set(results.values())
    assert said.startswith("DiLoCo: site 'a' has ranks [0, 2]; expected one rank per site with elastic=True"), said
