"""Time of a warm step of the named queue: `python -m bench.named_queue [--before DIRECTORY]`.

Two ranks of a pod submit 161 small tensors under the names of ResNet-50's parameters and synchronize them, as a
training loop of `ringtrain.torch` does. Prints medians over steps, each of the slower rank: wall time, and processor
time of submitting, of synchronizing, and of the queue's thread. With `--before`, the package in another checkout
(its `worker_image`, kernels built) takes turns with this one.
"""

import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from bench.cases import SHM
from bench.contest import gangs
from bench.hosts import Loopback
from bench.machine import load

NUMBERS = 256  # of each tensor: the time is Python's and not the memory's
PARTS = ("wall", "submit", "synchronize", "queue's thread")


def measure(repetitions: int, warm_up: int = 20) -> list[list[float]]:
    """Seconds of each of `PARTS` in each step of this rank."""
    import torch

    import ringtrain as rt
    import ringtrain.torch as hvd
    from bench.steps import resnet50_shapes

    torch.set_num_threads(1)
    tensors = {f"layer{i}.weight": torch.ones(NUMBERS) for i, _ in enumerate(resnet50_shapes())}
    steps = []
    for _ in range(warm_up + repetitions):
        rt.barrier()
        started, process, thread = time.perf_counter(), time.process_time(), time.thread_time()
        handles = [hvd.allreduce_async(tensor, name=name, op=hvd.Sum) for name, tensor in tensors.items()]
        submitted = time.thread_time()
        for handle in handles:
            hvd.synchronize(handle)
        wall, ended, all_threads = time.perf_counter(), time.thread_time(), time.process_time()
        queue = (all_threads - process) - (ended - thread)
        steps.append([wall - started, submitted - thread, ended - submitted, queue])
    return steps[warm_up:]


@click.command()
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="A checkout of another version.")
@click.option("--turns", default=8, show_default=True)
@click.option("--steps", default=40, show_default=True, help="Steps in a turn.")
def main(before: Path | None, turns: int, steps: int) -> None:
    """Measure a warm step of the named queue by part."""
    contenders = {"ringtrain": SHM}
    if before is not None:
        contenders["ringtrain-before"] = SHM | {"PYTHONPATH": str(before.absolute() / "worker_image")}
    print(f"161 tensors of {NUMBERS} float32, 2 ranks in a pod, ms (load {load()})")
    found: dict[str, list[list[float]]] = {name: [] for name in contenders}
    with nullcontext(Loopback(2)) as hosts, gangs(contenders, hosts) as running:
        for turn in range(turns):
            for gang in running if turn % 2 == 0 else reversed(running):
                found[gang.contender] += _slower(gang.ask({"kind": "named_queue", "repetitions": steps}))
    for name, samples in found.items():
        medians = [statistics.median(values) * 1e3 for values in zip(*samples, strict=True)]
        print(f"  {name:17}" + ", ".join(f"{part} {ms:.2f}" for part, ms in zip(PARTS, medians, strict=True)))


def _slower(ranks: list[Any]) -> list[list[float]]:
    return [[max(part) for part in zip(*step, strict=True)] for step in zip(*ranks, strict=True)]


if __name__ == "__main__":
    main()
