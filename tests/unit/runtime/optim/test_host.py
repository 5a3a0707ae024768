"""Parts of one update: averaging, accumulation, clipping, schedules, local layers, half precision, overlap."""

import threading
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.deadlines import patient
from support.memory_group import MemoryGroup, OneOfTwo, Table, run_threads

from ringtrain._core.process_groups.group import Flat, PendingCollective
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain.errors import ConfigurationError
from ringtrain.optim import LAMB, SGD, Adam, AdamW, HostOptimizer, StepDecay, Warmup
from ringtrain.optim.arenas import ParameterArenas
from ringtrain.optim.layout import Bucket, Layout
from ringtrain.optim.pipeline import OptimizerStepHold

DEADLINE_S = patient(60.0)


def _alone() -> MemoryGroup:
    return MemoryGroup(Table(1), 0)


def _step(opt: HostOptimizer, **gradients: Any) -> bool:
    for name, gradient in gradients.items():
        opt.submit(name, np.asarray(gradient, opt.weights[name].dtype))
    return opt.step()


def test_gradients_are_averaged_over_ranks() -> None:
    """SGD with rate 1 subtracts the mean of the ranks' gradients; all start from rank 0's weights."""

    def train(group: MemoryGroup) -> list[float]:
        opt = HostOptimizer({"w": np.full(3, 10.0 * group.rank)}, SGD(1.0), group=group)
        _step(opt, w=np.arange(3) * (group.rank + 1))
        return list(opt.weights["w"])

    assert run_threads(train, 3) == [[0.0, -2.0, -4.0]] * 3


def test_weights_are_views_that_stay(tmp_path: object) -> None:
    """The arrays that a model holds are changed in place, in the registered shapes; the given ones are copied."""
    given = np.ones((2, 3))
    opt = HostOptimizer([("a", given), ("b", np.array(5.0))], SGD(1.0), group=_alone())
    held = opt.weights["a"]
    _step(opt, a=np.full((2, 3), 0.25), b=2.0)
    assert held.tolist() == [[0.75] * 3] * 2
    assert opt.weights["b"] == 3.0
    assert given.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8"])
def test_parameters_in_another_byte_order_are_weights_in_the_native_one(dtype: str) -> None:
    """As a file may have them; their gradients are those of native ones."""
    opt = HostOptimizer({"w": np.array([1, 2, 3], dtype)}, SGD(1.0), group=_alone())
    assert opt.weights["w"].dtype == np.dtype(dtype).newbyteorder("=")
    opt.submit("w", np.ones(3, opt.weights["w"].dtype))
    opt.step()
    assert opt.weights["w"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=str)
def test_a_gradient_can_be_made_where_it_is_reduced(dtype: Any) -> None:
    """In the parameter's shape, in each step, also while the weights of one that did not wait are on their way."""

    def train(group: MemoryGroup) -> list[float]:
        opt = HostOptimizer({"a": np.zeros((2, 3), dtype), "b": np.zeros(4, dtype)}, SGD(1.0), group=group)
        for step in range(3):
            for name, weights in opt.weights.items():
                gradient = opt.gradient(name)
                assert (gradient.shape, gradient.dtype) == (weights.shape, weights.dtype)
                gradient[...] = step + group.rank
                opt.submit(name, gradient)
            opt.step(wait=False)
        opt.wait_for()
        return [float(value) for weights in opt.weights.values() for value in weights.flat]

    assert run_threads(train, 2) == [[-4.5] * 10] * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("accumulate", [1, 2], ids=["one-step", "two-micro-steps"])
def test_a_weight_scales_this_rank_s_gradient(dtype: Any, accumulate: int) -> None:
    """Ranks with 3 and 1 samples: weighted by 1.5 and 0.5, the update is that of the 4 samples in one batch."""

    def train(group: MemoryGroup) -> float:
        opt = HostOptimizer({"w": np.zeros(1, dtype)}, SGD(1.0), accumulate=accumulate, group=group)
        mean, weight = ((2.0, 1.5), (6.0, 0.5))[group.rank]
        for _ in range(accumulate):
            opt.submit("w", np.full(1, mean, dtype), weight)
            opt.step()
        return float(opt.weights["w"][0])

    assert run_threads(train, 2) == [-3.0, -3.0]


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_makes_no_sense(weight: float) -> None:
    """Refused before anything is counted, with the gradient's name."""
    opt = HostOptimizer({"w": np.zeros(1)}, SGD(1.0), group=_alone())
    with pytest.raises(ConfigurationError, match=r'the weight of gradient "w" is .*; expected a number of at least 0'):
        opt.submit("w", np.ones(1), weight)
    assert _step(opt, w=[1.0])


