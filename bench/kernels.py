"""One AdamW step on 25.6 M parameters in one thread: ours and PyTorch's fused one, in turns. Prints JSON."""

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from ringtrain.optim.compiled import best_kernels
from ringtrain.optim.kernels import NumpyOptimizerKernels, OptimizerKernels, OwnedBucketPart
from ringtrain.optim.rules import AdamW, StepValues

ELEMENTS = 25_600_000
TURNS = 15


def main() -> None:
    torch.set_num_threads(1)
    contenders = {
        "ringtrain": ours(best_kernels()),
        "ringtrain-numpy": ours(NumpyOptimizerKernels()),
        "torch-fused": torchs(fused=True),
        "torch-default": torchs(fused=False),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(TURNS + 1):
        for name, step in contenders.items():
            if turn > 3 and name in ("ringtrain-numpy", "torch-default"):
                continue
            started = time.perf_counter()
            step()
            times[name] += [time.perf_counter() - started] if turn else []
    print(json.dumps({name: {"median_s": statistics.median(t), "min_s": min(t)} for name, t in times.items()}))


def ours(kernels: OptimizerKernels) -> Callable[[], None]:
    rule, gradients = AdamW(lr=1e-3), np.random.default_rng(0).standard_normal(ELEMENTS, dtype=np.float32)
    state = {name: np.zeros(ELEMENTS, np.float32) for name in rule.state_names}
    part = OwnedBucketPart(np.ones(ELEMENTS, np.float32), gradients, state)
    return lambda: rule.update(part, StepValues(number=3, rate=1e-3, scale=0.5), kernels)


def torchs(fused: bool) -> Callable[[], None]:
    parameter = torch.nn.Parameter(torch.ones(ELEMENTS))
    parameter.grad = torch.randn(ELEMENTS)
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, fused=fused)

    def step() -> None:
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
