"""An optimizer whose world changes: an update is done on all ranks or on none, and the state moves on with it.

A world fails at a scripted collective of an update. Ranks roll back, meet in another world, and go on; gradients
are the same exact numbers on all ranks, so that weights and state must be those of a world that was not disturbed.
"""

import contextlib
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.formations import FormerFormation
from ringtrain._core.process_groups.group import ProcessGroup
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.elastic.optimizers import OptimizerParticipant
from ringtrain.errors import ConfigurationError, MismatchError, PeerLost, RingtrainError, StateCorrupt, StateLost
from ringtrain.optim import LAMB, SGD, AdamW, HostOptimizer, Rule
from ringtrain.optim.cut import UnjoinedOptimizerGroup
from ringtrain.optim.memory_check import EVERY, PARTS
from ringtrain.optim.mirror import assign_replicas
from ringtrain.optim.wire import LOST, LOST_CHANGE

from .worlds import World, all_raise, world_of

SIZE = 3
DISTURBED = 2  # this update, counted from 0, fails
LAST = 4

BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, eq=False)
class Case:
    """Settings of a training: rule, dtype, local parameters and optimizer options. A key of `_undisturbed`."""

    rule: Rule = field(default_factory=lambda: AdamW(0.1))
    dtype: Any = np.float32
    local: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)


IN_STEP = {"update_during_backward": False}
CASES = {
    "in-step": Case(options=IN_STEP),
    "in-step-int8": Case(options={**IN_STEP, "compression": "int8"}),
    "fused": Case(),
    "fused-half": Case(SGD(0.1, momentum=0.9), BF16),
    "local": Case(local=["own", "last"]),
    "clip": Case(options={"clip_norm": 0.5}),
    "lamb": Case(LAMB(0.1)),
    "lamb-half-clip": Case(LAMB(0.1), BF16, options={"clip_norm": 0.5}),
    "accumulate": Case(options={"accumulate": 2}),
    "bf16": Case(options={"compression": "bf16"}),
    "int8-clip": Case(options={"compression": "int8", "clip_norm": 0.5}),
    "unsharded": Case(local=["own"], options={"sharded": False}),
    "two-copies": Case(options={"redundancy": 2}),
}
SHAPES = {"own": (5, 7), "a": (40, 33), "b": (1001,), "c": (0, 3), "d": (9,), "last": (3,)}


class FailingGroup(ProcessGroup):
    """The world, which this rank leaves before its collective number `fails_at` of those that are counted."""

    def __init__(self, group: ProcessGroup, count: list[int]) -> None:
        vars(self).update(vars(group))
        self._count = count  # how many are left; shared with the lane

    def parallel_group(self) -> ProcessGroup | None:
        lane = super().parallel_group()
        return None if lane is None else FailingGroup(lane, self._count)

    def call(self, work: Any) -> Any:
        self._before()
        return super().call(work)

    def begin(self, work: Any) -> Any:
        self._before()
        return super().begin(work)

    def _before(self) -> None:
        self._count[0] -= 1
        if self._count[0] == 0:
            current().close()
            raise PeerLost(current().config.place.rank, "this rank was made to leave")


def _made(case: Case, group: Any) -> HostOptimizer:
    start = np.random.default_rng(7)
    params = {name: start.integers(-8, 9, shape).astype(case.dtype) / 8 for name, shape in SHAPES.items()}
    params = {name: np.asarray(values, case.dtype) for name, values in params.items()}
    options = {"update_during_backward": True, **case.options}
    return HostOptimizer(params, case.rule, bucket_bytes=2000, local=case.local, elastic=True, group=group, **options)


def _submit_update(opt: HostOptimizer, case: Case) -> None:
    """The same exact gradients on every rank, so that the world's size does not matter."""
    for micro_step in range(case.options.get("accumulate", 1)):
        for name, weights in reversed(opt.weights.items()):
            random = np.random.default_rng([opt.updates, micro_step, weights.size])
            opt.submit(name, np.asarray(random.integers(-8, 9, weights.shape) / 8, weights.dtype))
        opt.step()