def test_accumulated_gradients_are_averaged_over_micro_steps() -> None:
    """Three micro-steps make one update with the mean gradient of ranks and micro-steps."""

    def train(group: MemoryGroup) -> tuple[list[bool], float, int]:
        opt = HostOptimizer({"w": np.zeros(1)}, SGD(1.0), accumulate=3, group=group)
        changed = [_step(opt, w=[value * (group.rank + 1)]) for value in (1, 2, 6, 3, 3, 3)]
        return changed, float(opt.weights["w"][0]), opt.updates

    # Means over micro-steps are 3 and 3; over ranks, times 1 and 2, they are 4.5 each.
    assert run_threads(train, 2) == [([False, False, True] * 2, -9.0, 2)] * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_the_number_of_micro_steps_may_change_between_updates(dtype: Any) -> None:
    """Each update is the mean over its own micro-steps; in the middle of one the number stays."""

    def train(group: MemoryGroup) -> list[float]:
        opt = HostOptimizer({"w": np.zeros(1, dtype)}, SGD(1.0), group=group)
        seen = []
        for passes in (1, 3, 2):
            opt.set_backward_passes_per_step(passes)
            for micro_step in range(passes):
                assert opt.accumulating == (micro_step > 0)
                _step(opt, w=np.full(1, (micro_step + 1) * (2 * group.rank + 1), dtype))
            seen.append(float(opt.weights["w"][0]))
        assert not opt.accumulating
        opt.submit("w", np.ones(1, dtype))
        with pytest.raises(ConfigurationError, match=r"an update; call set_backward_passes_per_step\(\) after flush"):
            opt.set_backward_passes_per_step(1)
        opt.close()
        return seen

    assert run_threads(train, 2) == [[-2.0, -6.0, -9.0]] * 2


@pytest.mark.parametrize("sharded", [True, False])
def test_clipping_scales_to_the_global_norm(sharded: bool) -> None:
    """The norm is that of all averaged gradients; smaller gradients are left alone."""

    def train(group: MemoryGroup) -> tuple[list[float], float | None]:
        params = {"a": np.zeros(300), "b": np.zeros(1)}
        opt = HostOptimizer(params, SGD(1.0), clip_norm=10.0, sharded=sharded, bucket_bytes=1, group=group)
        a = np.zeros(300)
        a[[0, 299]] = 60.0 * group.rank  # averaged over two ranks: 30 twice
        _step(opt, a=a, b=[0.0])
        norm = opt.gradient_norm
        first = [float(opt.weights["a"][0]), float(opt.weights["a"][299])]
        _step(opt, a=np.zeros(300), b=[4.0])
        return [*first, float(opt.weights["b"][0])], norm

    norm = 30.0 * 2**0.5
    for weights, seen in run_threads(train, 2):
        assert seen == norm
        assert weights == pytest.approx([-30 * 10 / norm, -30 * 10 / norm, -4.0])


def test_a_norm_that_is_no_number_shows_in_all_weights() -> None:
    """As torch.nn.utils.clip_grad_norm_ has it: nothing is applied unclipped as if the norm were small."""
    params = {"a": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}
    opt = HostOptimizer(params, SGD(1.0), clip_norm=1.0, group=_alone())
    _step(opt, a=np.float32([np.nan, 1.0]), b=np.float32([1e6]))
    assert np.isnan(opt.gradient_norm or 0.0)
    assert np.isnan([*opt.weights["a"], *opt.weights["b"]]).all()


def test_the_schedule_scales_the_rate_by_updates_done() -> None:
    """Update t uses the rule's rate times schedule(t), t counted from 0."""
    opt = HostOptimizer({"w": np.zeros(1)}, SGD(2.0), schedule=StepDecay((1, 3), 0.5), group=_alone())
    rates = []
    for _ in range(4):
        rates.append(opt.rate)
        _step(opt, w=[1.0])
    assert rates == [2.0, 1.0, 1.0, 0.5]
    assert opt.weights["w"][0] == -4.5


