"""torch's own table of optimizers, with the options that its tests give them, on a `HostOptimizer`.

Every rank has the same batches, so that the mean is the gradient of one process.
"""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_optimizers import OptimizerInput, optim_db

import ringtrain.torch as hvd

RUN_IN = {"framework": "ringtrain.torch", "ranks": [2], "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]}}

hvd.init()
REFUSED = {"LBFGS": "evaluates its closure several times", "SparseAdam": "supports only sparse gradients"}
STEPS = 6
OF_TORCH = {info.optim_cls.__name__: info for info in optim_db}


def _model(whole: bool) -> nn.Sequential:
    """`whole`: matrices alone, as Muon takes them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7, bias=not whole), nn.Tanh(), nn.Linear(7, 3, bias=not whole))


def _step(model: nn.Module, optimizer: Any, step: int) -> None:
    x, y = torch.randn((2, 4, 5), generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y[:, :3]).backward()
    optimizer.step()


def _made(info: Any, given: OptimizerInput, model: nn.Module) -> Any:
    first, *others = model.parameters()
    groups = [{"params": [first]}, {"params": others, "lr": 0.02}]
    return info.optim_cls(groups, **copy.deepcopy(given.kwargs))


def _same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-6)


def _check(name: str) -> None:
    info, whole = OF_TORCH[name], name == "Muon"
    for given in info.optim_inputs_func(device="cpu"):
        alone, net = _model(whole), _model(whole)
        if (words := REFUSED.get(name)) is not None:
            refused = info.optim_cls(net.parameters(), **given.kwargs)
            with pytest.raises(ValueError, match=words):
                hvd.HostOptimizer(refused, net)
            continue
        reference = _made(info, given, alone)
        optimizer = hvd.HostOptimizer(_made(info, given, net), net)
        schedulers = [make(optimizer) for make in _schedules()], [make(reference) for make in _schedules()]
        for step in range(STEPS):
            _step(net, optimizer, step), _step(alone, reference, step)
            for one in (*schedulers[0], *schedulers[1]):
                one.step()
        _same(dict(net.named_parameters()), dict(alone.named_parameters()))
        ours, theirs = optimizer.state_dict(), reference.state_dict()
        assert ours["param_groups"] == theirs["param_groups"], given.desc
        _same(ours["state"], {index: _there(state) for index, state in theirs["state"].items() if _there(state)})
        _exchange(info, given, (ours, theirs), alone)
        optimizer.close()


def _exchange(info: Any, given: OptimizerInput, states: tuple[Any, Any], trained: nn.Module) -> None:
    """Each takes the other's state and goes on as the other does."""
    ours, theirs = states
    crossed, net = copy.deepcopy(trained), copy.deepcopy(trained)
    reference, optimizer = _made(info, given, crossed), hvd.HostOptimizer(_made(info, given, net), net)
    reference.load_state_dict(ours)
    optimizer.load_state_dict(copy.deepcopy(theirs))
    for step in range(STEPS, STEPS + 4):
        _step(net, optimizer, step), _step(crossed, reference, step)
    _same(dict(net.named_parameters()), dict(crossed.named_parameters()))
    optimizer.close()


def _there(state: dict[str, Any]) -> dict[str, Any]:
    """torch has None for a state that is not used."""
    return {name: value for name, value in state.items() if value is not None}


def _schedules() -> list[Any]:
    rates = torch.optim.lr_scheduler
    return [lambda o: rates.StepLR(o, 2, 0.7), lambda o: rates.LambdaLR(o, lambda step: 1 / (1 + step))]


test_adadelta = partial(_check, "Adadelta")
test_adafactor = partial(_check, "Adafactor")
test_adagrad = partial(_check, "Adagrad")
test_adam = partial(_check, "Adam")
test_adamax = partial(_check, "Adamax")
test_adamw = partial(_check, "AdamW")
test_asgd = partial(_check, "ASGD")
test_lbfgs = partial(_check, "LBFGS")
test_muon = partial(_check, "Muon")
test_nadam = partial(_check, "NAdam")
test_radam = partial(_check, "RAdam")
test_rmsprop = partial(_check, "RMSprop")
test_rprop = partial(_check, "Rprop")
test_sgd = partial(_check, "SGD")
test_sparseadam = partial(_check, "SparseAdam")


def test_every_optimizer_of_torch_has_a_test():
    assert {f"test_{name.lower()}" for name in OF_TORCH} <= globals().keys()
