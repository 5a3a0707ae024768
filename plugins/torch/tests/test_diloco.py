"""Checks of ringtrain.torch.DiLoCo beside torch's own optimizers in one process, run on every rank of a world."""

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import ringtrain.torch as hvd
from ringtrain.errors import ConfigurationError
from ringtrain.optim import SGD, Nesterov

RUN_IN = {"framework": "ringtrain.torch", "ranks": [1, 3]}

hvd.init()
torch.set_num_threads(1)
RANK, SIZE = hvd.rank(), hvd.size()


class Net(nn.Module):
    """A frozen layer, averages of BatchNorm, two layers, and a scale without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.norm, self.first, self.last = nn.BatchNorm1d(6), nn.Linear(6, 9), nn.Linear(9, 2)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(self.norm(self.frozen(x))))) * self.scale


def model_of(rank: int) -> Net:
    torch.manual_seed(rank)
    return Net()


def adamw(model: nn.Module) -> tuple[Any, Any]:
    inner = torch.optim.AdamW(model.parameters(), lr=0.02)
    return inner, torch.optim.lr_scheduler.StepLR(inner, 5, 0.5)


def backward(model: nn.Module, rank: int, step: int) -> None:
    random = np.random.default_rng([rank, step])
    x = torch.from_numpy(random.standard_normal((8, 6), dtype=np.float32))
    functional.mse_loss(model(x), torch.stack([x.sum(1), x.prod(1)], 1)).backward()


def simulated(steps: int, every: int, lr: float, momentum: float) -> list[dict[str, np.ndarray]]:
    """The trained weights of all ranks: torch's AdamW for each in this process, and Nesterov in numpy."""
    models = [copy.deepcopy(model_of(0)) for _ in range(SIZE)]
    inners = [adamw(model) for model in models]
    outer = {name: array.astype(np.float64) for name, array in weights_of(models[0]).items()}
    velocity = {name: np.zeros_like(array) for name, array in outer.items()}
    for step in range(1, steps + 1):
        for rank, (inner, scheduler) in enumerate(inners):
            backward(models[rank], rank, step)
            inner.step()
            inner.zero_grad()
            scheduler.step()
        if step % every and step < steps:
            continue
        for name in outer:
            mean = np.mean([outer[name] - weights_of(model)[name] for model in models], axis=0)
            velocity[name] = momentum * velocity[name] + mean
            outer[name] = np.asarray(outer[name] - lr * (mean + momentum * velocity[name]))
            for model in models:
                with torch.no_grad():
                    model.get_parameter(name).copy_(torch.from_numpy(outer[name]))
    return [weights_of(model) for model in models]


def weights_of(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters() if p.requires_grad}


def steps(model: nn.Module, optimizer: Any, scheduler: Any, numbers: range) -> None:
    for step in numbers:
        backward(model, RANK, step)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def test_weights_are_those_of_one_process_that_simulates_all_ranks() -> None:
    """AdamW under a schedule inside, Nesterov outside, an end off a multiple of sync_every: within 1e-6."""
    model = model_of(RANK)  # only rank 0's counts
    inner, scheduler = adamw(model)
    optimizer = hvd.DiLoCo(model, inner=inner, outer=Nesterov(0.7, 0.9), sync_every=4)
    addresses = {name: p.data_ptr() for name, p in model.named_parameters()}
    steps(model, optimizer, scheduler, range(1, 15))
    optimizer.finish()
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == addresses
    assert inner.param_groups[0]["lr"] == 0.02 / 4
    for name, expected in simulated(14, 4, 0.7, 0.9)[RANK].items():
        np.testing.assert_allclose(model.get_parameter(name).detach(), expected, atol=1e-6, err_msg=name)
    optimizer.close()


