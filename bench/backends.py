"""Contenders of the benchmarks: each does the same work with its own library."""

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench import named_queue, steps
from bench.constants import apply

Work = Callable[[], None]


class Backend(Protocol):
    rank: int

    def prepare(self, kind: str, **what: Any) -> Work:
        """Return what is to be timed."""

    def barrier(self) -> None: ...

    def close(self) -> None: ...


class Ringtrain:
    """Ours: shared memory or gRPC, as RINGTRAIN_TRANSPORT says."""

    def __init__(self, contender: str = "ringtrain") -> None:
        import ringtrain as rt

        self.contender = contender
        self._step_of_model: Work | None = None  # one model in all turns, so that peak memory is that of one

        if constant := os.environ.get("BENCH_CONSTANT"):
            apply(constant)
        rt.init()
        self._rt = rt
        self.rank = rt.rank()

    def prepare(self, kind: str, **what: Any) -> Work:
        return getattr(self, f"_{kind}")(**what)  # type: ignore[no-any-return]

    def _allreduce(self, nbytes: int) -> Work:
        buffer = values(nbytes, self.rank)
        rt = self._rt
        return lambda: _ignore(rt.allreduce_(buffer, rt.Max))

    def _compressed(self, nbytes: int, compression: str) -> Work:
        from ringtrain.compression import Compressor

        buffer, compressor = values(nbytes, self.rank), Compressor(compression)
        return lambda: _ignore(compressor.allreduce_(buffer, name="buffer"))

    def _allreduce_many(self, fused: bool) -> Work:
        """ResNet-50's gradients: one tensor after the other was ready, or one tensor of the same bytes."""
        rt = self._rt
        shapes = steps.resnet50_shapes()
        if fused:
            whole = np.ones(sum(int(np.prod(s)) for s in shapes), np.float32)
            return lambda: _ignore(rt.allreduce(whole, rt.Max))
        tensors = [np.ones(s, np.float32) for s in shapes]
        return lambda: _ignore(rt.grouped_allreduce(tensors, rt.Max))

    def _step(
        self,
        backward_s: float = 0.0,
        compression: str | None = None,
        overlap: bool = True,
        in_place: bool = False,
    ) -> Work:
        return steps.ringtrain_step(backward_s, compression, overlap, in_place)

    def _four_steps(self, backward_s: float, forward_s: float) -> Work:
        return steps.ringtrain_four_steps(backward_s, forward_s)

    def _pytorch(self, optimizer: str) -> Work:
        import torch

        torch.set_num_threads(1)  # as many as gloo's ranks have on two cores
        if optimizer == "distributed":
            return steps.distributed_optimizer_step()
        return steps.host_optimizer_step(overlap=optimizer == "host-overlap")

    def _optimizer(self, model: str) -> Work:
        import torch

        torch.set_num_threads(1)
        if self._step_of_model is None:
            is_distributed = "distributed" in self.contender
            make = steps.distributed_optimizer_step if is_distributed else steps.host_optimizer_step
            self._step_of_model = make(shapes=model)
        return self._step_of_model

    def _tensorflow(self, api: str) -> Work:
        from bench import tensorflow_steps

        tensorflow_steps.one_thread()
        if api == "tape":
            return tensorflow_steps.tape_step()
        return tensorflow_steps.keras_step("HostOptimizer" if api == "keras-host" else "DistributedOptimizer")

    def _tensorflow_overlap(self, api: str, backward_s: float, alone: bool) -> Work:
        from bench import tensorflow_steps

        tensorflow_steps.one_thread(pacing=True)
        return tensorflow_steps.overlapping_step(api, backward_s, alone)

    def _jax(self, api: str) -> Work:
        from bench import jax_steps

        return jax_steps.our_step(api)

    def ask(self, kind: str, **what: Any) -> Any:
        """`state`: bytes of optimizer state, this rank's and the whole. `named_queue`: where steps spend time.
        `memory`: megabytes of this process."""
        answers = {"state": steps.state_bytes, "named_queue": named_queue.measure, "memory": memory_mb}
        return answers[kind](**what)

    def barrier(self) -> None:
        self._rt.barrier()

    def close(self) -> None:
        self._rt.shutdown()