def _train(opt: HostOptimizer, case: Case, to: int) -> None:
    while opt.updates < to:
        _submit_update(opt, case)


def _bits(opt: HostOptimizer) -> dict[str, bytes]:
    state = opt.state_dict()
    slots = {**state["arrays"], **state.get("error_feedback", {})}
    return {f"{slot} {name}": array.tobytes() for slot, of in slots.items() for name, array in of.items()}


def _size_of(transport: str) -> int:
    """Two pods of two, where there are pods."""
    return 4 if transport == "pods" else SIZE


@functools.cache
def _undisturbed(case: Case, transport: str, size: int = SIZE) -> list[dict[str, bytes]]:
    """Return the bits of weights and state after each update of a training without faults."""
    with world_of(size, transport) as world:

        def run(rank: int) -> list[dict[str, bytes]]:
            opt, bits = _made(case, group_of()), []
            for update in range(LAST + 1):
                _train(opt, case, update)
                bits.append(_bits(opt))
            opt.close()
            return bits

        return world.run(run)[0]


def _fail_at(world: World, case: Case, victim: int, fails_at: int) -> tuple[list[HostOptimizer], list[int], bool]:
    """Train until the victim leaves. Returns optimizers, updates that each rank has done, and whether it left."""
    count = [-1]
    made: list[HostOptimizer | None] = [None] * len(world.contexts)

    def run(rank: int) -> int:
        group = FailingGroup(group_of(), count) if rank == victim else group_of()
        opt = made[rank] = _made(case, group)
        _train(opt, case, DISTURBED)
        world.meet()
        if rank == victim:
            count[0] = fails_at
        with contextlib.suppress(RingtrainError):
            _submit_update(opt, case)
        world.meet()
        return opt.rollback()

    done = world.run(run)
    return [opt for opt in made if opt is not None], done, count[0] <= 0


def _all_go_on(opts: list[HostOptimizer], case: Case, updates: int, transport: str) -> list[list[dict[str, bytes]]]:
    """In another world of the same ranks: state after `updates`, and at the end."""
    with world_of(len(opts), transport) as world:

        def run(rank: int) -> list[dict[str, bytes]]:
            opt = opts[rank]
            assert opt.rollback(updates) == updates
            opt.reform(group_of(), range(len(opts)))
            bits = [_bits(opt)]
            _train(opt, case, LAST)
            return [*bits, _bits(opt)]

        return world.run(run)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_update_that_fails_anywhere_never_was(case: Case) -> None:
    """Whichever collective fails: all ranks have the bits of the last update that all have done, and go on."""
    expected = _undisturbed(case, "memory")
    fails_at, left = 0, True
    while left:
        fails_at += 1
        with world_of(SIZE, "memory", timeout_s=10) as world:
            opts, done, left = _fail_at(world, case, fails_at % SIZE, fails_at)
        agreed = min(done)
        assert max(done) - agreed <= 1
        assert agreed in (DISTURBED, DISTURBED + 1)
        for rank, bits in enumerate(_all_go_on(opts, case, agreed, "memory")):
            assert bits == [expected[agreed], expected[LAST]], (fails_at, rank)
    assert fails_at >= 3