def joined_sites(sites: list[list[int]], steps: int, every: list[int]) -> dict[str, np.ndarray]:
    """The outer weights, of a process that has one model for each site and steps it on the joined batch of its
    ranks; and Nesterov in numpy, on the mean weighted by samples."""
    models = [copy.deepcopy(model_of(0)) for _ in sites]
    outer = {name: array.astype(np.float64) for name, array in weights_of(models[0]).items()}
    velocity = {name: np.zeros_like(array) for name, array in outer.items()}
    optimizers = [adamw(model) for model in models]
    for cycle in range(steps):
        for model, (inner, scheduler), ranks, number in zip(models, optimizers, sites, every, strict=True):
            for step in range(cycle * number, (cycle + 1) * number):
                for rank in ranks:  # their gradients add up
                    backward(model, rank, step)
                for param in model.parameters():
                    if param.grad is not None:
                        param.grad /= len(ranks)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                inner.step()
                inner.zero_grad()
                scheduler.step()
        samples = [len(ranks) * number for ranks, number in zip(sites, every, strict=True)]
        for name in outer:
            apart = [outer[name] - weights_of(model)[name] for model in models]
            mean = np.average(apart, axis=0, weights=samples)
            velocity[name] = 0.9 * velocity[name] + mean
            outer[name] = np.asarray(outer[name] - 0.7 * (mean + 0.9 * velocity[name]))
            for model in models:
                with torch.no_grad():
                    model.get_parameter(name).copy_(torch.from_numpy(outer[name]))
    return outer


def test_sites_are_as_one_process_that_trains_each_on_its_joined_batch() -> None:
    """A site of all but the last rank, which clips mean gradients, beside one that takes half as many steps:
    within 1e-6, and equal bits on all ranks."""
    if SIZE == 1:
        return
    sites, every = [list(range(SIZE - 1)), [SIZE - 1]], [4, 2]
    model = model_of(RANK)
    inner, scheduler = adamw(model)
    own = every[RANK == SIZE - 1]
    optimizer = hvd.DiLoCo(model, inner=inner, outer=Nesterov(0.7, 0.9), sites=sites, sync_every=every)
    for step in range(3 * own):
        backward(model, RANK, step)
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    ended = hvd.allgather_object({name: array.tolist() for name, array in weights_of(model).items()})
    assert ended == ended[:1] * SIZE
    for name, expected in joined_sites(sites, 3, every).items():
        np.testing.assert_allclose(model.get_parameter(name).detach(), expected, atol=1e-6, err_msg=name)
    optimizer.close()


def test_a_step_on_gradients_of_one_rank_of_a_site_is_refused() -> None:
    """As scaler.step(inner) without synchronize() would be."""
    if SIZE == 1:
        return
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(2))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DiLoCo(model, inner=inner, outer=SGD(lr=1), sites=[list(range(SIZE))], sync_every=1)
    (model.w * (RANK + 1.0)).sum().backward()
    with pytest.raises(ConfigurationError, match=r"call synchronize\(\) before the step"):
        optimizer.count_step()
    optimizer.synchronize()
    inner.step()
    optimizer.count_step()
    assert torch.equal(model.w.detach(), torch.full((2,), -(SIZE + 1) / 2))
    optimizer.close()


def test_all_ranks_end_with_one_model() -> None:
    """Parameters, frozen ones and buffers, to the bit: with fragments, overlap, mix and compression."""
    model = model_of(RANK)
    inner, scheduler = adamw(model)
    options = {"sync_every": 6, "fragments": 2, "overlap_steps": 2, "mix": 0.5, "compression": "int8"}
    optimizer = hvd.DiLoCo(model, inner=inner, **options)
    started = hvd.allgather_object({name: v.tolist() for name, v in model.state_dict().items()})
    assert started == started[:1] * SIZE, "rank 0's values are sent to all"
    steps(model, optimizer, scheduler, range(1, 15))
    apart = hvd.allgather_object(model.norm.running_mean.tolist())
    assert SIZE == 1 or apart != apart[:1] * SIZE, "averages of BatchNorm are each rank's own"
    optimizer.finish()
    ended = hvd.allgather_object({name: v.tolist() for name, v in model.state_dict().items()})
    assert ended == ended[:1] * SIZE
    optimizer.close()


