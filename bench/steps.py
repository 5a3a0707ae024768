"""One training step from "all gradients are ready" to "new weights everywhere", ours and PyTorch DDP's."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

Work = Callable[[], None]

# The category of a paced backward pass in a timeline: the optimizer's own begins with the first gradient.
PACED = "paced"


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The 161 parameters of ResNet-50, 25.6 million elements, in the order of the forward pass."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes += [(4 * width, inputs, 1, 1), (4 * width,), (4 * width,)]
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def gpt2_shapes() -> list[tuple[int, ...]]:
    """The 148 parameters of GPT-2 small, 124 million elements, in the order of the forward pass."""
    width = 768
    block: list[tuple[int, ...]] = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(50257, width), (1024, width), *block * 12, (width,), (width,)]


SHAPES = {"resnet50": resnet50_shapes, "gpt2": gpt2_shapes}


def _gradients(model: str = "resnet50") -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, dtype=np.float32) for shape in SHAPES[model]()]


def ringtrain_step(backward_s: float, compression: str | None, overlap: bool = True, in_place: bool = False) -> Work:
    """A step of HostOptimizer with `update_during_backward`. The backward pass takes `backward_s` and no processor, as
    on a device, and hands out gradients layer by layer; without `overlap` all at its end. `in_place`: gradients are in
    the optimizer's memory, as those of a backward pass that makes them there.
    """
    from ringtrain import timeline
    from ringtrain.optim import AdamW, HostOptimizer

    gradients = {f"p{i}": gradient for i, gradient in enumerate(_gradients())}
    initial = {name: np.ones_like(g) for name, g in gradients.items()}
    optimizer = HostOptimizer(initial, AdamW(lr=1e-3), compression=compression, update_during_backward=True)
    for name, gradient in gradients.items():
        optimizer.gradient(name)[...] = gradient  # where a bucket is updated in one pass, they stay
    total = sum(g.size for g in gradients.values())

    def work() -> None:
        begin, done = time.perf_counter(), 0
        began_ns = time.perf_counter_ns()
        for name in reversed(gradients):
            done += gradients[name].size
            sleep_until(begin + backward_s * (done / total if overlap else 1.0))
            optimizer.submit(name, optimizer.gradient(name) if in_place else gradients[name])
        timeline.record_since(began_ns, "backward pass", PACED)
        optimizer.step()

    return work


def ringtrain_four_steps(backward_s: float, forward_s: float) -> Work:
    """A forward pass, which waits for each layer's weights, and a backward pass, four times in a row: the end of a
    step overlaps with the beginning of the next.
    """
    from ringtrain.optim import AdamW, HostOptimizer

    gradients = {f"p{i}": gradient for i, gradient in enumerate(_gradients())}
    initial = {name: np.ones_like(g) for name, g in gradients.items()}
    optimizer = HostOptimizer(initial, AdamW(lr=1e-3), update_during_backward=True)
    total = sum(g.size for g in gradients.values())

    def work() -> None:
        for _ in range(4):
            for name, gradient in gradients.items():
                optimizer.wait_for(name)
                sleep_until(time.perf_counter() + forward_s * gradient.size / total)
            begin, done = time.perf_counter(), 0
            for name in reversed(gradients):
                done += gradients[name].size
                sleep_until(begin + backward_s * done / total)
                optimizer.submit(name, gradients[name])
            optimizer.step(wait=False)
        optimizer.wait_for()

    return work


def ddp_four_steps(backward_s: float, forward_s: float) -> Work:
    """The same steps with DDP, whose forward pass begins when all weights are new."""
    step = ddp_step(backward_s)

    def work() -> None:
        for _ in range(4):
            sleep_until(time.perf_counter() + forward_s)
            step()

    return work


def state_bytes() -> dict[str, int]:
    """Bytes of AdamW's state for ResNet-50: what this rank holds, and the whole of two float32 a parameter."""
    from ringtrain.optim import AdamW, HostOptimizer

    initial = {f"p{i}": np.ones(shape, np.float32) for i, shape in enumerate(resnet50_shapes())}
    whole = 2 * sum(array.nbytes for array in initial.values())
    return {"held": HostOptimizer(initial, AdamW(lr=1e-3)).state_bytes, "whole": whole}


def sleep_until(when: float) -> None:
    left = when - time.perf_counter()
    if left > 0:
        time.sleep(left)