def test_a_schedule_that_gives_no_number_changes_no_weight() -> None:
    """It is named with the step; weights would all be NaN after it."""
    factors = [1.0, np.nan]
    opt = HostOptimizer({"w": np.zeros(1)}, SGD(2.0), schedule=factors.__getitem__, group=_alone())
    _step(opt, w=[1.0])
    with pytest.raises(ConfigurationError, match="schedule returned nan for step 1; expected a finite factor"):
        _step(opt, w=[1.0])
    assert opt.weights["w"][0] == -2.0


def test_only_the_numbers_of_a_rule_may_change() -> None:
    """The next update uses them. Another kind of rule, or one that needs more state, is refused."""
    opt = HostOptimizer({"w": np.zeros(1)}, SGD(1.0, momentum=0.5), group=_alone())
    opt.set_rules([SGD(2.0, momentum=0.25)])
    _step(opt, w=[1.0])
    _step(opt, w=[1.0])
    assert opt.weights["w"][0] == -2.0 * (1.0 + 1.25)
    with pytest.raises(ConfigurationError, match=r"group 0: the rule is Adam\(.*, but the optimizer was created w"):
        opt.set_rules([Adam(0.1)])
    plain = HostOptimizer({"w": np.zeros(1)}, SGD(1.0), group=_alone())
    with pytest.raises(ConfigurationError, match=r"needs the state \['momentum'\], which the optimizer has not alloc"):
        plain.set_rules([SGD(1.0, momentum=0.5)])


def test_groups_have_rules_of_one_kind() -> None:
    """As their state has one layout; the error names the group."""
    with pytest.raises(ConfigurationError, match=r"groups\[0\] has AdamW.*expected rules of one kind"):
        HostOptimizer({"w": np.zeros(1)}, SGD(1.0), groups=[(AdamW(0.1), ["w"])], group=_alone())


@pytest.mark.parametrize("rule", [SGD(1.0), LAMB(0.1)], ids=["sgd", "lamb"])
def test_local_layers_are_each_ranks_own(rule: Any) -> None:
    """A local parameter is neither broadcast, nor averaged, nor clipped; its gradient is this rank's alone."""

    def train(group: MemoryGroup) -> tuple[float, float, list[str]]:
        params = {"shared": np.full(4, 1.0 + group.rank), "own": np.full(2, 10.0 * (group.rank + 1))}
        opt = HostOptimizer(params, rule, local=("own",), clip_norm=1e-3, bucket_bytes=1, group=group)
        assert [name for name in params if opt.is_local(name)] == ["own"]
        _step(opt, shared=np.full(4, group.rank), own=np.full(2, 1.0 + group.rank))
        return float(opt.weights["shared"][0]), float(opt.weights["own"][0]), group.calls

    (shared0, own0, calls0), (shared1, own1, calls1) = run_threads(train, 2)
    assert shared0 == shared1
    assert calls0 == calls1
    if isinstance(rule, SGD):
        assert (own0, own1) == (9.0, 18.0)
    else:
        assert own0 < 10.0 < own1 < 20.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("sharded", [True, False])
