"""Cost of comparing the ranks' weights: `ringtrain run -np 2 python -m bench.replica_check`.

Times a step of 25.6 million parameters with AdamW, with the check and without it, in turns of twenty steps. Then
does the same with torch's AdamW in a `DistributedOptimizer`, and prints the processor time of its digests.
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

import ringtrain.torch as hvd
from bench.steps import distributed_optimizer_step_of, host_optimizer_step_of
from ringtrain.optim.replicas import PARTS
from ringtrain_torch.replica import torch_replica_of

TURNS, STEPS = 8, 20


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    step, optimizer = host_optimizer_step_of(overlap=False)
    for _ in range(STEPS):
        step()
    host = optimizer._host
    with_check = host._cut
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(TURNS):
        for checks in times:
            host._cut = with_check if checks else replace(with_check, replicas=None)
            with_check.replicas.begin()
            times[checks] += [timed(step) for _ in range(STEPS)]
    digest = timed(lambda: [with_check.replicas.after(number) for number in range(100)]) / 100
    if hvd.rank() == 0:
        ours, without = (statistics.median(times[checks]) * 1e3 for checks in (True, False))
        print(f"with {ours:.2f} ms, without {without:.2f} ms; the digest of an update {digest * 1e3:.3f} ms")
    of_distributed_optimizer()
    hvd.shutdown()


class Nothing:
    """In the place of an optimizer's comparisons."""

    def compared(self, look: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def of_distributed_optimizer() -> None:
    step, optimizer = distributed_optimizer_step_of()
    ours = optimizer.replicas
    for _ in range(STEPS):
        step()
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(TURNS):
        for checks in times:
            optimizer.replicas = ours if checks else Nothing()
            times[checks] += [timed(lambda: [step() for _ in range(STEPS)]) / STEPS]
    began = time.thread_time()
    for part in range(PARTS):
        torch_replica_of(optimizer.sync.names, optimizer.param_groups, part)
    digest = (time.thread_time() - began) / PARTS
    if hvd.rank() == 0:
        with_check, without = (statistics.median(times[checks]) * 1e3 for checks in (True, False))
        print(
            f"DistributedOptimizer: with {with_check:.2f} ms, without {without:.2f} ms; the digest of a "
            f"comparison, one in {STEPS} steps, {digest * 1e3:.3f} ms"
        )


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