class Gloo:
    """PyTorch's CPU backend."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["WORLD_SIZE"])))
        dist.init_process_group("gloo")
        self._torch, self._dist = torch, dist
        self.rank = dist.get_rank()

    def prepare(self, kind: str, **what: Any) -> Work:
        return getattr(self, f"_{kind}")(**what)  # type: ignore[no-any-return]

    def _allreduce(self, nbytes: int) -> Work:
        buffer = self._torch.from_numpy(values(nbytes, self.rank))
        return lambda: self._dist.all_reduce(buffer, self._dist.ReduceOp.MAX)

    def _step(self, backward_s: float = 0.0, in_place: bool = False) -> Work:
        return steps.ddp_step(backward_s)  # DDP has no memory to offer

    def _four_steps(self, backward_s: float, forward_s: float) -> Work:
        return steps.ddp_four_steps(backward_s, forward_s)

    def _pytorch(self, optimizer: str) -> Work:
        return steps.ddp_step()

    def barrier(self) -> None:
        self._dist.barrier()

    def close(self) -> None:
        pass


class TorchPeer(Gloo):
    """PyTorch's and DeepSpeed's ways to divide the state of an optimizer, or none of them: `way`."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self._torch.set_num_threads(1)
        self._way = way
        self._step_of_model: Work | None = None  # one model in all turns, as above

    def _optimizer(self, model: str) -> Work:
        if self._step_of_model is None:
            makers = {"fsdp2": steps.fsdp2_step, "deepspeed": steps.deepspeed_step}
            make = makers.get(self._way, functools.partial(steps.ddp_step, zero=self._way == "zero"))
            self._step_of_model = make(shapes=model)
        return self._step_of_model

    def ask(self, kind: str) -> Any:
        """Megabytes of this process."""
        return memory_mb()


class TensorFlow:
    """TensorFlow's own strategy for many workers."""

    def __init__(self) -> None:
        from bench import tensorflow_steps

        addresses = os.environ["RINGTRAIN_RING_ADDRESSES"].split(",")
        self.rank = int(os.environ["RANK"])
        tensorflow_steps.one_thread()
        self._steps = tensorflow_steps
        self._strategy = tensorflow_steps.own_strategy(addresses, self.rank)
        self._meet = tensorflow_steps.meeting(self._strategy)

    def prepare(self, kind: str, api: str) -> Work:
        if api == "tape":
            return self._steps.tape_step(self._strategy)
        return self._steps.keras_step(strategy=self._strategy)

    def barrier(self) -> None:
        self._meet()

    def close(self) -> None:
        pass


class Jax:
    """JAX's own collectives over gloo."""

    def __init__(self) -> None:
        from bench import jax_steps

        master, port, ranks = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
        self.rank = int(os.environ["RANK"])
        jax_steps.own_world(f"{master}:{port}", int(ranks), self.rank)
        self._steps, self._meet = jax_steps, jax_steps.meeting()

    def prepare(self, kind: str, api: str) -> Work:
        return self._steps.own_step()

    def barrier(self) -> None:
        self._meet()

    def close(self) -> None:
        pass


class Mpi:
    """Open MPI through mpi4py, buffers in place; shared memory or TCP as mpirun was told."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi, self._world = MPI, MPI.COMM_WORLD
        self.rank = self._world.Get_rank()

    def prepare(self, kind: str, **what: Any) -> Work:
        return getattr(self, f"_{kind}")(**what)  # type: ignore[no-any-return]

    def _allreduce(self, nbytes: int) -> Work:
        buffer = values(nbytes, self.rank)
        return lambda: self._world.Allreduce(self._mpi.IN_PLACE, buffer, self._mpi.MAX)

    def barrier(self) -> None:
        self._world.Barrier()

    def close(self) -> None:
        pass


class Copy:
    """The floor: every rank copies the buffer once, at the same time. What memory allows."""

    def __init__(self) -> None:
        self._ring = Ringtrain()
        self.rank = self._ring.rank

    def prepare(self, kind: str, nbytes: int, **what: Any) -> Work:
        source, target = values(nbytes, self.rank), np.ones(nbytes // 4, np.float32)
        return lambda: np.copyto(target, source)

    def barrier(self) -> None:
        self._ring.barrier()

    def close(self) -> None:
        self._ring.close()


def _ignore(result: Any) -> None:
    """Results are dropped: their memory is part of what is timed."""


def backend(contender: str) -> Backend:
    """The backend of a contender, by the first word of its name."""
    if contender == "ringtrain-neighbour":
        from bench.neighbour_ring import NeighbourRing

        return NeighbourRing()
    if contender in ("ddp", "zero", "fsdp2", "deepspeed"):
        return TorchPeer(contender)
    if contender.startswith("ringtrain"):
        return Ringtrain(contender)
    kinds = {"gloo": Gloo, "mpi": Mpi, "copy": Copy, "tensorflow": TensorFlow, "jax": Jax}
    return kinds[contender.partition("-")[0]]()


def memory_mb() -> dict[str, float]:
    """Return this process' peak of resident memory and, now, its share of resident memory, in MB."""
    status, rollup = (Path(f"/proc/self/{name}").read_text() for name in ("status", "smaps_rollup"))
    found = {"peak": re.search(r"VmHWM:\s+(\d+)", status), "share": re.search(r"Pss:\s+(\d+)", rollup)}
    return {name: int(match[1]) / 1024 for name, match in found.items() if match is not None}


def values(nbytes: int, rank: int) -> Any:
    """Finite and stable under Max, however often it is repeated."""
    return np.random.default_rng(rank).random(nbytes // 4, np.float32)