def test_half_precision_weights_keep_a_float32_master(dtype: str, sharded: bool) -> None:
    """A hundred updates, each too small for the weight's own bits, add up."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))

    def train(group: MemoryGroup) -> tuple[float, int]:
        opt = HostOptimizer({"w": np.ones(256, kind)}, SGD(1e-3), sharded=sharded, group=group)
        for _ in range(100):
            _step(opt, w=np.full(256, 1.0 + group.rank))
        return float(opt.weights["w"][128]), opt.state_bytes

    for weight, state_bytes in run_threads(train, 2):
        assert weight == pytest.approx(1 - 100 * 1e-3 * 1.5, rel=2**-8)
        assert state_bytes == 256 * 4 // (2 if sharded else 1)


def test_half_precision_sums_do_not_overflow() -> None:
    """Neither over ranks nor over micro-steps: only the mean must fit into float16."""

    def train(group: MemoryGroup) -> float:
        opt = HostOptimizer({"w": np.zeros(2, np.float16)}, SGD(1e-4), accumulate=2, group=group)
        for _ in range(2):
            _step(opt, w=[60000.0, 60000.0])
        return float(opt.weights["w"][0])

    assert run_threads(train, 3) == [pytest.approx(-6.0, rel=1e-3)] * 3


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_rank_keeps_its_share_of_the_state(size: int) -> None:
    """Sharded, the ranks' states are together one process's, and each is within 128 elements of its share."""
    params = {"a": np.zeros((100, 70), np.float32), "b": np.zeros(70, np.float32)}

    def state(group: MemoryGroup, sharded: bool) -> int:
        return HostOptimizer(params, AdamW(), sharded=sharded, group=group).state_bytes

    whole = 2 * 4 * 7070
    assert run_threads(state, size, False) == [whole] * size
    shares = run_threads(state, size, True)
    assert sum(shares) == whole
    assert max(shares) <= whole / size + 2 * 4 * 128


class _HeldGroup(OneOfTwo):
    """A world whose collectives wait for the test. `begun`, `sent`: one release a reduction, and a gather."""

    def __init__(self, lanes: int = 1) -> None:
        super().__init__()
        self._lanes = lanes
        self.begun, self.sent = threading.Semaphore(0), threading.Semaphore(0)
        self.release = threading.Event()

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], op: ReduceOp = ReduceOp.Sum) -> PendingCollective:
        self.calls.append("reduce_scatter")
        self.begun.release()
        return _Held(self.release)

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> PendingCollective:
        self.calls.append("all_gather")
        self.sent.release()
        return _Held(self.release)

    def parallel_group(self) -> Any:
        return self if self._lanes == 2 else None


class _Held:
    def __init__(self, release: threading.Event) -> None:
        self._release = release

    def wait(self) -> None:
        assert self._release.wait(DEADLINE_S)


def test_reduction_begins_while_the_backward_pass_goes_on() -> None:
    """The last layer's bucket is being reduced before the first layer's gradient exists, and its weights are on
    their way before the next bucket is complete."""
    group = _HeldGroup()
    params = {name: np.zeros(8, np.float32) for name in ("first", "middle", "last")}
    opt = HostOptimizer(params, SGD(1.0), bucket_bytes=1, group=group, update_during_backward=True)
    opt.submit("middle", np.ones(8, np.float32))  # complete, but not its turn
    opt.submit("last", np.ones(8, np.float32))
    assert group.begun.acquire(timeout=DEADLINE_S)
    assert group.calls == ["reduce_scatter"]
    group.release.set()
    assert group.begun.acquire(timeout=DEADLINE_S)
    assert group.calls[:3] == ["reduce_scatter", "all_gather", "reduce_scatter"]
    opt.submit("first", np.ones(8, np.float32))
    assert opt.step()
    assert group.calls == ["reduce_scatter", "all_gather"] * 3


@pytest.mark.parametrize(
    ("submitted", "calls"),
    [
        (["last"], ["reduce_scatter", "all_gather"]),
        (["first", "last"], ["reduce_scatter", "reduce_scatter", "all_gather"]),
    ],
    ids=["incomplete", "complete"],
)
def test_on_two_lanes_the_next_bucket_is_reduced_if_it_is_complete(submitted: list[str], calls: list[str]) -> None:
    """While the weights of the bucket before are sent. They do not wait for a bucket that is incomplete."""
    group = _HeldGroup(lanes=2)
    group.release.set()
    params = {name: np.zeros(8, np.float32) for name in ("first", "last")}
    opt = HostOptimizer(params, SGD(1.0), bucket_bytes=1, group=group, update_during_backward=True)
    for name in submitted:
        opt.submit(name, np.ones(8, np.float32))
    assert group.sent.acquire(timeout=DEADLINE_S)
    assert group.calls[: len(calls)] == calls
    if "first" not in submitted:
        opt.submit("first", np.ones(8, np.float32))
    assert opt.step()
    assert sorted(group.calls) == ["all_gather"] * 2 + ["reduce_scatter"] * 2


class _RecordingGroup(OneOfTwo):
    """Records kind, length and type of each collective, which is complete at once."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[tuple[str, int, str]] = []
        self.release = threading.Event()
        self.release.set()

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], op: ReduceOp = ReduceOp.Sum) -> PendingCollective:
        self.moved.append(("reduce", buffer.size, buffer.dtype.name))
        return _Held(self.release)

    def all_gather(self, buffer: Flat, bounds: Sequence[int]) -> PendingCollective:
        self.moved.append(("gather", buffer.size, buffer.dtype.name))
        return _Held(self.release)


