"""Lightning strategy on top of Ringtrain's collectives."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

import ringtrain_torch as hvd
from ringtrain.errors import ConfigurationError

# By the last word of Lightning's, or torch.distributed's, name.
_OPS: Final = {
    "mean": hvd.Average,
    "avg": hvd.Average,
    "sum": hvd.Sum,
    "max": hvd.Max,
    "min": hvd.Min,
    "product": hvd.Product,
}

# Lightning exists as two distributions with separate classes: use the one that the script imports.
_NAME: Final = (
    "pytorch_lightning"
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    else "lightning.pytorch"
)
_ParallelStrategy: Any = importlib.import_module(f"{_NAME}.strategies").ParallelStrategy

Wrap = Callable[[torch.optim.Optimizer, Any], torch.optim.Optimizer]


class RingtrainStrategy(_ParallelStrategy):
    """Lightning strategy that averages gradients over Ringtrain's ranks during the backward pass.

        trainer = Trainer(max_epochs=2, strategy=RingtrainStrategy())

    `wrap(optimizer, module)`: converts each optimizer of the module to one that reduces gradients; default:
    `ringtrain.torch.DistributedOptimizer`. Gradients that Lightning clips, logs and accumulates are the averages.
    Weights of rank 0 are sent to all ranks before training; rank 0 writes checkpoints and logs. Lightning adds its
    distributed sampler to loaders, as for every strategy. `accelerator` is "cpu", or "gpu" with one device per rank.
    """

    strategy_name = "ringtrain"
    optimizers: Any
    model: Any

    def __init__(self, wrap: Wrap | None = None, **options: Any) -> None:
        if not hvd.is_initialized():
            hvd.init()
        super().__init__(**options)
        self._wrap = wrap
        self._passes_are_to_come = False
        importlib.import_module(f"{_NAME}.utilities.rank_zero").rank_zero_only.rank = hvd.rank()

    @property
    def global_rank(self) -> int:
        """Rank of this process."""
        return hvd.rank()

    @property
    def local_rank(self) -> int:
        """Index of this rank on its node."""
        return hvd.local_rank()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return hvd.size()

    @property
    def is_distributed(self) -> bool:
        """Return True even for one rank, so that Lightning uses the distributed sampler and its order of samples."""
        return True

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return hvd.rank() == 0

    @property
    def root_device(self) -> torch.device:
        """Device of this rank."""
        kind = type(self.accelerator).__name__
        return torch.device("cuda", hvd.local_rank()) if kind == "CUDAAccelerator" else torch.device("cpu")

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """Arguments of Lightning's sampler."""
        return {"num_replicas": hvd.size(), "rank": hvd.rank()}

    def model_to_device(self) -> None:
        """Move the model to this rank's device, and set its weights and buffers to those of rank 0."""
        self.model.to(self.root_device)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)

    def setup_optimizers(self, trainer: Any) -> None:
        """Wrap the optimizers of the module, and make schedules refer to the wrapped ones. With
        `Trainer(sync_batchnorm=True)`, also synchronize batch normalisation over all ranks."""
        if self._layer_sync is not None:
            self.model = self._layer_sync.apply(self.model)
        super().setup_optimizers(trainer)
        plain, self.optimizers = self.optimizers, [self._wrapped(one, trainer) for one in self.optimizers]
        for config in self.lr_scheduler_configs:
            if config.scheduler.optimizer in plain:
                config.scheduler.optimizer = self.optimizers[plain.index(config.scheduler.optimizer)]

    def _wrapped(self, optimizer: torch.optim.Optimizer, trainer: Any) -> torch.optim.Optimizer:
        if self._wrap is not None:
            return self._wrap(optimizer, self.model)
        own = {param for group in optimizer.param_groups for param in group["params"]}
        named = [(name, param) for name, param in self.model.named_parameters() if param in own]
        passes = trainer.accumulate_grad_batches if self.model.automatic_optimization else 1
        wrapped: torch.optim.Optimizer = hvd.DistributedOptimizer(
            optimizer, named if len(named) == len(own) else None, backward_passes_per_step=passes
        )
        return wrapped

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients on each rank without a reduction in this context."""
        self._passes_are_to_come = True
        try:
            yield
        finally:
            self._passes_are_to_come = False

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Wait until gradients are averaged over all ranks, before Lightning clips and logs them."""
        if self._passes_are_to_come:
            return
        for optimizer in self.optimizers:
            sync = getattr(optimizer, "sync", None)
            if sync is not None and sync.begun:
                optimizer.synchronize()

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the mean of all ranks' tensors, their sum, or another `reduce_op`. Raises ConfigurationError for an
        unknown reduction."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        op = _OPS.get(str(reduce_op).rpartition(".")[2].lower())
        if op is None:
            raise ConfigurationError(
                f"RingtrainStrategy: reduce_op is {reduce_op!r}; expected one of {', '.join(_OPS)}"
            )
        if op is hvd.Average and not (tensor.is_floating_point() or tensor.is_complex()):
            tensor = tensor.to(torch.get_default_dtype())  # as Lightning does
        return hvd.allreduce(tensor, op=op)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """Return all ranks' tensors, stacked along a new first dimension. With `sync_grads`, autograd sums the
        gradients of all ranks, like Lightning's own strategies (Horovod averages them)."""
        given = (tensor if sync_grads else tensor.detach()).unsqueeze(0)
        if given.requires_grad:
            given.register_hook(lambda grad: grad * hvd.size())
        gathered: torch.Tensor = hvd.allgather(given)
        return gathered

    def barrier(self, name: str | None = None) -> None:
        """Wait until all ranks have called this method."""
        hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object of rank `src`."""
        return hvd.broadcast_object(obj, src)


importlib.import_module(f"{_NAME}.strategies").StrategyRegistry.register(
    "ringtrain", RingtrainStrategy, description=RingtrainStrategy.__doc__ or ""
)
