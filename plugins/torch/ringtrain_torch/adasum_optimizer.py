"""`DistributedOptimizer` for Adasum, which combines the steps of the ranks instead of their gradients."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ringtrain import Adasum, ProcessSet
from ringtrain.adapter import OptimizerReplicas, trains_alone
from ringtrain.errors import ConfigurationError
from ringtrain_torch.buckets import Param
from ringtrain_torch.compression import Compressor
from ringtrain_torch.handles import synchronize
from ringtrain_torch.parameters import added_to_param_groups, in_place
from ringtrain_torch.reduce import allreduce_async
from ringtrain_torch.replica import torch_replica_of


class TorchAdasumMixin:
    """Mixin whose ranks step on their own gradients and combine the resulting weight differences by Adasum.

    Maleki, Musuvathi et al. 2021, "Scaling distributed training with adaptive summation", section 4.
    """

    def begin(self, names: dict[Param, str], compression: type[Compressor], process_set: ProcessSet) -> None:
        """Initialize the mixin. Called once by `DistributedOptimizer`."""
        self._names, self._compression, self._process_set = names, compression, process_set
        self._replicas = OptimizerReplicas(min(names.values(), default=""), process_set)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, whose steps are combined from now on. Not collective, but every rank must add the same group."""
        wrapped: Any = super()
        wrapped.add_param_group(param_group)
        optimizer: Any = self
        self._names |= added_to_param_groups(self._names, optimizer)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load the wrapped optimizer's state."""
        wrapped: Any = super()
        optimizer: Any = self
        with in_place(optimizer):
            wrapped.load_state_dict(*args, **kwargs)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on this rank's gradients, then add the combined difference of all ranks to the previous weights."""
        wrapped: Any = super()
        local_step: Callable[..., Any] = wrapped.step
        if trains_alone(self._process_set):
            return local_step() if closure is None else local_step(closure)
        optimizer: Any = self
        with self._replicas.compared(lambda part: torch_replica_of(self._names, optimizer.param_groups, part)):
            pass  # before the ranks' own steps, which differ
        params = [param for param in self._names if param.requires_grad]
        before = [param.detach().clone() for param in params]
        loss = local_step() if closure is None else local_step(closure)
        with torch.no_grad():
            handles = []
            for param, start in zip(params, before, strict=True):
                small, ctx = self._compression.compress(param - start)
                name = f"step.{self._names[param]}"
                handles.append((allreduce_async(small, None, name, Adasum, process_set=self._process_set), ctx))
            for param, start, (handle, ctx) in zip(params, before, handles, strict=True):
                param.copy_(start + self._compression.decompress(synchronize(handle), ctx))
        return loss

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise ConfigurationError, because this optimizer cannot be pickled or copied."""
        raise ConfigurationError(
            "a DistributedOptimizer with op=Adasum can't be pickled or copied; save its "
            "state_dict(), or copy the wrapped optimizer, and wrap the copy"
        )

    def synchronize(self) -> None:
        """Do nothing, because `step()` combines the ranks' weight differences."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raise AssertionError: `step()` itself combines the ranks' steps."""
        raise AssertionError("skip_synchronize() has no meaning with Adasum: step() itself combines the ranks' steps")
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accept any number of passes, because no gradient is reduced before a step."""
