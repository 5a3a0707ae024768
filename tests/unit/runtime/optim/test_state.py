"""A state_dict is whole: it continues training at any world size, sharded or not."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.memory_group import MemoryGroup, Table, run_threads

from ringtrain.checkpoint import Checkpoints
from ringtrain.errors import ConfigurationError
from ringtrain.optim import LAMB, SGD, AdamW, HostOptimizer, Rule

SHAPES = {"a": (40, 20), "b": (20,), "c": (), "d": (0,)}


def _optimizer(group: MemoryGroup, rule: Rule, **settings: Any) -> HostOptimizer:
    random = np.random.default_rng(7)
    params = {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    params["half"] = np.linspace(0, 1, 300).astype(ml_dtypes.bfloat16)
    return HostOptimizer(params, rule, bucket_bytes=512, group=group, **settings)


def _advance(opt: HostOptimizer, steps: int) -> None:
    """The same gradient on every rank: so that the world size does not matter."""
    for step in range(opt.updates, opt.updates + steps):
        for name, weights in opt.weights.items():
            random = np.random.default_rng([step, ord(name[0])])
            # Multiples of 1/8 and sizes of 1, 2 and 4: sums and means over ranks are exact.
            opt.submit(name, (random.integers(-8, 9, weights.shape) / 8).astype(weights.dtype))
        opt.step()


def _bytes(opt: HostOptimizer) -> dict[str, bytes]:
    return {name: weights.tobytes() for name, weights in opt.weights.items()}


RULES = {"sgd": SGD(0.1, 0.9), "adamw": AdamW(0.1), "lamb": LAMB(0.1)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("size", "sharded", "new_size"), [(2, True, 4), (4, True, 1), (4, False, 2), (1, True, 2)])
def test_training_continues_at_another_world_size(rule: str, size: int, sharded: bool, new_size: int) -> None:
    """Five steps, a checkpoint and five steps elsewhere are ten steps, bit for bit."""

    def whole(group: MemoryGroup) -> dict[str, bytes]:
        opt = _optimizer(group, RULES[rule])
        _advance(opt, 10)
        return _bytes(opt)

    def first_half(group: MemoryGroup) -> dict[str, Any]:
        opt = _optimizer(group, RULES[rule], sharded=sharded)
        _advance(opt, 5)
        return opt.state_dict()

    def second_half(group: MemoryGroup, state: dict[str, Any]) -> dict[str, bytes]:
        opt = _optimizer(group, RULES[rule])
        opt.load_state_dict(state)
        assert opt.updates == 5
        _advance(opt, 5)
        return _bytes(opt)

    (expected,) = run_threads(whole, 1)
    states = run_threads(first_half, size)
    assert run_threads(second_half, new_size, states[-1]) == [expected] * new_size


def test_a_checkpoint_carries_a_sharded_optimizer(tmp_path: Any) -> None:
    """Gathered to rank 0, written, read by rank 0, broadcast: every rank continues with the same bits."""

    def save(group: MemoryGroup) -> dict[str, bytes]:
        opt = _optimizer(group, AdamW(0.1))
        _advance(opt, 3)
        state = opt.state_dict(root=0)
        assert bool(state) == (group.rank == 0)
        Checkpoints(tmp_path, group=group).save(3, {"optimizer": state})
        _advance(opt, 3)
        return _bytes(opt)

    def resume(group: MemoryGroup) -> dict[str, bytes]:
        opt = _optimizer(group, AdamW(0.1))
        saved = Checkpoints(tmp_path, group=group).latest()
        opt.load_state_dict(saved.state["optimizer"])
        _advance(opt, 3)
        return _bytes(opt)

    expected = run_threads(save, 2)[0]
    assert run_threads(resume, 4) == [expected] * 4


def test_local_layers_are_saved_for_each_rank() -> None:
    """At the same world size every rank gets its own back; at another one the error says why not."""

    def train(group: MemoryGroup) -> tuple[dict[str, bytes], dict[str, Any]]:
        opt = _optimizer(group, AdamW(0.1), local=("b", "half"))
        _advance(opt, 1)
        opt.submit("b", np.full(20, group.rank, np.float32))
        for name in ("a", "c", "d", "half"):
            opt.submit(name, np.zeros_like(opt.weights[name]))
        opt.step()
        return _bytes(opt), opt.state_dict()

    def load(group: MemoryGroup, state: dict[str, Any]) -> dict[str, bytes]:
        opt = _optimizer(group, AdamW(0.1), local=("b", "half"))
        opt.load_state_dict(state)
        return _bytes(opt)

    trained = run_threads(train, 3)
    state = trained[1][1]
    assert trained[0][0]["b"] != trained[1][0]["b"]
    assert run_threads(load, 3, state) == [weights for weights, _ in trained]
    with pytest.raises(ConfigurationError) as error:
        run_threads(load, 2, state)
    assert str(error.value) == (
        'parameter "half" is local and was saved by 3 ranks; it cannot be loaded by 2: run with 3 ranks, or '
        "synchronise the parameter"
    )


@pytest.mark.parametrize(
    "settings",
    [{}, {"sharded": False}, {"local": ("b", "half")}, {"compression": "int8"}, {"compression": "bf16"}],
    ids=["sharded", "unsharded", "local", "int8", "bf16"],
)
def test_the_parts_of_all_ranks_are_the_state(settings: dict[str, Any]) -> None:
    """Each element is in one part, at its offset; weights, state and what compression owes can be loaded again."""

    def train(group: MemoryGroup) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        opt = _optimizer(group, AdamW(0.1), **settings)
        _advance(opt, 2)
        state = opt.state_dict()
        other = _optimizer(group, AdamW(0.1), **settings)
        other.load_state_dict(state)
        return opt.shard_dict(), state, other.state_dict()

    trained = run_threads(train, 3)
    for slots in ("arrays", "error_feedback"):
        for slot, arrays in trained[0][1].get(slots, {}).items():
            for name, whole in arrays.items():
                joined, parts = (
                    np.full(whole.size, np.nan, whole.dtype),
                    [part[slots][slot][name] for part, *_ in trained],
                )
                for part in parts:
                    assert part.shape == whole.shape
                    joined[part.start : part.start + part.values.size] = part.values
                assert sum(part.values.size for part in parts) == whole.size
                assert joined.tobytes() == whole.tobytes() == trained[0][2][slots][slot][name].tobytes()
    for name in trained[0][1]["arrays"]["weights"]:
        counts = [part["arrays"]["missed"][name].values.size for part, *_ in trained]
        assert sum(counts) == 1, f'"{name}" is counted by {counts} ranks'


@pytest.mark.parametrize("compression", [None, "bf16", "int8"])
@pytest.mark.parametrize(("given", "missed"), [(-0.0, {}), (0.0, {}), (1.0, {}), (None, {"w": 1})], ids=str)
def test_a_gradient_of_zeros_is_there(compression: str | None, given: float | None, missed: dict[str, int]) -> None:
    """Only a parameter of which no rank has a gradient counts as missed; compressed ones change by the mean."""

    def train(group: MemoryGroup) -> tuple[dict[str, int], list[float]]:
        opt = HostOptimizer({"w": np.zeros(4, np.float32)}, SGD(1.0), compression=compression, group=group)
        opt.submit("w", None if given is None else np.full(4, given, np.float32))
        opt.step()
        counts = opt.state_dict()["arrays"].get("missed", {})
        return {name: int(count[0]) for name, count in counts.items()}, opt.weights["w"].tolist()

    assert run_threads(train, 2) == [(missed, pytest.approx([-(given or 0.0)] * 4, rel=0.01))] * 2


def _alone() -> MemoryGroup:
    return MemoryGroup(Table(1), 0)


@pytest.mark.parametrize(
    ("params", "rule", "message"),
    [
        (
            {"w": np.zeros(3)},
            SGD(0.1),
            "the saved optimizer state is of AdamW, but this optimizer is SGD; use the same",
        ),
        (
            {"v": np.zeros(3)},
            AdamW(),
            "other parameters: only the state has ['w'], only this optimizer has ['v']; build the model that was",
        ),
        (
            {"w": np.zeros(4)},
            AdamW(),
            'parameter "w" was saved as (3,) float64 (weights), but is (4,) float64 in this optimizer;',
        ),
        (
            {"w": np.zeros(3, np.float32)},
            AdamW(),
            'parameter "w" was saved as (3,) float64 (weights), but is (3,) float32 in this optimizer; build',
        ),
    ],
    ids=["rule", "names", "shape", "dtype"],
)
def test_a_state_of_something_else_is_refused(params: Any, rule: Rule, message: str) -> None:
    """The error names what was saved and what is here; nothing is changed."""
    state = HostOptimizer({"w": np.ones(3)}, AdamW(), group=_alone()).state_dict()
    opt = HostOptimizer(params, rule, group=_alone())
    with pytest.raises(ConfigurationError) as error:
        opt.load_state_dict(state)
    assert message in str(error.value)
    assert all(not weights.any() for weights in opt.weights.values())


@pytest.mark.parametrize("given", [{"optimizer": {}, "epoch": 3}, {}], ids=["a-checkpoint", "nothing"])
def test_what_is_no_state_is_refused(given: dict[str, Any]) -> None:
    """A checkpoint that has the state under a name, or the nothing that ranks other than the root get."""
    opt = HostOptimizer({"w": np.ones(3)}, AdamW(), group=_alone())
    with pytest.raises(
        ConfigurationError, match=r"without \['updates', .*the result of state_dict\(\) or shard_dict\(\)"
    ):
        opt.load_state_dict(given)


def test_momentum_that_was_not_saved_is_named() -> None:
    """SGD without momentum saves none; loading it into SGD with momentum says so."""
    state = HostOptimizer({"w": np.ones(3)}, SGD(0.1), group=_alone()).state_dict()
    with pytest.raises(ConfigurationError, match='no "momentum" for parameter "w"; it was saved with other settings'):
        HostOptimizer({"w": np.ones(3)}, SGD(0.1, 0.9), group=_alone()).load_state_dict(state)


@pytest.mark.parametrize("call", ["state_dict", "load_state_dict"])
def test_state_is_taken_between_updates_only(call: str) -> None:
    """In the middle of an update or of an accumulation it would be neither old nor new."""
    opt = HostOptimizer({"w": np.ones(3)}, SGD(0.1), accumulate=2, group=_alone())
    state = opt.state_dict()
    arguments = [state] if call == "load_state_dict" else []
    opt.submit("w", np.ones(3))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=rf"^{call}\(\) was called in the middle of an update; call"):
            getattr(opt, call)(*arguments)
        opt.step()
        opt.submit("w", np.ones(3))
