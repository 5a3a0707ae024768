"""DiLoCo in sites of two ranks whose world changes: ranks are lost at any point, judged by a plain computation.

Survivors say after which inner step they went on, and newcomers after which one they came in. Whether a lost
rank's part in the synchronization at that step counts depends on the moment of its end. All else follows.
"""

import contextlib
import functools
import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.elastic_agent import pause, started_slots
from support.memory_transport import MemoryNetwork
from support.world_config import world_config

import ringtrain as rt
from ring.mortal_weights import SHAPES, STEPS, SYNC_EVERY, Array, MortalWeights, Point, due, has_weights
from ring.reference import bits
from ring.worlds import made_transport
from ringtrain import elastic
from ringtrain._core.process_groups.formations import FormerFormation
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain.elastic.interrupt import IntervalEnded
from ringtrain.errors import RingtrainError
from ringtrain.optim import SGD, DiLoCo, Nesterov

SITES = ("far", "far", "near", "near")
LR, MOMENTUM, INNER = 0.5, 0.5, 0.5
COMMITS = {count: {*range(0, STEPS, SYNC_EVERY // count), STEPS} for count in (1, 2)}


@dataclass(frozen=True)
class Case:
    """Arguments of a DiLoCo; `lost`: slots whose processes end, the first of them by itself, the others when it
    has. `is_replaced`: others take their places. `ahead`: the first ends when the other site has made so many more
    inner steps, if it can. `again`: the second ends by itself, at this point of the next world."""

    lost: tuple[int, ...] = (1,)
    fragments: int = 1
    mix: float = 0.0
    is_replaced: bool = False
    ahead: int = 0
    again: Point | None = None

    def __str__(self) -> str:
        after = ("replaced" if self.is_replaced else "fewer") + ("-late" if self.ahead else "")
        after += f"-again-{self.again[0]}-{self.again[1]}" if self.again else ""
        return f"{'-'.join(map(str, self.lost))}-lost-{self.fragments}-fragments-{self.mix}-{after}"


CASES = [
    Case(lost, fragments, mix, is_replaced)
    for lost in ((1,), (2, 3), (0, 3))
    for fragments, mix in ((1, 0.0), (2, 0.0), (2, 0.5))
    for is_replaced in (False, True)
]
# One site is ahead of the other: of a rank that is lost in it, in the other one, and of both.
LATE_CASES = [
    Case(lost, fragments, mix, is_replaced, ahead=2)
    for lost in ((0,), (3,), (0, 3), (1, 2), (0, 1), (3, 2))
    for fragments, mix, is_replaced in ((1, 0.0, True), (2, 0.5, False))
]
# Another rank is lost in the next world: as that begins, and within the steps that the first loss has interrupted.
TWICE_CASES = [
    Case(lost, fragments, mix, again=point)
    for lost in ((1, 3), (3, 1), (0, 2), (2, 1))
    for fragments, mix in ((1, 0.0), (2, 0.5))
    for point in (("read", 2, 0.0), ("read", 3, 0.0), ("write", 4, 0.0), ("update", 5, 0.0), ("count", 9, 0.0))
]
_AHEAD_S = 0.3  # the other site may be unable to make steps, as it waits; idle machines make them in 10 ms
# Before an inner step and its average, between average, update, count and what keeps it; before weights are read
# or written for the nth time; and so many milliseconds after the nth step began.
POINTS = [
    *((what, step, 0.0) for what in ("average", "update", "count", "keep") for step in range(1, STEPS)),
    *(("read", number, 0.0) for number in range(2, 12)),
    *(("write", number, 0.0) for number in range(4, 18, 2)),
    *(("average", step, delay_ms) for step in (3, 5, 6, 9, 12) for delay_ms in (0.3, 1, 3)),
]


def _gradient(slot: int, step: int, name: str) -> Array:
    random = np.random.default_rng([step, slot, ord(name)])
    return 12 * random.integers(-2, 3, SHAPES[name]).astype(np.float64)


class _Momentum:
    """An inner optimizer with a state, as `StatefulObject`."""

    def __init__(self) -> None:
        self.velocity = {name: np.zeros(shape) for name, shape in SHAPES.items()}

    def update(self, weights: dict[str, Array], gradients: dict[str, Array]) -> None:
        for name, gradient in gradients.items():
            self.velocity[name] = INNER * self.velocity[name] + gradient
            weights[name] -= self.velocity[name]

    def state_dict(self) -> dict[str, Array]:
        return dict(self.velocity)

    def load_state_dict(self, state: dict[str, Array]) -> None:
        self.velocity = {name: array.copy() for name, array in state.items()}


class _Trainer:
    """The training of one rank."""

    def __init__(self, case: Case, slot: int, local: MortalWeights) -> None:
        self.slot, self._local, self._inner = slot, local, _Momentum()
        self._diloco = DiLoCo(
            local,
            initial=dict(local.arrays),
            outer=Nesterov(lr=LR, momentum=MOMENTUM),
            sync_every=SYNC_EVERY,
            fragments=case.fragments,
            mix=case.mix,
            inner=self._inner,
            elastic=True,
            redundancy=3 if len(case.lost) > 1 else 1,
        )
        self.state: Any = elastic.State(diloco=self._diloco, step=0)
        self._entered: list[int] = []
        self._made: list[int] = []

    def train(self, state: Any) -> None:
        """The function that is entered in each world."""
        self._entered.append(state.step)
        while state.step < STEPS:
            step = state.step + 1
            gradients = {name: _gradient(self.slot, step, name) for name in SHAPES}
            self._local.come_to("average", step)
            self._diloco.average(gradients)
            self._local.come_to("update", step)
            self._inner.update(self._local.arrays, gradients)
            self._made.append(step)
            state.step += 1
            if state.step == STEPS:
                self._local.point = None  # after this commit the others may have finished
            self._local.come_to("count", step)
            is_due = self._diloco.step()
            self._local.come_to("keep", step)
            if is_due or state.step == STEPS:
                state.commit()
            else:
                state.keep()
        self._diloco.finish()

    def is_to_end(self, point: Point) -> None:
        """End at `point`, counted from now on."""
        self._local.point = point
        self._local.forget_counts()

    def result(self) -> dict[str, Any]:
        outer = {name: array.copy() for name, array in self._diloco.outer_weights.items()}
        told = {"entered": self._entered, "made": self._made, "steps": self._diloco.steps, "sites": rt.sites()}
        return {**told, "local": self._local.arrays, "outer": outer}


def _train(case: Case, point: Point) -> dict[str, Any]:
    rt.init()
    slot, is_first = int(os.environ["SLOT"]), os.environ["RINGTRAIN_FORMATION"] == "1"
    trainer = _Trainer(case, slot, MortalWeights(point if slot == case.lost[0] and is_first else None))
    elastic.run(trainer.train)(trainer.state)
    return trainer.result()


class _Ended(BaseException):
    """A thread that plays a rank ends, as a process does that is killed."""


class _Progress:
    """Inner steps that the slots of a world have made."""

    def __init__(self) -> None:
        self._steps = dict.fromkeys(range(len(SITES)), 0)
        self._changed = threading.Condition()

    def made(self, slot: int, step: int) -> None:
        with self._changed:
            self._steps[slot] = step
            self._changed.notify_all()

    def await_others(self, slot: int, ahead: int) -> None:
        """Return when the other site is `ahead` of this one, or can't be."""
        others = [other for other, site in enumerate(SITES) if site != SITES[slot]]
        with self._changed:
            wanted = self._steps[slot] + ahead
            self._changed.wait_for(lambda: min(self._steps[other] for other in others) >= wanted, _AHEAD_S)


class _ThreadWeights(MortalWeights):
    """Arrays of a thread that ends at a point, and calls `before_end` first, or ends once `ends` is set."""

    def __init__(
        self,
        point: Point | None,
        ends: threading.Event | None = None,
        made: Callable[[int], None] = lambda step: None,
        before_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(point)
        self.ends, self._made, self._before_end = ends, made, before_end

    def come_to(self, what: str, number: int) -> None:
        if what == "count":
            self._made(number)
        if self.point is not None and self.point[:2] == (what, number):
            self._before_end()
            raise _Ended
        if self.ends and self.ends.is_set():
            raise _Ended


@dataclass
class _World:
    """A world of threads over memory. `members`: by rank its slot, and the training that it had before."""

    number: int
    case: Case
    point: Point
    has_ended: threading.Event
    members: list[tuple[int, _Trainer | None]]
    former: tuple[int | None, ...]
    results: dict[int, dict[str, Any]]

    def play(self) -> list[tuple[int, _Trainer] | None]:
        """By rank, its slot and its training where it has left because of a loss; None: it has ended, or is
        done."""
        network, self._progress = MemoryNetwork(), _Progress()
        with ThreadPoolExecutor(len(self.members)) as pool:
            return list(pool.map(lambda rank: self._live(rank, network), range(len(self.members))))

    def _live(self, rank: int, network: MemoryNetwork) -> tuple[int, _Trainer] | None:
        slot, trainer = self.members[rank]
        addresses = tuple(f"127.0.0.1:{7000 + other}" for other in range(len(self.members)))
        sites = tuple(SITES[other] for other, _ in self.members)
        config = world_config(
            rank=rank, size=len(self.members), addresses=addresses, transport="grpc", sites=sites, timeout_s=60.0
        )
        context = ProcessGroupContext(config, made_transport("memory", config, network))
        context.former = FormerFormation(self.number - 1, self.former)
        if self.number == 2 and trainer is not None and self.case.again and slot == self.case.lost[1]:
            trainer.is_to_end(self.case.again)
        try:
            with context.entered():
                trainer = trainer or _Trainer(self.case, slot, self._weights(slot))
                trainer.state.sync()
                while True:
                    with contextlib.suppress(IntervalEnded):
                        trainer.train(trainer.state)
                        break
                self.results[slot] = trainer.result()
                return None
        except _Ended:
            self.has_ended.set()
            return None
        except RingtrainError:
            if trainer is None or (slot in self.case.lost and self.number == 1 and not self._comes_again(slot)):
                return None
        finally:
            context.close()
        trainer.state.restore()
        return slot, trainer

    def _comes_again(self, slot: int) -> bool:
        """Whether the slot is lost in the second world alone."""
        return self.case.again is not None and slot != self.case.lost[0]

    def _weights(self, slot: int) -> _ThreadWeights:
        made = functools.partial(self._progress.made, slot)
        if self.number > 1 or slot not in self.case.lost:
            return _ThreadWeights(None, made=made)
        if slot != self.case.lost[0]:
            return _ThreadWeights(None, None if self._comes_again(slot) else self.has_ended, made)
        wait = functools.partial(self._progress.await_others, slot, self.case.ahead)
        return _ThreadWeights(self.point, made=made, before_end=wait if self.case.ahead else lambda: None)


def _played_in_memory(case: Case, point: Point) -> tuple[bool, dict[int, dict[str, Any]]]:
    """Whether ranks were lost, and results by slot: of ranks that are threads, and of up to three worlds."""
    has_ended, results = threading.Event(), dict[int, dict[str, Any]]()
    first: list[tuple[int, _Trainer | None]] = [(slot, None) for slot in range(len(SITES))]
    left = _World(1, case, point, has_ended, first, (None,) * len(SITES), results).play()
    if has_ended.is_set():
        former: tuple[int | None, ...] = tuple(rank for rank, one in enumerate(left) if one is not None)
        members: list[tuple[int, _Trainer | None]] = [one for one in left if one is not None]
        if case.is_replaced:
            former += (None,) * len(case.lost)
            members += [(slot, None) for slot in case.lost]
        left = _World(2, case, point, has_ended, members, former, results).play()
        former = tuple(rank for rank, one in enumerate(left) if one is not None)
        members = [one for one in left if one is not None]
        if members:  # a second one was lost
            assert case.again is not None, point
            left = _World(3, case, point, has_ended, members, former, results).play()
        assert left == [None] * len(left), point
    return has_ended.is_set(), results


@dataclass
class _Site:
    """A site in the plain computation. `samples`: by slot and parameter, since it was synchronized last."""

    weights: dict[str, Array]
    velocity: dict[str, Array]
    samples: dict[int, dict[str, int]]


class _Reference:
    """Plain numpy. `at`: by lost slot, after which step its site, or the other where all of it is lost, went on.
    `counted`: by lost slot, whether its part in the synchronization at that step counts. `came`: after which step
    newcomers came in."""

    def __init__(self, case: Case, at: tuple[int, ...], counted: tuple[bool, ...], came: int | None) -> None:
        self._case, self._losses, self._came = case, list(zip(case.lost, at, counted, strict=True)), came
        self.outer = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self._outer_velocity = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self._sent = dict.fromkeys(SHAPES, 0)
        self._sites: dict[str, _Site] = {}
        for slot in range(len(SITES)):
            self._enter(slot)
        self._lose(0, True)
        self._lose(0, False)
        self._let_in(0)
        for step in range(1, STEPS + 1):
            for site in self._sites.values():
                for name in SHAPES:
                    mean = sum(_gradient(slot, step, name) for slot in site.samples) / len(site.samples)
                    site.velocity[name] = INNER * site.velocity[name] + mean
                    site.weights[name] = site.weights[name] - site.velocity[name]
                    for samples in site.samples.values():
                        samples[name] += 1
            self._lose(step, False)
            # Of newcomers: the synchronization was done before the world changed.
            is_done = step in at and all(done for _, own, done in self._losses if own == step)
            if not is_done:
                self._let_in(step)
            self._synchronize(due(step, self._case.fragments), step, case.mix)
            self._lose(step, True)
            if is_done:
                self._let_in(step)
        rest = "".join(name for name in SHAPES if self._sent[name] < STEPS)
        self._synchronize(rest, STEPS, 0)

    def _enter(self, slot: int) -> None:
        """With the state of its site, or from the outer weights."""
        new = _Site(dict(self.outer), {name: np.zeros(shape) for name, shape in SHAPES.items()}, {})
        site = self._sites.setdefault(SITES[slot], new)
        site.samples[slot] = dict.fromkeys(SHAPES, 0)

    def _lose(self, step: int, counted: bool) -> None:
        for slot, own, done in self._losses:
            if (own, done) == (step, counted):
                self._sites[SITES[slot]].samples.pop(slot)
        self._sites = {name: site for name, site in self._sites.items() if site.samples}

    def _let_in(self, step: int) -> None:
        for slot in self._case.lost if step == self._came else ():
            self._enter(slot)

    def _synchronize(self, names: str, step: int, mix: float) -> None:
        for name in names:
            counts = {key: sum(one[name] for one in site.samples.values()) for key, site in self._sites.items()}
            mean = sum(
                counts[key] * (self.outer[name] - site.weights[name]) for key, site in self._sites.items()
            ) / sum(counts.values())
            self._outer_velocity[name] = MOMENTUM * self._outer_velocity[name] + mean
            self.outer[name] = self.outer[name] - LR * (mean + MOMENTUM * self._outer_velocity[name])
            self._sent[name] = step
            for site in self._sites.values():
                site.weights[name] = mix * site.weights[name] + (1 - mix) * self.outer[name]
                for samples in site.samples.values():
                    samples[name] = 0


@functools.cache
def _reference(case: Case, at: tuple[int, ...], counted: tuple[bool, ...], came: int | None) -> _Reference:
    return _Reference(case, at, counted, came)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", [*CASES, *LATE_CASES], ids=str)
def test_ranks_that_are_lost_at_any_point_cost_their_own_share(case: Case) -> None:
    """All that are left have the same bits, and the weights of a computation in which the lost ranks have no part
    from some step on. Nobody makes an inner step twice but where all go back to a commit, and sites of which
    nobody is lost leave none out."""
    for point in POINTS:
        if not point[2]:
            is_lost, results = _played_in_memory(case, point)
            _judge(case, point, is_lost, results)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", TWICE_CASES, ids=str)
def test_a_loss_after_a_loss_costs_its_own_share(case: Case) -> None:
    """As one, where a rank ends in the world that follows a loss."""
    for what, number in (("average", 2), ("update", 5), ("read", 4), ("write", 8), ("average", 9)):
        point = (what, number, 0.0)
        is_lost, results = _played_in_memory(case, point)
        _judge(case, point, is_lost, results)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("case", "point", "transport"),
    [
        pytest.param(case, point, transport, id=f"{case}-{'-'.join(map(str, point))}-{transport}")
        for first, case in enumerate(CASES)
        for point, transport in zip(POINTS[first::9], itertools.cycle(["auto", "grpc"]), strict=False)
    ],
)
def test_processes_that_are_killed_anywhere_cost_their_own_share(case: Case, point: Point, transport: str) -> None:
    """As threads over memory, in processes that are told their worlds by an agent."""
    env = {"RINGTRAIN_TRANSPORT": transport}
    with started_slots(_train, len(SITES), case, point, env=env, sites=SITES) as slots:
        slots.form()
        outcome = slots.ended(case.lost[0])
        assert outcome.ok or outcome.exit_code == -signal.SIGKILL, outcome
        if is_lost := not outcome.ok:
            for slot in case.lost[1:]:
                slots.kill(slot, urgent=False)
            slots.tell_change(urgent=True)
            for slot in case.lost if case.is_replaced else ():
                slots.start(slot)
            slots.form()
        results = slots.results()
    _judge(case, point, is_lost, results)


def _judge(case: Case, point: Point, is_lost: bool, results: dict[int, dict[str, Any]]) -> None:
    if case.again:  # it may not have come to that
        case = replace(case, lost=tuple(slot for slot in case.lost if slot not in results))
    left = {slot: result for slot, result in results.items() if slot not in case.lost}
    first = next(iter(left.values()))
    for slot, result in results.items():
        assert bits(result["outer"]) == bits(first["outer"]) == bits(result["local"]), (point, slot)
        assert result["steps"] == STEPS
    # Where one was lost within a synchronization, all go back to its commit.
    again = {step for result in left.values() for step in result["entered"][1:]}
    are_back = case.again is not None or (len(again) == 1 and again <= COMMITS[case.fragments])
    for slot, result in left.items():
        made = result["made"]
        assert are_back or len(set(made)) == len(made), f"{point}: slot {slot} has made steps twice: {made}"
        is_touched = any(SITES[slot] == SITES[lost] for lost in case.lost)
        missing = set(range(1, STEPS + 1)) - set(made) - set(result["entered"])
        assert is_touched or not missing, f"{point}: slot {slot} has left steps {missing} out"
    assert first["sites"] == {
        name: [rank for rank, at in enumerate(_in_order(case, is_lost)) if at == name]
        for name in dict.fromkeys(_in_order(case, is_lost))
    }
    if not is_lost:
        never, counted = (-1,) * len(case.lost), (True,) * len(case.lost)
        assert all(has_weights(result, _reference(case, never, counted, None).outer) for result in left.values()), point
        return
    came = {result["entered"][0] for slot, result in results.items() if slot in case.lost}
    assert len(came) == case.is_replaced
    mates = [[slot for slot in left if SITES[slot] == SITES[lost]] or list(left) for lost in case.lost]
    # Who was lost before the others had entered their function was lost at its beginning.
    steps = [sorted({step for slot in own for step in left[slot]["entered"][1:] or [0]}) for own in mates]
    possible = [
        _reference(case, at, counted, next(iter(came), None))
        for at in itertools.product(*steps)
        for counted in itertools.product((False, True), repeat=len(case.lost))
    ]
    assert any(all(has_weights(result, one.outer) for result in results.values()) for one in possible), (
        f"{point}: survivors went on from steps {steps}, newcomers came in at {came}, and have other weights than "
        f"with or without the lost ranks' part: { {slot: result['entered'] for slot, result in results.items()} }"
    )


def _in_order(case: Case, is_lost: bool) -> list[str]:
    """The site of each rank of the last world: survivors first."""
    if not is_lost:
        return list(SITES)
    left = [site for slot, site in enumerate(SITES) if slot not in case.lost]
    return left + ([SITES[slot] for slot in case.lost] if case.is_replaced else [])


def _train_apart() -> tuple[list[float], list[str]]:
    """Both ranks of the site far wait in their first world, as if it were cut off, until the others have made two
    steps more."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ringtrain").addHandler(handler)
    rt.init()
    params = {"w": np.zeros(1)}
    diloco = DiLoCo(params, outer=SGD(lr=1.0), sync_every=4, elastic=True, inner=())
    state: Any = elastic.State(diloco=diloco, step=0)

    @elastic.run
    def run(state: Any) -> None:
        while state.step < 12:
            if os.environ["RINGTRAIN_FORMATION"] == "1" and state.step == 6:
                pause("parted")
                rt.barrier()
            if os.environ["RINGTRAIN_FORMATION"] == "2" and state.step == 8:
                pause("alone")
                state.check_host_updates()
            change = {"w": np.array([1.0 if rt.site() == "far" else 2.0])}
            diloco.average(change)
            params["w"] += change["w"]
            state.step += 1
            if state.diloco.step():
                state.commit()
            else:
                state.keep()

    run(state)
    return params["w"].tolist(), [text for text in said if "went on without this rank" in text]


def test_a_site_that_was_cut_off_and_comes_back_gives_its_steps_up() -> None:
    """And its ranks say so: what they did since the last common synchronization counts nowhere, and what the other
    site did after its last kept step counts once."""
    with started_slots(_train_apart, len(SITES), sites=SITES) as slots:
        assert slots.formed() == ["parted"] * 4
        slots.tell_change(urgent=True, slots=[2, 3])
        slots.go_on(2, 3)
        slots.form(slots=[2, 3])
        assert [slots.message(slot) for slot in (2, 3)] == ["alone"] * 2
        slots.tell_change(slots=[2, 3])
        for slot in (0, 1):
            slots.living[slot].send({"type": "change", "formation": 3, "urgent": True})
            slots.living[slot].ranks.answer(0, "change")
        slots.form(2, 3)
        results = slots.results()
    # Four steps of both sites, four of the near one, and four of both.
    assert [weights for weights, _ in results.values()] == [[6.0 + 8.0 + 6.0]] * 4
    assert [len(said) for _, said in results.values()] == [1, 1, 0, 0]
    assert "its inner steps 5 to 6 are given up" in results[0][1][0]


def _begins_small() -> tuple[str, list[float]]:
    """Slot 0 is alone until others come; gradients are the slots' numbers and 1."""
    rt.init()
    params, slot = {"w": np.zeros(1)}, int(os.environ["SLOT"])
    diloco = DiLoCo(params, outer=SGD(lr=1.0), sync_every=2, elastic=True, inner=())
    state: Any = elastic.State(diloco=diloco, step=0)

    @elastic.run
    def run(state: Any) -> None:
        while state.step < 4:
            if rt.size() == 1 and state.step == 2:
                pause("alone")
                state.check_host_updates()
            change = {"w": np.array([slot + 1.0])}
            diloco.average(change)
            params["w"] += change["w"]
            state.step += 1
            if state.diloco.step():
                state.commit()
            else:
                state.keep()

    run(state)
    return rt.site(), params["w"].tolist()


def test_a_world_of_one_rank_has_its_site() -> None:
    """So that others of the site, and another one, can join it."""
    with started_slots(_begins_small, 1, sites=SITES) as slots:
        slots.form()
        assert slots.message(0) == "alone"
        for slot in (1, 2):
            slots.start(slot)
        slots.tell_change()
        slots.form(0)
        results = slots.results()
    # Two steps of slot 0; two of the sites far (1 and 2) and near (3), which counts by its one rank.
    assert results == {slot: (SITES[slot], [2.0 + (2 * 3.0 + 6.0) / 3]) for slot in range(3)}