@pytest.mark.parametrize("case", [CASES["in-step"], CASES["in-step-int8"]], ids=["plain", "int8"])
def test_weights_that_are_set_before_step_are_as_if_they_were_set_before_the_first_gradient(case: Case) -> None:
    """For each rank's shard and its copy, and where the update is given up after that."""

    def run(rank: int, is_late: bool) -> dict[str, bytes]:
        opt = _made(case, group_of())

        def write() -> None:
            for weights in opt.weights.values():
                weights[...] = np.clip(weights, -0.5, 0.5)
            opt.take_weights()

        for gives_up in (False, True, False):
            _train(opt, case, opt.updates + 2)
            if not is_late:
                write()
            for name, weights in reversed(opt.weights.items()):
                opt.submit(name, np.full_like(weights, 0.3))
            if gives_up:
                opt.gather_gradients()  # no rank gives up a reduction that another one waits for
            if is_late:
                write()
            updates = opt.updates
            assert opt.rollback() == updates if gives_up else opt.step()
        _train(opt, case, opt.updates + EVERY + 1)  # copies are compared meanwhile
        bits = _bits(opt)
        opt.close()
        return bits

    with world_of(SIZE, "memory") as world:
        early = world.run(lambda rank: run(rank, False))
    with world_of(SIZE, "memory") as world:
        late = world.run(lambda rank: run(rank, True))
    assert all(bits == early[0] for bits in (*early, *late))


@pytest.mark.parametrize("transport", ["grpc", "shm", "pods"])
@pytest.mark.parametrize(
    "case", [CASES[name] for name in ("fused", "lamb", "int8-clip")], ids=["fused", "lamb", "int8"]
)
def test_it_never_was_over_every_transport(case: Case, transport: str) -> None:
    size = _size_of(transport)
    expected = _undisturbed(case, transport, size)
    for fails_at in (2, 5):
        with world_of(size, transport, timeout_s=10) as world:
            opts, done, _ = _fail_at(world, case, fails_at % size, fails_at)
        for rank, bits in enumerate(_all_go_on(opts, case, min(done), transport)):
            assert bits == [expected[min(done)], expected[LAST]], (fails_at, rank)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_update_that_was_done_can_be_undone(case: Case) -> None:
    """One back, as a rank must that ended an update which another one did not; also with the next one begun."""
    expected = _undisturbed(case, "memory")
    with world_of(SIZE) as world:

        def run(rank: int) -> HostOptimizer:
            opt = _made(case, group_of())
            _train(opt, case, DISTURBED + 1)
            name = "last"
            opt.submit(name, np.ones(SHAPES[name], case.dtype))  # of a local bucket, where that is the first
            assert opt.rollback(DISTURBED) == opt.updates == DISTURBED
            return opt

        for bits in _all_go_on(world.run(run), case, DISTURBED, "memory"):
            assert bits == [expected[DISTURBED], expected[LAST]]


