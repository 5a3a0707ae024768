"""Every error of the optimizer says who, what came, what was expected and the way out."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.memory_group import MemoryGroup, OneOfTwo, Table, run_threads

from ringtrain._core.process_groups.group import Flat, PendingCollective
from ringtrain._core.reduction.ops import ReduceOp
from ringtrain.errors import ConfigurationError, MismatchError, PeerLost
from ringtrain.optim import LAMB, SGD, Adam, HostOptimizer


def _alone(**settings: Any) -> HostOptimizer:
    params = {"conv": np.zeros((3, 4), np.float32), "bias": np.zeros(4, np.float32)}
    return HostOptimizer(params, SGD(0.1), group=MemoryGroup(Table(1), 0), **settings)


@pytest.mark.parametrize(
    ("name", "gradient", "message"),
    [
        (
            "conv",
            np.zeros((4, 3), np.float32),
            'rank 0: gradient "conv" has shape (4, 3), but its parameter has shape (3, 4); submit the '
            "gradient in the parameter's shape",
        ),
        (
            "conv",
            np.zeros((3, 4)),
            'rank 0: gradient "conv" is float64, but its parameter is float32; convert it with '
            "np.asarray(gradient, 'float32'), or register the parameter as float64",
        ),
        (
            "bias",
            [0, 1, 2, 3],
            'rank 0: gradient "bias" is int64, but its parameter is float32; convert it with '
            "np.asarray(gradient, 'float32')",
        ),
        (
            "conv1",
            np.zeros((3, 4), np.float32),
            'rank 0: gradient "conv1" belongs to no parameter; expected one of "conv", "bias"; submit gradients '
            "under the names that were passed to HostOptimizer",
        ),
        (
            "bias",
            np.array([0, 1, np.nan, np.inf], np.float32),
            'rank 0: gradient "bias" has 2 of 4 values that are not finite, the first at flat index 2 (nan); '
            "lower the learning rate, clip, or look for a division by zero in the loss",
        ),
        (
            "bias",
            np.ma.masked_array(np.zeros(4, np.float32), [True, False, False, False]),
            'rank 0: gradient "bias" is a masked array; expected one without a mask, as filled() gives',
        ),
    ],
    ids=["shape", "dtype", "list", "unknown", "not-finite", "masked"],
)
def test_a_gradient_that_does_not_fit_is_refused(name: str, gradient: Flat, message: str) -> None:
    """The error names rank, parameter, both values and the way out, and the step can still be completed."""
    opt = _alone(check_finite=True)
    with pytest.raises(ConfigurationError) as error:
        opt.submit(name, gradient)
    assert str(error.value) == message
    opt.submit("conv", np.zeros((3, 4), np.float32))
    opt.submit("bias", np.zeros(4, np.float32))
    assert opt.step()


def test_a_second_gradient_of_a_parameter_is_refused() -> None:
    """Twice in one step is an error, once per step is not."""
    opt = _alone()
    opt.submit("bias", np.zeros(4, np.float32))
    with pytest.raises(ConfigurationError, match='rank 0: gradient "bias" was submitted twice in one step; submit'):
        opt.submit("bias", np.zeros(4, np.float32))
    opt.submit("conv", np.zeros((3, 4), np.float32))
    opt.step()
    opt.submit("bias", np.zeros(4, np.float32))
    opt.close()


def test_memory_of_a_gradient_is_refused_where_it_is_not_the_caller_s() -> None:
    """After it was submitted, and where it has a sum of micro-steps; both steps can be completed."""
    opt = _alone()
    opt.submit("bias", opt.gradient("bias"))
    with pytest.raises(ConfigurationError, match=r'rank 0: gradient\("bias"\) was called after its submit()'):
        opt.gradient("bias")
    with pytest.raises(ConfigurationError, match='rank 0: gradient "bais" belongs to no parameter; expected one of'):
        opt.gradient("bais")
    opt.submit("conv", opt.gradient("conv"))
    opt.step()
    opt.set_backward_passes_per_step(2)
    with pytest.raises(ConfigurationError, match=r'gradient\("bias"\) cannot be used with accumulate=2, because'):
        opt.gradient("bias")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_missing_gradient_is_named_and_can_be_brought_later(accumulate: int) -> None:
    """step() names what is missing; after it was submitted step() succeeds."""
    opt = _alone(accumulate=accumulate)
    opt.submit("bias", np.zeros(4, np.float32))
    with pytest.raises(ConfigurationError) as error:
        opt.step()
    assert str(error.value) == (
        'rank 0: step() was called with 1 of 2 gradients missing: "conv"; submit a gradient for every parameter '
        "(None for one that this batch does not use), or exclude the parameter from the optimizer"
    )
    opt.submit("conv", np.zeros((3, 4), np.float32))
    assert opt.step() == (accumulate == 1)


def test_many_missing_names_are_cut_short() -> None:
    """Some names and a count are enough to see what is wrong."""
    opt = HostOptimizer({f"p{i}": np.zeros(1) for i in range(10)}, SGD(0.1), group=MemoryGroup(Table(1), 0))
    with pytest.raises(ConfigurationError, match=r'10 of 10 gradients missing: "p0", .*"p7" and 2 more;'):
        opt.step()


@pytest.mark.parametrize("value", [1e300, 3e153], ids=["in-one-parameter", "only-together"])
def test_a_norm_that_is_not_finite_stops_all_ranks(value: float) -> None:
    """With check_finite, gradients whose squares overflow are found before they reach the weights."""

    def train(group: MemoryGroup) -> str:
        params = {name: np.ones(4) for name in "abcdefgw"}
        opt = HostOptimizer(params, SGD(0.1), clip_norm=1.0, check_finite=True, group=group)
        for name in params:
            opt.submit(name, np.full(4, value))
        with pytest.raises(ConfigurationError) as error:
            opt.step()
        assert opt.weights["w"].tolist() == [1.0] * 4
        return str(error.value)

    messages = run_threads(train, 2)
    assert messages == ["update 1: the global gradient norm is inf; lower the learning rate or look for an "
                        "overflow in the loss"] * 2  # fmt: skip


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda group: HostOptimizer({"w": np.zeros((32 * (group.rank + 1), 3))}, SGD(0.1), group=group),
            'parameter "w" is (64, 3) float64 on rank 1, but (32, 3) float64 on rank 0; every rank must build '
            "the same model",
        ),
        (
            lambda group: HostOptimizer({"w": np.zeros(3, ["f4", "f8"][group.rank])}, SGD(0.1), group=group),
            'parameter "w" is (3,) float64 on rank 1, but (3,) float32 on rank 0; every rank must build the same model',
        ),
        (
            lambda group: HostOptimizer({"ab"[group.rank]: np.zeros(3)}, SGD(0.1), group=group),
            'parameter 0 is "b" on rank 1, but "a" on rank 0; every rank must register the same parameters in '
            "the same order",
        ),
        (
            lambda group: HostOptimizer({n: np.zeros(3) for n in "ab"[: group.rank + 1]}, SGD(0.1), group=group),
            "rank 1 has registered 2 parameters, but rank 0 has registered 1; only one of these ranks has ['b']; every "
            "rank must build the same model",
        ),
        (
            lambda group: HostOptimizer({"w": np.zeros(3)}, SGD(0.1 * (group.rank + 1)), group=group),
            "the optimizer's rule is SGD(lr=0.2, momentum=0.0, nesterov=False, weight_decay=0.0) on rank 1, "
            "but SGD(lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0) on rank 0; every rank must build the "
            "same optimizer",
        ),
        (
            lambda group: HostOptimizer({"w": np.zeros(3)}, SGD(0.1), local=["w"][: group.rank], group=group),
            'parameter "w" is (3,) float64 local on rank 1, but (3,) float64 on rank 0; every rank must build '
            "the same model",
        ),
    ],
    ids=["shape", "dtype", "name", "count", "rule", "local"],
)
def test_ranks_with_different_models_are_told_apart(build: Callable[[MemoryGroup], Any], message: str) -> None:
    """Every rank raises the same error, which names both ranks and both values."""

    def construct(group: MemoryGroup) -> str:
        with pytest.raises(MismatchError) as error:
            build(group)
        return str(error.value)

    assert run_threads(construct, 2) == [message] * 2


@pytest.mark.parametrize(
    ("params", "settings", "message"),
    [
        ({}, {}, "HostOptimizer: params is empty; pass the model's arrays by name"),
        (
            [("w", np.zeros(1)), ("w", np.zeros(1))],
            {},
            "parameters are registered twice: ['w']; give each a unique name",
        ),
        (
            {"w": np.zeros(1, np.int64)},
            {},
            'parameter "w" is int64; expected one of float16, bfloat16, float32, float64',
        ),
        ({"w": np.ma.masked_array([1.0], [True])}, {}, 'parameter "w" is a masked array; expected one without'),
        ({"w": np.zeros(1)}, {"local": ["x"]}, "local has the names ['x'], which are not parameters; expected"),
        ({"w": np.zeros(1)}, {"bucket_bytes": 0}, "bucket_bytes is 0; expected at least 1"),
        ({"w": np.zeros(1)}, {"accumulate": 0}, "accumulate is 0; expected at least 1"),
        ({"w": np.zeros(1)}, {"clip_norm": 0.0}, "clip_norm is 0.0; expected a number above 0, or None"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(params: Any, settings: dict[str, Any], message: str) -> None:
    """The error names the argument, its value and what was expected."""
    with pytest.raises(ConfigurationError) as error:
        HostOptimizer(params, Adam(), group=MemoryGroup(Table(1), 0), **settings)
    assert message in str(error.value)


BY_NAME = "; expected arrays by name, as {'w': array}; a PyTorch model is trained by ringtrain.torch.HostOptimizer"


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        (np.zeros((3, 2)), "a numpy.ndarray"),
        ((np.zeros(2) for _ in range(2)), "a generator"),
        (Table(1), "a support.memory_group.Table"),
        (Table, "the class support.memory_group.Table"),
    ],
    ids=["array", "parameters", "model", "class"],
)
def test_what_is_no_arrays_by_name_is_refused(params: Any, kind: str) -> None:
    """An array, `model.parameters()` or a model: the error says what to pass."""
    with pytest.raises(ConfigurationError) as error:
        HostOptimizer(params, Adam(), group=MemoryGroup(Table(1), 0))
    assert str(error.value) == f"params is {kind}{BY_NAME}"


@pytest.mark.parametrize(
    ("rule", "kind"),
    [(Adam, "the class ringtrain.optim.rules.Adam"), (Table(1), "a support.memory_group.Table"), (0.1, "a float")],
    ids=["class", "foreign", "number"],
)
def test_what_is_no_rule_is_refused(rule: Any, kind: str) -> None:
    """A class in the place of an instance, or another library's optimizer."""
    with pytest.raises(ConfigurationError) as error:
        HostOptimizer({"w": np.zeros(3)}, rule, group=MemoryGroup(Table(1), 0))
    expected = "expected an instance of a rule of ringtrain.optim, such as AdamW(lr=1e-3)"
    assert str(error.value) == f"rule is {kind}; {expected}"


class _LosingGroup(OneOfTwo):
    """The other rank is lost in the first reduction."""

    def reduce_scatter(self, buffer: Flat, bounds: Sequence[int], op: ReduceOp = ReduceOp.Sum) -> PendingCollective:
        raise PeerLost(1, "rank 1 was lost")


@pytest.mark.parametrize("rule", [SGD(0.1), LAMB()], ids=["sgd", "lamb"])
def test_a_lost_peer_ends_the_training(rule: Any) -> None:
    """The ring's error comes out of step(), and out of every call after it."""
    opt = HostOptimizer({"w": np.zeros(3)}, rule, group=_LosingGroup())
    for call in (lambda: (opt.submit("w", np.zeros(3)), opt.step()), opt.step, opt.state_dict):
        with pytest.raises(PeerLost, match="rank 1 was lost"):
            call()
