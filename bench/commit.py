"""Milliseconds of a commit of an elastic state, by what is in the state.

    python -m bench.commit --ranks 2 4 --transports grpc shm

ResNet-50's 25.6 million parameters. "numbers": only the exchange, by which all ranks know that all have committed.
"host": an elastic HostOptimizer, of which nothing is copied. "torch": a model and AdamW of PyTorch's, which are.
The three take turns; medians of the slowest rank.
"""

import argparse
import json
import os
import statistics
import time

import numpy as np
import torch

import ringtrain as rt
from bench.steps import resnet50_shapes
from ringtrain import elastic
from ringtrain_torch.elastic import TorchState


def measure(repeats: int) -> dict[str, list[float]]:
    """Seconds of the slowest rank for each commit."""
    torch.set_num_threads(1)
    rt.init()
    model = torch.nn.ParameterList(torch.ones(shape) for shape in resnet50_shapes())
    plain = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    arrays = {f"p{i}": np.ones(shape, np.float32) for i, shape in enumerate(resnet50_shapes())}
    host = rt.optim.HostOptimizer(arrays, rt.optim.AdamW(lr=1e-3), elastic=True)
    states = {
        "numbers": elastic.State(step=0),
        "host": elastic.State(optimizer=host, step=0),
        "torch": TorchState(model=model, optimizer=plain, step=0),
    }
    times: dict[str, list[float]] = {name: [] for name in states}
    for _ in range(repeats):
        plain.step()
        for name, array in arrays.items():
            host.submit(name, array)
        host.step()
        for name, state in states.items():
            rt.barrier()
            began = time.perf_counter()
            state.commit()
            times[name].append(max(rt.allgather_object(time.perf_counter() - began)))
    rt.shutdown()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--transports", nargs="+", default=["grpc", "shm"])
    parser.add_argument("--repeats", type=int, default=12)
    arguments = parser.parse_args()
    for transport in arguments.transports:
        os.environ["RINGTRAIN_TRANSPORT"] = transport
        for ranks in arguments.ranks:
            times = rt.run(measure, (arguments.repeats,), np=ranks)[0]
            medians = {name: round(1000 * statistics.median(of[2:]), 2) for name, of in times.items()}
            print(json.dumps({"transport": transport, "ranks": ranks, **medians}), flush=True)


if __name__ == "__main__":
    main()
