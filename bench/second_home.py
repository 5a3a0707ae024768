"""Time of an elastic optimizer's step without failures, by the way in which replicas of shards are updated.

    python -m bench.second_home --ranks 2 4 8 --transports grpc shm --backward 0 200

All ways run in the same ranks and take turns, so that other load on the machine affects all of them equally. Prints
medians, and ratios to an optimizer that is not elastic. `--backward`: milliseconds of a simulated backward pass, which
uses no processor time, as on a device, and yields gradients layer by layer.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ringtrain as rt
from bench.steps import resnet50_shapes, sleep_until
from ringtrain._core.process_groups.group import CollectiveGroup, Flat, PendingCollective
from ringtrain.optim import AdamW, HostOptimizer
from ringtrain.optim.arenas import ParameterArenas
from ringtrain.optim.layout import Bucket, Layout
from ringtrain.optim.mirror import MirrorTools, OptimizerShardMirror, UpdateReplay
from ringtrain.optim.slots import WEIGHTS
from ringtrain.optim.update_context import ShardCopies

# "replay" is what the optimizer does, "two" with `redundancy=2`. "sent": over the network also where ranks map
# each other's memory.
WAYS = ("none", "undo", "replay", "two", "sent", "state")


class SentMirror(OptimizerShardMirror):
    """No rank writes a gradient where another has it."""

    def __init__(self, layout: Layout, homes: Sequence[int], group: CollectiveGroup, tools: MirrorTools) -> None:
        super().__init__(layout, homes, group, tools)
        self._gradients_there = None


class StateMirror(SentMirror):
    """The owner sends its state. Weights are there anyway; the copy from before the update is kept beside it."""

    def __init__(
        self,
        layout: Layout,
        homes: Sequence[int],
        group: CollectiveGroup,
        tools: MirrorTools,
        arenas: ParameterArenas,
    ) -> None:
        super().__init__(layout, homes, group, tools)
        self._own = arenas
        self._group = group
        self._before = {b.index: {n: v.copy() for n, v in self.values(b).items()} for b in self.buckets}

    def catch_up(self, bucket: Bucket, number: int) -> None:
        """Nothing is to be replayed."""

    def exchange(self, bucket: Bucket, reduced: Flat, replay: UpdateReplay) -> list[PendingCollective]:
        into = (self.values(bucket), self._before[bucket.index])[replay.number % 2]
        into[WEIGHTS][:] = self._own.weights(bucket)[self.shard(bucket)]
        state = self._own.state[bucket.index]
        return [
            self._group.send_receive(own.view(np.uint8), self.replica_rank, into[name].view(np.uint8), self.owner)
            for name, own in state.items()
        ]


class Variant(HostOptimizer):
    """A host optimizer that keeps of an elastic one what `way` says."""

    def __init__(self, params: dict[str, Flat], way: str) -> None:
        super().__init__(params, AdamW(lr=1e-3), elastic=way != "none", redundancy=2 if way == "two" else 1)
        context = self._cut.context
        if way == "undo":
            self._cut = replace(self._cut, context=replace(context, copies=ShardCopies()))
        if way in ("sent", "state") and context.copies.mirrors:
            given = (context.layout, context.copies.mirrors[0].replica_ranks, context.transfers.lane or context.group)
            tools = MirrorTools(context.shard.state_names, context.shard.kernels, None)
            mirror = SentMirror(*given, tools) if way == "sent" else StateMirror(*given, tools, context.arenas)
            self._cut = replace(self._cut, context=replace(context, copies=ShardCopies((mirror,))))


@dataclass(frozen=True)
class Plan:
    """Shapes of the weights, ways and times of one measurement. `backward_s`: of each step's backward pass."""

    shapes: list[tuple[int, ...]]
    ways: list[str]
    backward_s: float
    seconds: float


def measure(plan: Plan) -> dict[str, list[tuple[float, float]]]:
    """Of each way's steps: the seconds of the slowest rank, and processor seconds of all ranks."""
    rt.init()
    random = np.random.default_rng(0)
    gradients = {f"p{i}": random.standard_normal(s, dtype=np.float32) for i, s in enumerate(plan.shapes)}
    ones = {name: np.ones_like(gradient) for name, gradient in gradients.items()}
    variants = {way: Variant(ones, way) for way in plan.ways}
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in plan.ways}
    for _ in range(2):  # also the memory that only a second step touches
        for way in plan.ways:
            _step(variants[way], gradients, 0.0)
    began = time.monotonic()
    while rt.broadcast_object(time.monotonic() - began < plan.seconds):
        for way in plan.ways:
            rt.barrier()
            took, processor = zip(*rt.allgather_object(_step(variants[way], gradients, plan.backward_s)), strict=True)
            times[way].append((max(took), sum(processor)))
    rt.shutdown()
    return times


def _step(optimizer: HostOptimizer, gradients: dict[str, Flat], backward_s: float) -> tuple[float, float]:
    """Seconds and processor seconds of this rank."""
    began, processor = time.perf_counter(), time.process_time()
    total, done = sum(gradient.size for gradient in gradients.values()), 0
    for name in reversed(gradients):
        done += gradients[name].size
        sleep_until(began + backward_s * done / total)
        optimizer.submit(name, gradients[name])
    optimizer.step()
    took = time.perf_counter() - began
    rt.barrier()  # what other ranks still read of this one is this rank's work
    return took, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--transports", nargs="+", default=["grpc", "shm"])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--backward", type=float, nargs="+", default=[0.0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["none", "undo", "replay"])
    parser.add_argument("--part", type=int, default=1, help="one of so many of ResNet-50's parameters")
    arguments = parser.parse_args()
    shapes = resnet50_shapes()[:: arguments.part]
    for transport in arguments.transports:
        for ranks, backward_ms in itertools.product(arguments.ranks, arguments.backward):
            os.environ["RINGTRAIN_TRANSPORT"] = transport
            plan = Plan(shapes, arguments.ways, backward_ms / 1000, arguments.seconds)
            case = {"transport": transport, "ranks": ranks, "backward ms": backward_ms}
            print(json.dumps({**case, **_summary(rt.run(measure, (plan,), np=ranks)[0])}), flush=True)


def _summary(times: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    summary: dict[str, Any] = {"steps": len(times["none"])}
    for index, what in enumerate(("step", "processor")):
        of = {way: [values[index] for values in found] for way, found in times.items()}
        summary[f"{what} ms"] = {way: round(1000 * statistics.median(of[way]), 1) for way in of}
        summary[f"{what} ratio"] = {way: _ratio(of[way], of["none"]) for way in of}
    return summary


def _ratio(values: list[float], others: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(values, others, strict=True)), 2)


if __name__ == "__main__":
    main()