@pytest.mark.parametrize("transport", ["memory", "shm"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_update_can_be_undone_after_what_was_begun_behind_it(case: Case, transport: str) -> None:
    """A rank goes back to its own last commit before it hears that another one has not done that update."""
    expected = _undisturbed(case, "memory")
    with world_of(SIZE, transport) as world:

        def run(rank: int) -> HostOptimizer:
            opt = _made(case, group_of())
            _train(opt, case, DISTURBED + 1)
            assert opt.rollback(DISTURBED + 1) == DISTURBED + 1
            if rank:
                assert opt.rollback(DISTURBED) == DISTURBED
            return opt

        for bits in _all_go_on(world.run(run), case, DISTURBED, transport):
            assert bits == [expected[DISTURBED], expected[LAST]]


MOVES: dict[str, tuple[int, list[int | None]]] = {
    "grows": (2, [0, 1, None]),
    "grows-at-the-front": (2, [None, 1, 0]),
    "is-permuted": (3, [2, 0, 1]),
    "from-one": (1, [None, 0, None]),
}
LOSSES: dict[str, tuple[int, list[int | None]]] = {
    "replaced": (3, [0, None, 2]),
    "shrunk": (3, [2, 0]),
    "two-of-four": (4, [None, 1, 3]),
    "down-to-one": (2, [1]),
}
CHANGES = [(change, name) for change in MOVES for name in ("fused", "fused-half", "lamb", "unsharded", "clip")] + [
    (change, name)
    for change in LOSSES
    for name in ("fused", "fused-half", "clip", "lamb-half-clip", "accumulate", "unsharded")
]


@functools.cache
def _without_local(name: str) -> Case:
    return Case(CASES[name].rule, CASES[name].dtype, options=CASES[name].options)


@pytest.mark.parametrize(("change", "name"), CHANGES)
def test_newcomers_get_what_they_need_and_a_lost_shard_is_rebuilt(change: str, name: str) -> None:
    """Between two updates: all have the bits of a world that was as large from the beginning."""
    size, former = (MOVES | LOSSES)[change]
    case = _without_local(name)
    expected = _undisturbed(case, "memory", len(former))
    opts = _trained_in(case, size)
    with world_of(len(former)) as world:
        states = world.run(lambda rank: _goes_on(case, opts, former, rank))
        assert states == [[expected[DISTURBED], expected[LAST]]] * len(former)


def _trained_there(case: Case) -> HostOptimizer:
    opt = _made(case, group_of())
    _train(opt, case, DISTURBED)
    return opt


def _trained_in(case: Case, size: int) -> list[HostOptimizer]:
    with world_of(size) as world:
        return world.run(lambda rank: _trained_there(case))


def test_a_newcomer_trains_nothing_before_it_has_the_state() -> None:
    """Whatever it does with the optimizer: else it would train alone, and nobody would know."""
    opt = _made(CASES["fused"], UnjoinedOptimizerGroup())
    for call in (lambda: opt.submit("a", np.ones((40, 33), np.float32)), opt.state_dict):
        with pytest.raises(ConfigurationError, match="before this rank has received the state"):
            call()


def test_whoever_is_at_another_update_is_named() -> None:
    """A survivor that did not roll back: MismatchError on all ranks, and nothing has changed."""
    case = CASES["fused"]
    with world_of(2) as world:
        opts = world.run(lambda rank: _trained_there(case))
        opts[1].rollback(DISTURBED - 1)
        errors = world.errors(lambda rank: opts[rank].reform(group_of(), [0, 1]))
        all_raise(errors, MismatchError, "updates is 2 on rank 0 and 1 on rank 1")
        assert [opt.updates for opt in opts] == [DISTURBED, DISTURBED - 1]


def test_a_local_parameter_goes_with_its_rank() -> None:
    """StateLost on every survivor names the rank that alone had it."""
    case = CASES["local"]
    opts = _trained_in(case, SIZE)
    with world_of(2) as world:
        errors = world.errors(lambda rank: opts[rank].reform(group_of(), [0, 1]))
        all_raise(errors, StateLost, '"own", which is local', ranks=(2,))


def test_weights_that_are_half_new_are_not_trained_on() -> None:
    """After a rollback only reform() makes the shards of other ranks whole."""
    case = CASES["fused"]
    with world_of(2) as world:

        def run(rank: int) -> None:
            opt = _trained_there(case)
            opt.rollback(DISTURBED - 1)
            opt.submit("last", np.ones(3, np.float32))

        all_raise(world.errors(run), ConfigurationError, "may be partly updated; call reform()")


def test_an_optimizer_that_is_not_elastic_says_so() -> None:
    opt = HostOptimizer({"w": np.zeros(3)}, SGD(0.1), group=UnjoinedOptimizerGroup())
    for call in (opt.rollback, lambda: opt.reform(UnjoinedOptimizerGroup(), [0])):
        with pytest.raises(ConfigurationError, match="elastic=True"):
            call()


@pytest.mark.parametrize("transport", ["memory", "grpc", "shm", "pods"])
@pytest.mark.parametrize("name", ["fused", "lamb", "clip"])
def test_a_rank_that_is_lost_in_an_update_costs_no_more_than_that(name: str, transport: str) -> None:
    """Wherever it leaves, a newcomer in its place gets the bits of the last update that the others have done."""
    case, size = CASES[name], _size_of(transport)
    expected = _undisturbed(case, transport, size)
    for fails_at in (1, 3, 4, 6) if transport == "memory" else (3,):
        _lose_in_an_update(case, transport, fails_at, {fails_at % size}, expected)


def _goes_on(case: Case, opts: list[HostOptimizer], former: list[int | None], rank: int) -> list[dict[str, bytes]]:
    """State after the reform and at the end."""
    before = former[rank]
    opt = _made(case, UnjoinedOptimizerGroup()) if before is None else opts[before]
    opt.reform(group_of(), former)
    bits = [_bits(opt)]
    _train(opt, case, LAST)
    return [*bits, _bits(opt)]


@pytest.mark.parametrize("name", ["bf16", "int8-clip"])
def test_what_compression_owes_goes_on_as_far_as_it_is_known(name: str) -> None:
    """Weights, state, and what is owed of changes are to the bit; what the lost rank owed of gradients is gone."""
    case = CASES[name]
    expected = _undisturbed(case, "memory")
    opts = _trained_in(case, SIZE)
    former: list[int | None] = [0, None, 2]
    with world_of(SIZE) as world:
        for bits, _ in world.run(lambda rank: _goes_on(case, opts, former, rank)):
            assert _differing(bits, expected[DISTURBED]) <= {"lost"}


LEAVERS = [list(found) for count in range(1, 4) for found in itertools.combinations(range(4), count)]


@pytest.mark.parametrize(
    ("name", "transport"),
    [
        *((name, "memory") for name in CASES if name not in ("local", "unsharded")),
        *((name, transport) for name in ("fused", "int8-clip") for transport in ("pods", "shm")),
    ],
)
def test_whoever_leaves_by_plan_takes_nothing_away(name: str, transport: str) -> None:
    """Whichever ranks leave, and however many: those that stay have the bits of a world that never changed."""
    case = CASES[name]
    compressed = "compression" in case.options
    # A norm is a sum over shards, whose rounding follows the size of the world.
    same_to_the_end = name in ("fused", "fused-half", "accumulate")
    expected = _undisturbed(case, "memory", 4)
    for leavers in LEAVERS:
        with world_of(4, transport) as world:
            opts = world.run(lambda rank: _trained_there(case))
            world.run(functools.partial(_hands_over, opts, leavers))
        former: list[int | None] = [rank for rank in range(4) if rank not in leavers]
        # What compression owes of gradients is each rank's own, as decision 22 says; one rank owes nothing.
        owed = {LOST, LOST_CHANGE} if compressed and len(former) == 1 else {LOST} if compressed else set()
        with world_of(len(former), "memory") as world:
            found = world.run(functools.partial(_goes_on, case, opts, former))
            for bits, end in found:
                assert _differing(bits, expected[DISTURBED]) <= owed, leavers
                assert not same_to_the_end or end == expected[LAST], leavers


def _hands_over(opts: list[HostOptimizer], leavers: list[int], rank: int) -> None:
    opts[rank].hand_over(leavers)


def test_what_leavers_gave_is_of_one_update() -> None:
    """Ranks that train on after all do not bring it into the next world: it would be old."""
    case = CASES["fused"]
    with world_of(4) as world:
        opts = world.run(lambda rank: _trained_there(case))
        world.run(lambda rank: opts[rank].hand_over([1, 2]))
        world.run(lambda rank: _train(opts[rank], case, DISTURBED + 1))
    with world_of(2) as world:
        all_raise(world.errors(lambda rank: opts[[0, 3][rank]].reform(group_of(), [0, 3])), StateLost)


def _differing(bits: dict[str, bytes], expected: dict[str, bytes]) -> set[str]:
    """The kinds of arrays that are not alike."""
    return {name.split()[0] for name, of in expected.items() if bits.get(name) != of}


def test_both_homes_lost_is_said_on_every_rank() -> None:
    case = CASES["fused"]
    opts = _trained_in(case, SIZE)
    with world_of(2) as world:
        errors = world.errors(lambda rank: _goes_on(case, opts, [0, None], rank))
        all_raise(
            errors,
            StateLost,
            "ranks [1, 2] of the former world are lost, and no other rank has a replica of the shards of [1]",
            ranks=(1,),
        )


def test_a_loaded_state_has_a_second_home() -> None:
    """A checkpoint that is loaded counts for the copy as well; what was before it can't be gone back to."""
    case = CASES["bf16"]
    expected = _undisturbed(case, "memory")
    with world_of(SIZE) as world:

        def load(rank: int) -> HostOptimizer:
            opt = _trained_there(case)
            state = opt.state_dict()
            _train(opt, case, LAST)
            opt.load_state_dict(state)
            with pytest.raises(ConfigurationError, match="expected 2 or more, because"):
                opt.rollback(1)
            return opt

        opts = world.run(load)
    with world_of(SIZE) as world:
        for bits, _ in world.run(lambda rank: _goes_on(case, opts, [0, 1, None], rank)):
            assert _differing(bits, expected[DISTURBED]) <= {"lost"}


@pytest.mark.parametrize(
    ("pods", "homes"),
    [
        ([0, 1], [1, 0]),
        ([0, 0, 2, 2], [2, 3, 0, 1]),
        ([0, 0, 0], [1, 2, 0]),
        ([0, 0, 2, 3], [2, 3, 0, 1]),
        ([0, 0, 0, 3], [1, 2, 3, 0]),
    ],
)
def test_a_second_home_is_in_another_pod_where_there_is_one(pods: list[int], homes: list[int]) -> None:
    assert assign_replicas(pods) == [tuple(homes)]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=16))