def test_a_training_that_begins_again_has_the_same_bits() -> None:
    """From what torch.save wrote in the middle, with an exchange on its way, each rank its own."""
    options = {"outer": Nesterov(), "sync_every": 4, "overlap_steps": 2, "mix": 0.25}
    model = model_of(0)
    inner, scheduler = adamw(model)
    optimizer = hvd.DiLoCo(model, inner=inner, **options)
    steps(model, optimizer, scheduler, range(1, 10))
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    file = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    steps(model, optimizer, scheduler, range(10, 19))
    optimizer.finish()
    optimizer.close()
    again = model_of(5)
    inner, scheduler = adamw(again)
    optimizer = hvd.DiLoCo(again, inner=inner, **options)
    file.seek(0)
    saved = torch.load(file)
    for name, part in {"model": again, "optimizer": optimizer, "scheduler": scheduler}.items():
        part.load_state_dict(saved[name])
    steps(again, optimizer, scheduler, range(10, 19))
    optimizer.finish()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    optimizer.close()


def test_other_dtypes_are_averaged() -> None:
    """Local SGD of whole numbers: their mean, in every dtype, complex ones too."""
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.complex64):
        model = nn.Module()
        model.w = nn.Parameter(torch.zeros(3, 2, dtype=dtype))
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = hvd.DiLoCo(model, inner=inner, outer=SGD(lr=1), sync_every=1)
        model.w.grad = torch.full_like(model.w, -(1.0 + 2 * RANK))
        optimizer.step()
        assert torch.equal(model.w.detach(), torch.full((3, 2), float(SIZE), dtype=dtype)), dtype
        optimizer.close()


def test_steps_that_a_scaler_leaves_out_are_counted() -> None:
    """On one rank alone: the others' changes count with it."""
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(2))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DiLoCo(model, inner=inner, outer=SGD(lr=1), sync_every=1)
    model.w.grad = torch.full((2,), -float(SIZE))
    if RANK:
        inner.step()
    optimizer.count_step()
    assert torch.equal(model.w.detach(), torch.full((2,), float(SIZE - 1)))
    optimizer.close()


def test_what_it_can_not_train_is_refused_in_words() -> None:
    model = model_of(0)
    inner, _ = adamw(model)
    optimizer = hvd.DiLoCo(model, inner=inner)
    model.frozen.requires_grad_(True)
    backward(model, 0, 0)
    with pytest.raises(ConfigurationError, match=r'"frozen.weight" required no gradient when DiLoCo was created'):
        optimizer.step()
    with pytest.raises(ConfigurationError, match="does not support add_param_group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(ConfigurationError, match="without 'ringtrain'"):
        optimizer.load_state_dict(inner.state_dict())
    with pytest.raises(TypeError, match="can't be pickled or copied"):
        copy.deepcopy(optimizer)
    optimizer.close()
    with pytest.raises(ConfigurationError, match=r"inner is a ringtrain_torch\.host_optimizer\.HostOptimizer"):
        hvd.DiLoCo(model, inner=hvd.HostOptimizer(adamw(model)[0], model))
    with pytest.raises(ConfigurationError, match="no parameter of inner requires a gradient"):
        hvd.DiLoCo(model, inner=torch.optim.SGD(model.requires_grad_(False).parameters(), lr=0.1))
    with pytest.raises(ConfigurationError, match="model is a generator"):
        hvd.DiLoCo(model.parameters(), inner=inner)


def test_an_elastic_rank_goes_back_with_its_inner_optimizer() -> None:
    """Weights, AdamW's moments and the rate are those of the commit, to the bit."""
    model = model_of(RANK)
    inner, scheduler = adamw(model)
    optimizer = hvd.DiLoCo(model, inner=inner, outer=SGD(lr=1), sync_every=2, elastic=True)
    state: Any = hvd.elastic.TorchState(optimizer=optimizer, scheduler=scheduler)
    state.sync()

    def after(steps: range) -> list[Any]:
        for step in steps:
            backward(model, RANK, step)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if optimizer.due:
                state.commit()
        return found()

    def found() -> list[Any]:
        moments = [one[key].tolist() for one in inner.state.values() for key in ("step", "exp_avg", "exp_avg_sq")]
        return [{name: array.tolist() for name, array in weights_of(model).items()}, moments, scheduler.get_last_lr()]

    committed = after(range(1, 5))
    assert inner.param_groups[0]["lr"] == 0.02
    later = after(range(5, 6))
    assert inner.param_groups[0]["lr"] == 0.01
    state.restore()
    assert found() == committed != later
    assert inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.02
    optimizer.close()