@pytest.mark.parametrize(
    ("settings", "moved"),
    [
        ({}, ["reduce last", "reduce first", "gather first", "gather last"]),
        ({"update_during_backward": True}, ["reduce last", "gather last", "reduce first", "gather first"]),
        (
            {"update_during_backward": True, "clip_norm": 1.0},
            ["reduce last", "reduce first", "gather first", "gather last"],
        ),
    ],
    ids=["in-step", "during-backward", "clipped"],
)
def test_weights_are_sent_in_the_order_in_which_they_are_needed(settings: dict[str, Any], moved: list[str]) -> None:
    """The next forward pass begins with the first layer. Weights that change during the backward pass cannot wait."""
    group, names = _RecordingGroup(), {1000: "first", 2000: "last"}
    params = {name: np.zeros(size, np.float32) for size, name in names.items()}
    opt = HostOptimizer(params, SGD(1.0), bucket_bytes=1, group=group, **settings)
    _step(opt, last=np.ones(2000), first=np.ones(1000))
    assert [f"{kind} {names[size]}" for kind, size, _ in group.moved if size in names] == moved


@pytest.mark.parametrize(
    ("compression", "dtype"), [(None, "float32"), ("bf16", "bfloat16"), ("fp16", "float16")], ids=str
)
def test_compressed_gradients_and_weights_are_sent_in_half_of_the_bytes(compression: str | None, dtype: str) -> None:
    """In the type that the setting names."""
    group = _RecordingGroup()
    opt = HostOptimizer({"w": np.zeros(1000, np.float32)}, SGD(1.0), compression=compression, group=group)
    _step(opt, w=np.ones(1000))
    assert group.moved == [("reduce", 1000, dtype), ("gather", 1000, dtype)]


def test_a_step_accumulates_until_its_last_micro_step() -> None:
    """Neither before the first gradient nor after the update."""
    opt, found = HostOptimizer({"w": np.zeros(3)}, SGD(1.0), accumulate=2, group=_alone()), []
    for _ in range(2):
        found.append(opt.accumulating)
        opt.submit("w", np.ones(3))
        found.append(opt.accumulating)
        opt.step()
    assert [*found, opt.accumulating] == [False, True, True, True, False]


class _Device:
    """Gradients of one rank in memory that the optimizer does not know, and the weights that come back."""

    def __init__(self, group: MemoryGroup) -> None:
        self._group = group
        self.flat: dict[int, Flat] = {}
        self.weights: dict[int, Flat] = {}

    def attach(self, layout: Layout, arenas: ParameterArenas) -> None:
        self._arenas, self.layout = arenas, layout
        self.flat = {bucket.index: np.zeros_like(arenas.gradients(bucket)) for bucket in layout.buckets}

    def put(self, name: str, gradient: Flat) -> None:
        bucket, at = self.layout.locations[name]
        self.flat[bucket.index][at.start : at.stop] = gradient

    def reduce_scatter(self, bucket: Bucket) -> PendingCollective:
        self._arenas.gradients(bucket)[:] = self.flat[bucket.index]
        return self._group.reduce_scatter(self._arenas.gradients(bucket), bucket.bounds)

    def all_gather(self, bucket: Bucket) -> PendingCollective:
        self.weights[bucket.index] = weights = self._arenas.weights(bucket).copy()
        return self._group.all_gather(weights, bucket.bounds)


def test_gradients_on_devices_are_reduced_there() -> None:
    """The optimizer learns only that they are complete. Each device gets all new weights."""

    def train(group: MemoryGroup) -> list[float]:
        device = _Device(group)
        params = {name: np.zeros(300, np.float32) for name in ("first", "last")}
        opt = HostOptimizer(params, SGD(1.0), bucket_bytes=1, group=group, devices=device)
        for name in ("last", "first"):
            device.put(name, np.full(300, 1.0 + 2 * group.rank, np.float32))
            opt.submit(name, None)
        with pytest.raises(ConfigurationError, match=r'gradient\("first"\) was called, but gradients are reduced on'):
            opt.gradient("first")
        opt.step()
        return sorted({float(value) for weights in device.weights.values() for value in weights})

    assert run_threads(train, 2) == [[-2.0]] * 2