def test_two_second_homes_are_in_two_other_pods_where_there_are_two(pods: list[int]) -> None:
    """Every rank has one shard of each copy; no pod has a shard twice if none has over a third of the ranks."""
    copies = assign_replicas(pods, 2)
    assert len(copies) == min(2, len(pods) - 1)
    for copy in copies:
        assert sorted(copy) == list(range(len(pods)))
    for homes in zip(range(len(pods)), *copies, strict=True):
        assert len(set(homes)) == len(homes)
        if 3 * max(map(pods.count, pods)) <= len(pods):
            assert len({pods[home] for home in homes}) == 3


@functools.cache
def _with_two_copies(name: str) -> Case:
    case = CASES[name]
    return Case(case.rule, case.dtype, options={**case.options, "redundancy": 2})


@pytest.mark.parametrize("name", ["fused", "fused-half", "lamb-half-clip", "accumulate", "bf16", "int8-clip"])
def test_any_two_ranks_may_be_lost_at_once_where_shards_have_two_copies(name: str) -> None:
    """Whichever two: those who go on have the bits of a world that was not disturbed. Three are said on all."""
    case = _with_two_copies(name)
    owed = {LOST} if "compression" in case.options else set()  # by each rank itself, as decision 22 says
    expected = _undisturbed(case, "memory", 4)
    for lost in itertools.combinations(range(4), 2):
        opts = _trained_in(case, 4)
        former = [None if rank in lost else rank for rank in range(4)]
        with world_of(4) as world:
            for bits, end in world.run(functools.partial(_goes_on, case, opts, former)):
                assert _differing(bits, expected[DISTURBED]) <= owed, lost
                assert owed or end == expected[LAST], lost
    opts = _trained_in(case, 4)
    with world_of(2) as world:
        all_raise(world.errors(lambda rank: _goes_on(case, opts, [0, None], rank)), StateLost, ranks=(1,))


