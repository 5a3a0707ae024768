"""A bucket is reduced, updated and gathered in one go; nothing but the time it takes may tell."""

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.pods import Pods
from support.ranks import run_ranks

import ringtrain as rt
from ring.worlds import world_of
from ringtrain._core.kernels.library import native_library
from ringtrain._core.kernels.update import ChunkUpdate
from ringtrain._core.process_groups.group import Flat, ProcessGroup
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.optim import LAMB, SGD, Adam, AdamW, HostOptimizer, Rule

pytestmark = pytest.mark.skipif(native_library() is None, reason="ringtrain was installed without a C compiler")

RULES: dict[str, Rule] = {
    "sgd": SGD(0.1, weight_decay=1e-3),
    "momentum": SGD(0.05, momentum=0.9),
    "nesterov": SGD(0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": Adam(0.01, weight_decay=1e-3),
    "adamw": AdamW(0.01),
}
DTYPES = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
# Several buckets of 64 KiB; lengths that nothing divides, one element, none, and one shorter than a segment.
SHAPES = {"a": (131, 257), "b": (), "c": (0, 3), "d": (20_011,), "e": (77,), "own": (3, 5)}


class CountingGroup(ProcessGroup):
    """The world, with a count of the updates that were made in one go; or one that makes none."""

    def __init__(self, fuses: bool = True) -> None:
        vars(self).update(vars(group_of()))
        self.updates = 0
        self._fuses = fuses

    def can_update(self, gradients: Flat, weights: Flat) -> bool:
        return self._fuses and super().can_update(gradients, weights)

    def update(self, gradients: Flat, bounds: Sequence[int], op: rt.ReduceOp, change: ChunkUpdate) -> None:
        self.updates += 1
        super().update(gradients, bounds, op, change)


def _steps(opt: HostOptimizer, steps: int, seed: Any, in_place: bool = False) -> None:
    """`in_place`: gradients are made where they are reduced."""
    for step in range(steps):
        for name, weights in opt.weights.items():
            values = np.random.default_rng([rt.rank(), step, len(name), *seed]).standard_normal(weights.shape)
            gradient = opt.gradient(name) if in_place else np.empty_like(weights)
            gradient[...] = values
            opt.submit(name, gradient)
        opt.step()


Options = dict[str, Any]
Runs = Sequence[tuple[Rule, np.dtype[Any], Options]]


def _trained(runs: Runs, fuses: bool = True) -> list[tuple[int, dict[str, bytes]]]:
    """Of every run: how many updates were made in one go, and the bits of weights and state."""
    rt.init()
    trained = []
    for rule, dtype, options in runs:
        start = np.random.default_rng(rt.rank())  # only rank 0's counts
        params = {name: start.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()}
        group = CountingGroup(fuses)
        opt = HostOptimizer(
            params, rule, bucket_bytes=1 << 16, local=["own"], group=group, update_during_backward=True, **options
        )
        _steps(opt, 3, [1])
        state = opt.state_dict()["arrays"]
        bits = {f"{slot} {name}": array.tobytes() for slot, of in state.items() for name, array in of.items()}
        trained.append((group.updates, bits))
    rt.shutdown()
    return trained


EACH_ONCE: Runs = list(zip(RULES.values(), itertools.cycle(DTYPES), itertools.repeat({})))
ALL: Runs = list(itertools.product(RULES.values(), DTYPES, [{}]))
ELASTIC: Runs = [(rule, dtype, {"elastic": True}) for rule, dtype, _ in EACH_ONCE]


@pytest.mark.parametrize(("size", "runs"), [(1, EACH_ONCE), (2, EACH_ONCE), (3, ALL), (4, EACH_ONCE)], ids=range(1, 5))
def test_the_bits_are_those_of_reduction_update_and_gathering(size: int, runs: Runs) -> None:
    """For every rule that has one and every type: weights and state of all ranks, in memory and over gRPC."""
    apart = run_ranks(_trained, size, runs, False, env={"RINGTRAIN_TRANSPORT": "grpc"})
    for transport in ("auto", "grpc"):
        fused = run_ranks(_trained, size, runs, env={"RINGTRAIN_TRANSPORT": transport})
        for index, run in enumerate(runs):
            updates, bits = fused[0][index]
            assert (updates > 0) == (size > 1), (transport, run)
            assert apart[0][index] == (0, bits), (transport, run)
            assert all(fused[rank][index] == (updates, bits) for rank in range(size)), (transport, run)


@pytest.mark.parametrize(
    ("pods", "each", "runs"),
    [(2, 2, ALL), (3, 2, [*EACH_ONCE, *ELASTIC]), (2, 3, EACH_ONCE)],
    ids=["2-2", "3-2", "2-3"],
)
def test_the_bits_are_the_same_between_pods_of_several_ranks(pods: int, each: int, runs: Runs) -> None:
    """For every rule with every type, and each of them where a replica follows; also where a chunk has several
    segments: weights and state of all ranks."""
    size = pods * each
    apart = run_ranks(_trained, size, runs, False, env_of=Pods(pods, each=each))
    fused = run_ranks(_trained, size, runs, env_of=Pods(pods, each=each))
    for index, run in enumerate(runs):
        updates, bits = fused[0][index]
        assert updates > 0, run
        assert apart[0][index] == (0, bits), run
        assert all(fused[rank][index] == (updates, bits) for rank in range(size)), run


SEPARATE: list[tuple[Rule, Options]] = [
    (AdamW(0.01), {"clip_norm": 0.5}),
    (LAMB(0.01), {}),
    (AdamW(0.01), {"compression": "bf16"}),
    (SGD(0.1), {"compression": "fp16", "clip_norm": 0.5, "elastic": True}),
    (SGD(0.1), {"compression": "int8"}),
]


def test_norms_and_compression_have_the_same_bits_between_pods() -> None:
    """Ranks of a pod that reduce and gather in shared memory get the same bits as over gRPC, for every type."""
    runs = [(rule, dtype, options) for rule, options in SEPARATE for dtype in DTYPES]
    flat = run_ranks(_trained, 4, runs, env={"RINGTRAIN_TRANSPORT": "grpc"})
    pods = run_ranks(_trained, 4, runs, env_of=Pods(2))
    for index, run in enumerate(runs):
        assert all(trained[index] == flat[0][index] for trained in (*flat, *pods)), run


def _trained_long(fuses: bool) -> tuple[int, list[bytes]]:
    """A bucket whose chunks go through the pods in several segments."""
    rt.init()
    group = CountingGroup(fuses)
    params = {"long": np.zeros(3_000_001, np.float32)}
    opt = HostOptimizer(params, AdamW(0.1), bucket_bytes=1 << 10, group=group, update_during_backward=True)
    _steps(opt, 3, [4])
    rt.shutdown()
    return group.updates, [weights.tobytes() for weights in opt.weights.values()]


@pytest.mark.parametrize("pods", [2, 3])
def test_segments_follow_each_other_through_the_pods(pods: int) -> None:
    apart = run_ranks(_trained_long, 2 * pods, False, env_of=Pods(pods))
    fused = run_ranks(_trained_long, 2 * pods, True, env_of=Pods(pods))
    assert [updates for updates, _ in fused] == [3] * 2 * pods
    assert [bits for _, bits in fused] == [bits for _, bits in apart]


def _trained_in_place(all_options: Sequence[Options]) -> list[list[list[bytes]]]:
    """With each of these options, weights after gradients that were copied, and that were made in place."""
    rt.init()
    trained = []
    for options, in_place in itertools.product(all_options, (False, True)):
        params = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        opt = HostOptimizer(
            params, AdamW(0.1), bucket_bytes=1 << 16, local=["own"], update_during_backward=True, **options
        )
        _steps(opt, 3, [5], in_place)
        trained.append([weights.tobytes() for name, weights in opt.weights.items() if name != "own"])
        opt.close()
    rt.shutdown()
    return [trained[first : first + 2] for first in range(0, len(trained), 2)]


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_gradients_that_are_made_where_they_are_reduced_are_those_that_are_copied(transport: str) -> None:
    """In one pod and over gRPC, fused or not: the same weights on all ranks."""
    all_options: list[Options] = [{}, {"clip_norm": 0.5}, {"compression": "int8"}, {"elastic": True}]
    ranks = run_ranks(_trained_in_place, 2, all_options, env={"RINGTRAIN_TRANSPORT": transport})
    for options, (copied, in_place), (also_copied, also_in_place) in zip(all_options, *ranks, strict=True):
        assert copied == also_copied == in_place == also_in_place, options


def test_what_needs_more_than_one_pass_takes_it() -> None:
    """A norm over all gradients, a layer's norm, and state that every rank has whole."""
    several = [(SGD(0.1), {"clip_norm": 1.0}), (SGD(0.1), {"sharded": False}), (LAMB(), {})]
    runs = [(rule, DTYPES[0], options) for rule, options in several]
    for transport in ("auto", "grpc"):
        trained = run_ranks(_trained, 2, runs, env={"RINGTRAIN_TRANSPORT": transport})[0]
        assert [updates for updates, _ in trained] == [0] * len(runs)


def _accumulated_and_loaded(fuses: bool = True) -> tuple[int, list[bytes]]:
    rt.init()
    group = CountingGroup(fuses)
    opt = HostOptimizer(
        {"w": np.zeros(5001, np.float32)}, AdamW(0.1), accumulate=2, group=group, update_during_backward=True
    )
    _steps(opt, 4, [2])
    opt.load_state_dict(opt.state_dict())
    _steps(opt, 2, [3])
    rt.shutdown()
    return group.updates, [opt.weights["w"].tobytes()]


def test_accumulating_and_loading_go_on_as_in_passes_of_their_own() -> None:
    apart = run_ranks(_accumulated_and_loaded, 3, False)
    for transport in ("auto", "grpc"):
        fused = run_ranks(_accumulated_and_loaded, 3, env={"RINGTRAIN_TRANSPORT": transport})
        assert [updates for updates, _ in fused] == [3] * 3
        assert [bits for _, bits in fused] == [bits for _, bits in apart]
    apart = run_ranks(_accumulated_and_loaded, 4, False, env_of=Pods(2))
    fused = run_ranks(_accumulated_and_loaded, 4, env_of=Pods(2))
    assert [updates for updates, _ in fused] == [3] * 4
    assert [bits for _, bits in fused] == [bits for _, bits in apart]


def _weights_on_their_way() -> list[bool]:
    rt.init()
    opt = HostOptimizer(
        {f"p{i}": np.zeros(3000, np.float32) for i in range(5)}, SGD(1.0), bucket_bytes=1, update_during_backward=True
    )
    seen = []
    for _ in range(20):
        before = {name: weights.copy() for name, weights in opt.weights.items()}
        for name in reversed(before):
            opt.submit(name, np.full(3000, rt.rank() + 1, np.float32))
        opt.step(wait=False)
        for name, old in before.items():
            opt.wait_for(name)
            seen.append(bool((opt.weights[name] == old - (rt.size() + 1) / 2).all()))
    opt.wait_for()
    rt.shutdown()
    return seen


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_weight_that_was_waited_for_is_new_everywhere(transport: str) -> None:
    """Also the shard that another rank wrote, while later buckets are still under way."""
    assert run_ranks(_weights_on_their_way, 2, env={"RINGTRAIN_TRANSPORT": transport}) == [[True] * 100] * 2


def test_a_weight_that_was_waited_for_is_new_in_all_pods() -> None:
    """Whether the own pod or another one has updated it, and whichever rank brought it into this one's memory."""
    assert run_ranks(_weights_on_their_way, 4, env_of=Pods(2)) == [[True] * 100] * 4


def test_between_more_pods_than_a_chain_has_passes_are_separate() -> None:
    """There pods' sums are added up in pairs, and no pod has a bucket's whole sum."""
    with world_of(4, "pods", chain_pods_most=1) as world:

        def fused(rank: int) -> int:
            opt = HostOptimizer(
                {"w": np.zeros(5001, np.float32)},
                SGD(1.0),
                group=(group := CountingGroup()),
                update_during_backward=True,
            )
            opt.submit("w", np.full(5001, rank, np.float32))
            opt.step()
            assert (opt.weights["w"] == -1.5).all()
            return group.updates

        assert world.run(fused) == [0] * 4


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 2, 0, 3], [2, 0, 3, 1]])
@pytest.mark.parametrize("clip_norm", [None, 1e9], ids=["one-trip", "separate"])
def test_ranks_of_pods_may_have_their_gradients_in_any_order(order: list[int], clip_norm: float | None) -> None:
    """Nobody waits for gradients of others that are not there yet before it has done what these wait for."""
    length = 70_000
    with world_of(4, "pods") as world:

        def trained(rank: int) -> list[bytes]:
            names = [f"p{i}" for i in range(4)]
            params = {name: np.zeros(length, np.float32) for name in names}
            opt = HostOptimizer(
                params,
                SGD(1.0),
                bucket_bytes=1,
                clip_norm=clip_norm,
                group=CountingGroup(),
                update_during_backward=True,
            )
            for _ in range(3):
                for name, one in itertools.product(reversed(names), order):
                    if one == rank:
                        opt.submit(name, np.full(length, rank + 1, np.float32))
                    world.meet()
                opt.step()
            opt.close()
            return [weights.tobytes() for weights in opt.weights.values()]

        expected = np.full(length, -3 * 2.5, np.float32).tobytes()
        assert world.run(trained) == [[expected] * 4] * 4