@pytest.mark.parametrize(("size", "lanes"), [(1, 0), (2, 1), (3, 1)])
def test_several_ranks_gather_on_a_second_group(size: int, lanes: int) -> None:
    """While the first one reduces; a single rank needs none."""

    class Counting(MemoryGroup):
        made = 0

        def parallel_group(self) -> None:
            self.made += 1

    def build(group: MemoryGroup) -> int:
        counting = Counting(vars(group)["_table"], group.rank)
        HostOptimizer({"w": np.zeros(3)}, SGD(1.0), group=counting)
        return counting.made

    assert run_threads(build, size) == [lanes] * size


def test_weights_change_in_step_alone() -> None:
    """All gradients are reduced by then, and no weight is new before."""
    group = _HeldGroup()
    params = {name: np.zeros(8, np.float32) for name in ("first", "last")}
    opt = HostOptimizer(params, SGD(1.0), bucket_bytes=1, group=group)
    group.release.set()
    for name in ("last", "first"):
        opt.submit(name, np.ones(8, np.float32))
        assert group.begun.acquire(timeout=DEADLINE_S)
    assert group.calls == ["reduce_scatter"] * 2
    assert all(not weights.any() for weights in opt.weights.values())
    opt.weights["first"][...] = 5.0  # counts
    assert opt.step()
    assert group.calls == ["reduce_scatter", "reduce_scatter", "all_gather", "all_gather"]
    assert [opt.weights[name].tolist() for name in params] == [[4.5] * 8, [-0.5] * 8]


def test_weights_are_taken_over_where_their_bits_differ() -> None:
    """NaN equals itself, a scalar is an array, and values of another shape are refused."""
    opt = HostOptimizer(
        {"w": np.array([1.0, np.nan], np.float32), "s": np.array(2.0, np.float32)}, SGD(1.0), group=_HeldGroup()
    )
    held = opt.weights["w"]
    opt.take_weights_from({"w": np.array([3.0, np.nan], np.float32), "s": np.array(4.0, np.float32)})
    assert (held[0], np.isnan(held[1]), opt.weights["s"][()]) == (3.0, True, 4.0)
    with pytest.raises(ConfigurationError, match=r"weight 'w' is float32\[3\]; expected float32\[2\]"):
        opt.take_weights_from({"w": np.zeros(3, np.float32)})


def test_nobody_waits_for_an_update_that_has_ended() -> None:
    """A call that was ordered before or after its end, of which nothing comes, is let go of."""
    hold = OptimizerStepHold()
    before = hold.call(lambda: None)
    assert not before.is_set()
    hold.end()
    assert before.is_set()
    assert hold.call(lambda: None).is_set()


def test_no_thread_is_left_after_a_step_or_close() -> None:
    """The thread of an update ends with it; closing ends one that waits for gradients."""

    def updates() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "ringtrain-update"]

    opt = HostOptimizer({"a": np.zeros(2), "b": np.zeros(2)}, Adam(), group=_alone())
    _step(opt, a=np.ones(2), b=np.ones(2))
    assert updates() == []
    opt.submit("a", np.ones(2))
    (waiting,) = updates()
    opt.close()
    waiting.join(DEADLINE_S)
    assert updates() == []


def test_close_does_not_take_back_a_step() -> None:
    """An update whose step() was called is finished by close(), also one that step() did not wait for."""
    group = _HeldGroup()
    params = {name: np.zeros(8, np.float32) for name in ("first", "last")}
    opt = HostOptimizer(params, SGD(1.0), bucket_bytes=1, group=group)
    for name in ("last", "first"):
        opt.submit(name, np.ones(8, np.float32))
    assert group.begun.acquire(timeout=DEADLINE_S)
    assert opt.step(wait=False)
    closing = threading.Thread(target=opt.close)
    closing.start()
    group.release.set()
    closing.join(DEADLINE_S)
    assert [opt.weights[name].tolist() for name in params] == [[-0.5] * 8] * 2


def test_warmup_reaches_the_scaled_rate() -> None:
    """Goyal et al.: from one worker's rate in a straight line to k times it."""
    schedule = Warmup(4, scale=8, after=StepDecay((2,), 0.5))
    assert [schedule(step) for step in range(8)] == [1.0, 2.75, 4.5, 6.25, 8.0, 8.0, 4.0, 4.0]