@pytest.mark.parametrize("transport", ["memory", "grpc", "shm", "pods"])
@pytest.mark.parametrize("name", ["fused", "lamb", "clip"])
def test_two_ranks_that_are_lost_in_an_update_cost_no_more_than_that(name: str, transport: str) -> None:
    """Wherever one leaves, with any other one, newcomers get the bits of the last update that the others have
    done, also where an owner is lost with the second home that had its gradient first."""
    case = _with_two_copies(name)
    expected = _undisturbed(case, transport, 4)
    for fails_at in range(1, 9) if transport == "memory" else (3, 5):
        lost = {fails_at % 4, (fails_at % 4 + 1 + fails_at // 4 % 3) % 4}
        _lose_in_an_update(case, transport, fails_at, lost, expected, 4)


def _lose_in_an_update(
    case: Case, transport: str, fails_at: int, lost: set[int], expected: list[dict[str, bytes]], size: int = 0
) -> None:
    """One of the `lost` leaves in it; with newcomers in their places all have the bits of a world that lost none."""
    size = size or _size_of(transport)
    with world_of(size, transport, timeout_s=10) as world:
        opts, done, _ = _fail_at(world, case, fails_at % size, fails_at)
    agreed = min(updates for rank, updates in enumerate(done) if rank not in lost)
    former = [None if rank in lost else rank for rank in range(size)]
    with world_of(size, transport) as world:
        for rank in set(range(size)) - lost:
            opts[rank].rollback(agreed)
        for rank, bits in enumerate(world.run(functools.partial(_goes_on, case, opts, former))):
            assert bits == [expected[agreed], expected[LAST]], (fails_at, rank)


@pytest.mark.parametrize(("elastic", "sharded"), [(False, True), (True, False)])
def test_copies_are_of_shards_that_may_move(elastic: bool, sharded: bool) -> None:
    with pytest.raises(ConfigurationError, match="redundancy is 2 with elastic="):
        HostOptimizer({"w": np.zeros(3)}, SGD(0.1), elastic=elastic, sharded=sharded, redundancy=2)
    for redundancy in (0, True, 1.5):
        with pytest.raises(ConfigurationError, match="expected a whole number of replicas of each shard"):
            HostOptimizer({"w": np.zeros(3)}, SGD(0.1), elastic=True, redundancy=redundancy)  # type: ignore[arg-type]


class SendingGroup(ProcessGroup):
    """The world, with a count of what ranks send to a single one."""

    def __init__(self, group: ProcessGroup, count: list[int]) -> None:
        vars(self).update(vars(group))
        self._count = count  # shared with the lane

    def parallel_group(self) -> ProcessGroup | None:
        lane = super().parallel_group()
        return None if lane is None else SendingGroup(lane, self._count)

    def send_receive(self, *given: Any) -> Any:
        self._count[0] += 1
        return super().send_receive(*given)


@pytest.mark.parametrize("name", ["fused", "lamb-half-clip"])
@pytest.mark.parametrize("transport", ["grpc", "shm"])
def test_no_gradient_is_sent_to_a_second_home_that_maps_the_owners_memory(transport: str, name: str) -> None:
    """The owner writes it there."""
    count = [0]
    with world_of(SIZE, transport) as world:
        world.run(lambda rank: _train(_made(CASES[name], SendingGroup(group_of(), count)), CASES[name], EVERY + 1))
    assert (count[0] > 0) == (transport == "grpc")


def _flip(values: Any) -> None:
    values.view(np.uint8)[5] ^= 16


@pytest.mark.parametrize("where", ["state", "copy", "copy 2", "weights"])
def test_a_bit_that_flips_between_two_updates_is_found_on_its_rank(where: str) -> None:
    """StateCorrupt on all ranks names the one whose memory it was: the owner, or a second home."""
    case = CASES["two-copies" if where == "copy 2" else "fused"]
    with world_of(SIZE) as world:

        def run(rank: int) -> None:
            opt = _Opened(_made(case, group_of()))
            for update in range(1, PARTS + EVERY + 2):  # each part is looked at in one update of `PARTS`
                _train(opt.optimizer, case, update)
                if rank == 1:
                    _flip(opt.memory(where))

        errors = world.errors(run)
        # Weights are compared with those of the others before that.
        words = {"weights": "the weights on ranks [1] differed from those of the others"}
        changed = "memory of the optimizer on ranks [1] changed after update"
        all_raise(errors, StateCorrupt, words.get(where, changed), ranks=(1,))


TWO_HOMES = "the shard of rank 2 differs from its replica on rank 0"
OF_THREE = "arithmetic of rank 2 is wrong"


@pytest.mark.parametrize(
    ("name", "where", "ranks", "words"),
    [
        pytest.param("lamb-half-clip", "state", (2, 0), TWO_HOMES, id="two-homes"),
        *(("two-copies", where, (2,), OF_THREE) for where in ("state", "copy", "copy 2")),
    ],
)
def test_a_bit_that_flipped_unseen_is_found_by_all_homes(
    name: str, where: str, ranks: tuple[int, ...], words: str
) -> None:
    """With two copies the error names both ranks; with three it names the rank that differs."""
    case = CASES[name]
    with world_of(SIZE) as world:

        def run(rank: int) -> None:
            opt = _Opened(_made(case, group_of()))
            _train(opt.optimizer, case, PARTS - 1)  # the last part is looked at, and the first bucket is not in it
            if rank == 2:
                _flip(opt.memory(where))
            _train(opt.optimizer, case, 2 * PARTS + EVERY)

        all_raise(world.errors(run), StateCorrupt, words, ranks=ranks)


def test_a_state_that_is_loaded_or_rolled_back_to_is_no_corruption() -> None:
    """Between updates, neither load_state_dict() nor rollback() raises or changes the count of updates."""
    case = CASES["fused"]
    with world_of(SIZE) as world:

        def run(rank: int) -> int:
            opt = _made(case, group_of())
            for update in range(1, EVERY + 2):
                _train(opt, case, update)
                state = opt.state_dict()
                state["arrays"]["mean"]["a"] = state["arrays"]["mean"]["a"] + 1
                opt.load_state_dict(state)
                opt.rollback()
            return opt.updates

        assert world.run(run) == [EVERY + 1] * SIZE


def test_copies_are_alike_after_many_updates() -> None:
    """Whatever the rule and the way of the gradients."""
    for name in ("lamb-half-clip", "int8-clip"):
        with world_of(2) as world:
            world.run(lambda rank, name=name: _train(_made(CASES[name], group_of()), CASES[name], PARTS + EVERY + 1))


class _Opened:
    """The memory of an optimizer, as a fault of the machine sees it."""

    def __init__(self, optimizer: HostOptimizer) -> None:
        self.optimizer = optimizer

    def memory(self, where: str) -> Any:
        context = vars(self.optimizer)["_cut"].context
        bucket = context.copies.mirrors[0].buckets[0]
        if where.startswith("copy"):
            return context.copies.mirrors[where == "copy 2"].values(bucket)["mean"]
        return context.arenas.own_values(bucket)["mean" if where == "state" else "weights"]


def _made_and_updated(rank: int) -> OptimizerParticipant:
    """An optimizer that all ranks of this world have made, after its first update."""
    participant = OptimizerParticipant(HostOptimizer({"w": np.zeros(4)}, SGD(1.0), elastic=True))
    participant.prepare(current())
    participant.adopt()
    participant.value.submit("w", np.ones(4))
    participant.value.step()
    participant.commit()
    return participant


def test_a_rank_that_was_lost_to_the_last_exchange_goes_on_with_what_others_adopted() -> None:
    """Nothing was prepared in the world in which all made the optimizer; later a newcomer has others' updates."""
    with world_of(1) as world:
        (survivor,) = world.run(_made_and_updated)

    def join(rank: int) -> tuple[int, list[float]]:
        current().former = FormerFormation(1, (0, None))
        newcomer = HostOptimizer({"w": [0.0] * 4}, SGD(1.0), elastic=True) if rank else None
        participant = survivor if newcomer is None else OptimizerParticipant(newcomer)
        participant.plan([1])
        participant.go_back(current())
        participant.prepare(current())
        participant.adopt()
        return participant.offer(), participant.value.weights["w"].tolist()

    with world_of(2) as world:
        assert world.run(join) == [(1, [-1.0] * 4)] * 2
