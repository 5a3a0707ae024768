"""Train with Hugging Face's Trainer on the ranks of a job: import `Trainer` from here.

Maturity: Beta.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import ringtrain_torch as hvd
from ringtrain.errors import counted

if absent := [name for name in ("transformers", "accelerate") if importlib.util.find_spec(name) is None]:
    raise ModuleNotFoundError(
        f"ringtrain.transformers needs {' and '.join(absent)}, which this Python lacks: pip install {' '.join(absent)}",
        name=absent[0],
    )

__all__ = ["Trainer"]

_Trainer: Any = importlib.import_module("transformers").Trainer
Wrap = Callable[[torch.optim.Optimizer, Any], torch.optim.Optimizer]


class Trainer(_Trainer):
    """`transformers.Trainer` that reduces gradients with Ringtrain during the backward pass.

        from ringtrain.transformers import Trainer

    This import is the only change of a script. `wrap(optimizer, model)`: converts the script's or the Trainer's
    optimizer to one that reduces gradients; default: `ringtrain.torch.HostOptimizer`, whose state is divided among the
    ranks, while the checkpoints of rank 0 contain the whole state: any number of ranks, and torch's optimizer, can load
    them. The Trainer detects the ranks, shards data and gathers metrics as under torchrun, and does not wrap the model
    in DDP.

    Raises RuntimeError if accelerate has detected another number of processes than there are ranks.
    """

    optimizer: Any

    def __init__(self, *args: Any, wrap: Wrap = hvd.HostOptimizer, **options: Any) -> None:
        if not hvd.is_initialized():
            hvd.init()
        self._wrap = wrap
        self._until_step = contextlib.ExitStack()
        self._reducing: torch.optim.Optimizer | None = None
        super().__init__(*args, **options)
        if self.accelerator.num_processes != hvd.size():
            raise RuntimeError(
                f"Trainer: accelerate trains with {counted(self.accelerator.num_processes, 'process', 'processes')}, "
                f"but this world has {counted(hvd.size(), 'rank')}; start the script with `ringtrain run` or as a "
                "job, which set RANK and WORLD_SIZE"
            )

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator like the Trainer does, but without DDP."""
        super().create_accelerator_and_postprocess()
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return an optimizer that reduces gradients over the ranks. Collective."""
        super().create_optimizer(model)
        if not hasattr(self._own, "synchronize"):
            hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
            self.optimizer = self._wrap(self.optimizer, self.model)
        if self._own is not self._reducing:
            self._reducing = self._own
            self._own.register_step_post_hook(lambda *_: self._until_step.close())
        optimizer: torch.optim.Optimizer = self.optimizer
        return optimizer

    def _clip_grad_norm(self, model: Any) -> Any:
        self._reduce()
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        if grad_norm is None:  # gradients are not clipped, but their norm is logged
            self._reduce()
        return super()._get_grad_norm(model, grad_norm)

    def _reduce(self) -> None:
        """Average the gradients over all ranks before the Trainer reads them. A HostOptimizer averages them itself."""
        if not isinstance(self._own, hvd.HostOptimizer):
            self._own.synchronize()
            self._until_step.enter_context(self._own.skip_synchronize())

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with self._gathered():
            super()._save_optimizer_and_scheduler(output_dir)

    @property
    def _own(self) -> Any:
        """Return the optimizer of Ringtrain inside accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    @contextlib.contextmanager
    def _gathered(self) -> Iterator[None]:
        """Gather the state of all ranks for this context, so that rank 0 alone can read it. Collective."""
        own = self._own
        state = own.state_dict(root=0) if isinstance(own, hvd.HostOptimizer) else own.state_dict()
        own.state_dict = lambda: state
        try:
            yield
        finally:
            del own.state_dict