def ddp_step(backward_s: float = 0.0, shapes: str = "resnet50", zero: bool = False) -> Work:
    """A step of DDP, whose backward pass does nothing but hand over gradients that exist already.

    With `backward_s` it takes that long, without using the processor. `zero`: with ZeroRedundancyOptimizer.
    """
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model, pace = _handing_over(backward_s, shapes=shapes)
    reduced = DistributedDataParallel(model, gradient_as_bucket_view=True)
    adamw: Any = torch.optim.AdamW
    if zero:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), adamw, lr=1e-3, fused=True)
    else:
        optimizer = adamw(model.parameters(), lr=1e-3, fused=True)
    return _torch_step(reduced, optimizer, pace)


def fsdp2_step(shapes: str) -> Work:
    """A step of FSDP2 over gloo; weights stay whole between the forward and the backward pass."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, pace = _handing_over(0.0, handed_on=True, shapes=shapes)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return _torch_step(model, adamw, pace, set_to_none=True)


def deepspeed_step(shapes: str) -> Work:
    """A step of DeepSpeed's ZeRO-2 with AdamW and its state on the host (CPUAdam)."""
    import deepspeed

    model, pace = _handing_over(0.0, handed_on=True, shapes=shapes)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def work() -> None:
        pace.update(begin=time.perf_counter(), done=0)
        engine.backward(engine())
        engine.step()

    return work


def distributed_optimizer_step(shapes: str = "resnet50") -> Work:
    """The same model with `ringtrain.torch.DistributedOptimizer` around the same AdamW."""
    return distributed_optimizer_step_of(shapes)[0]


def distributed_optimizer_step_of(shapes: str = "resnet50") -> tuple[Work, Any]:
    """The step of `distributed_optimizer_step`, and its optimizer."""
    import torch

    import ringtrain.torch as hvd

    model, pace = _handing_over(0.0, shapes=shapes)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    optimizer = hvd.DistributedOptimizer(adamw, model.named_parameters())
    return _torch_step(model, optimizer, pace), optimizer


def host_optimizer_step(overlap: bool = False, shapes: str = "resnet50") -> Work:
    """The same model with `ringtrain.torch.HostOptimizer` of the same AdamW. `overlap`: step() does not wait for
    the weights, the next forward pass does."""
    return host_optimizer_step_of(overlap, shapes)[0]


def host_optimizer_step_of(overlap: bool, shapes: str = "resnet50") -> tuple[Work, Any]:
    """The step of `host_optimizer_step`, and its optimizer."""
    import torch

    import ringtrain.torch as hvd

    model, pace = _handing_over(0.0, handed_on=True, shapes=shapes)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = hvd.HostOptimizer(adamw, model, overlap=overlap)
    return _torch_step(model, optimizer, pace, set_to_none=True), optimizer


def _torch_step(model: Any, optimizer: Any, pace: dict[str, float], set_to_none: bool = False) -> Work:
    def work() -> None:
        pace.update(begin=time.perf_counter(), done=0)
        model().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)

    return work


def _handing_over(backward_s: float, handed_on: bool = False, shapes: str = "resnet50") -> tuple[Any, dict[str, float]]:
    """Return a model whose backward pass hands over gradients that exist already, and its pace: when it began, which
    the caller sets, and how many elements it has handed over.

    `handed_on`: where `param.grad` is None, autograd takes a gradient as it is, as it does from the layers of a
    real model; otherwise it clones it, because the model keeps it. `shapes`: name of the model.
    """
    import torch

    gradients = [torch.from_numpy(g) for g in _gradients(shapes)]

    total, pace = sum(g.numel() for g in gradients), {"begin": 0.0, "done": 0}

    class HandOver(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, parameter: Any, index: int) -> Any:
            ctx.index = index
            return parameter.new_zeros(())

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            pace["done"] += gradients[ctx.index].numel()
            sleep_until(pace["begin"] + backward_s * pace["done"] / total)
            return gradients[ctx.index].detach() if handed_on else gradients[ctx.index], None

    class Block(torch.nn.Module):
        def __init__(self, indices: range) -> None:
            super().__init__()
            self.indices = indices
            self.weights = torch.nn.ParameterList(torch.ones_like(gradients[i]) for i in indices)

        def forward(self, before: Any) -> Any:
            made = [HandOver.apply(w, i) for i, w in zip(self.indices, self.weights, strict=True)]
            return torch.stack([before, *made]).sum()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            count = len(gradients)
            starts = range(0, count, 16)  # as many parameters as a block of a real model has
            self.blocks = torch.nn.ModuleList(Block(range(at, min(at + 16, count))) for at in starts)

        def forward(self) -> Any:
            made = torch.zeros(())
            for block in self.blocks:
                made = block(made)
            return made

    return Model(), pace
