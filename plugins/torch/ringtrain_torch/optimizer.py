"""`DistributedOptimizer`: a torch optimizer that steps on gradients reduced over all ranks."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from ringtrain import Adasum, Average, ProcessSet, ReduceOp, Sum, global_process_set, timeline
from ringtrain.adapter import OptimizerReplicas
from ringtrain.errors import ConfigurationError
from ringtrain.step_time import UPDATE
from ringtrain_torch.adasum_optimizer import TorchAdasumMixin
from ringtrain_torch.buckets import Param
from ringtrain_torch.compression import Compression, Compressor
from ringtrain_torch.gradient_sync import TorchGradientSync, TorchSyncOptions
from ringtrain_torch.parameters import added_to_param_groups, grouped, in_place, named_or_numbered
from ringtrain_torch.reduce import allreduce
from ringtrain_torch.replica import torch_replica_of

_COMPRESSIONS: Final = ("none", "fp16", "bf16")
# Attributes that `DistributedOptimizer` adds to an optimizer; and the bound `step` that torch stores in each object.
_OWN: Final = ("sync", "replicas", "_synchronized", "_skip", "_steps", "_step_began_ns", "step")


class DistributedTorchMixin:
    """Mixin for `DistributedOptimizer`, which puts it before the class of the wrapped optimizer."""

    sync: TorchGradientSync
    replicas: OptimizerReplicas
    _synchronized: bool
    _skip: bool
    _steps: int
    _step_began_ns: int
    _opt_called: bool  # torch's schedules check whether a step preceded theirs

    def synchronize(self) -> None:
        """Wait until all gradients are reduced. Afterwards they may be changed, for example clipped; then call `step()`
        inside `skip_synchronize()`. Raises ConfigurationError for a gradient that was changed before."""
        optimizer: Any = self
        if new := added_to_param_groups(self.sync.params, optimizer):
            self.sync.add(new)  # a script has added them to groups
        with self.replicas.compared(lambda part: torch_replica_of(self.sync.names, optimizer.param_groups, part)):
            self.sync.finish()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step()` use the gradients in this context without a reduction, after `synchronize()`."""
        if self._skip:
            raise AssertionError("skip_synchronize() is already in effect; do not nest it")
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients, then update the weights; return the loss of `closure`. With a closure, gradients are
        reduced at each evaluation."""
        self._opt_called = True
        result = self._step(closure)
        self._steps += 1
        self._step_began_ns = timeline.step_ended(self._step_began_ns, self._steps)
        return result

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        step: Callable[..., Any] = self._wrapped().step
        if self._skip:
            begun = self.sync.begun if closure is None else self.sync.busy
            if begun and not self.sync.is_alone:
                raise ConfigurationError(
                    "step() was called within skip_synchronize() while gradients are still being "
                    "reduced; call optimizer.synchronize() after backward() and before step()"
                )
            self._synchronized = False
            return _updated_torch_step(step) if closure is None else step(closure)
        if closure is not None:
            return step(self._reducing(closure))
        if self._synchronized and not self.sync.begun:
            warnings.warn(
                "step() reduces gradients that synchronize() has reduced already; use `with "
                "optimizer.skip_synchronize()` around step() after synchronize()",
                stacklevel=2,
            )
        self.synchronize()
        self._synchronized = False
        return _updated_torch_step(step)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Discard the gradients. If some are being reduced, wait for these reductions, on all ranks."""
        self.sync.drop()
        self._wrapped().zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, whose gradients are reduced from now on. Not collective, but all ranks must add it."""
        self._wrapped().add_param_group(param_group)
        optimizer: Any = self
        self.sync.add(added_to_param_groups(self.sync.params, optimizer))

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load the wrapped optimizer's state."""
        if self.sync.busy:
            self.synchronize()
        optimizer: Any = self
        with in_place(optimizer):
            self._wrapped().load_state_dict(*args, **kwargs)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes before each step."""
        self.sync.set_passes(passes)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy the wrapped optimizer, names and options, from which this optimizer can be created again."""
        optimizer: Any = self
        return torch_optimizer_made_again, (
            unwrapped_torch_optimizer(optimizer, DistributedTorchMixin),
            WrappedTorchOptimizer.of(optimizer, self.sync),
        )

    def _mean_of_ranks(self, loss: Any) -> Any:
        """Return the mean loss of ranks for LBFGS, so that all evaluate the closure equally often.

        For other optimizers, return `loss`.
        """
        if loss is None or not isinstance(self, torch.optim.LBFGS) or self.sync.is_alone:
            return loss
        name = f"loss of {next(iter(self.sync.names.values()))}"
        mean = allreduce(torch.as_tensor(loss).detach().clone(), name=name, process_set=self.sync.options.process_set)
        return mean if isinstance(loss, torch.Tensor) else mean.item()

    def _wrapped(self) -> Any:
        """Return a proxy to the methods of the wrapped optimizer, whose class follows this mixin."""
        return super()

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reduced() -> Any:
            if self.sync.busy:
                self.synchronize()
            loss = closure()  # it may synchronize itself, to clip gradients
            if not self._synchronized or self.sync.begun:
                self.synchronize()
            self._synchronized = False
            return self._mean_of_ranks(loss)

        return reduced


# A torch schedule that was created from the wrapped optimizer would warn that it cannot count steps.
setattr(DistributedTorchMixin.step, "_wrapped_by_lr_sched", True)  # noqa: B010


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Param]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return `optimizer` as one that reduces gradients over all ranks during the backward pass.

    The result is of a class derived from the optimizer's own and shares its parameter groups and state. Between
    `backward()` and `step()` gradients must not be changed. To clip them:

        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

    Gradients become views of the optimizer's buckets, in which they are reduced: until `synchronize()` or `step()` has
    returned, `param.grad` may contain this rank's gradient, the reduced one or parts of both.

    `named_parameters`: names that pair gradients of different ranks, as returned by `model.named_parameters()`.
    `backward_passes_per_step`: number of passes whose gradients are first summed locally. `gradient_predivide_factor`:
    divisor before the sum; with Average, the sum is divided by size / factor. `groups`: a number of groups, or lists of
    parameters that are reduced together. `num_groups`: deprecated form of `groups`. `sparse_as_dense`: reduce sparse
    gradients as dense ones. `op`: Average, Sum, or Adasum, which combines the steps of ranks instead of their
    gradients. `process_set`: a rank outside it trains alone.

    At intervals, ranks compare their weights and learning rates before a step: StateCorrupt names ranks that differ.
    """
    chosen = ReduceOp.of(op)
    if chosen not in (Average, Sum, Adasum):
        raise ConfigurationError(f"DistributedOptimizer: op is {chosen.value}; expected Average, Sum or Adasum")
    if gradient_predivide_factor != 1.0 and chosen is not Average:
        raise ConfigurationError("DistributedOptimizer: gradient_predivide_factor needs op=Average")
    if num_groups:
        warnings.warn("num_groups is deprecated; pass groups", DeprecationWarning, stacklevel=2)
        groups = groups if groups is not None else num_groups
    names = named_or_numbered(named_parameters, optimizer)
    if chosen is Adasum:
        wrapped = _derived_torch_optimizer(optimizer, TorchAdasumMixin)
        wrapped.begin(names, compression, process_set)
        return wrapped
    options = TorchSyncOptions(
        compression=compression,
        passes=backward_passes_per_step,
        op=chosen,
        predivide=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    return _wrapped_torch_optimizer(optimizer, names, grouped(groups, list(names)), options)


@dataclass(frozen=True)
class WrappedTorchOptimizer:
    """Options of a `DistributedOptimizer`, from which a pickled or copied one is created again.

    `names`: names of its parameters, in order. `groups`: positions of parameters. `compression`: a name in
    `Compression`.
    """

    names: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    compression: Any
    options: tuple[Any, ...]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, sync: TorchGradientSync) -> WrappedTorchOptimizer:
        """Return the options of `optimizer`. Raises ConfigurationError if it has a process set, which cannot be
        pickled."""
        options, names = sync.options, sync.names
        if options.process_set is not global_process_set:
            raise ConfigurationError(
                "a DistributedOptimizer of a process set can't be pickled or copied; copy the "
                "wrapped optimizer, and wrap the copy"
            )
        params = [param for group in optimizer.param_groups for param in group["params"]]
        at = {param: index for index, param in enumerate(params)}
        groups = tuple(tuple(at[param] for param in group) for group in sync.groups)
        known = {getattr(Compression, name): name for name in _COMPRESSIONS}
        compression = known.get(options.compression, options.compression)
        rest = (sync.passes, options.op, options.predivide, options.sparse_as_dense)
        return cls(tuple(names[param] for param in params), groups, compression, rest)


def unwrapped_torch_optimizer(optimizer: torch.optim.Optimizer, mixin: type) -> torch.optim.Optimizer:
    """Return a view of `optimizer` that has its original class, without `mixin` and the attributes of `mixin`."""
    order = type(optimizer).__mro__
    kind: Any = order[order.index(mixin) + 1]
    plain: torch.optim.Optimizer = kind.__new__(kind)
    plain.__dict__.update({key: value for key, value in vars(optimizer).items() if key not in _OWN})
    return plain


def torch_optimizer_made_again(optimizer: torch.optim.Optimizer, form: WrappedTorchOptimizer) -> Any:
    """Return the pickled or copied `optimizer`, wrapped as the original was."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    passes, op, predivide, sparse_as_dense = form.options
    compression = getattr(Compression, form.compression) if isinstance(form.compression, str) else form.compression
    options = TorchSyncOptions(compression, passes, op, predivide, sparse_as_dense, global_process_set)
    groups = [[params[index] for index in group] for group in form.groups]
    return _wrapped_torch_optimizer(optimizer, dict(zip(params, form.names, strict=True)), groups, options)


def _wrapped_torch_optimizer(
    optimizer: torch.optim.Optimizer, names: dict[Param, str], groups: list[list[Param]], options: TorchSyncOptions
) -> Any:
    wrapped = _derived_torch_optimizer(optimizer, DistributedTorchMixin)
    wrapped.sync = TorchGradientSync(names, groups, options)
    wrapped.replicas = OptimizerReplicas(min(names.values(), default=""), options.process_set)
    wrapped._synchronized = wrapped._skip = False
    wrapped._steps, wrapped._step_began_ns = 0, time.perf_counter_ns()
    return wrapped


def _updated_torch_step(step: Callable[[], Any]) -> Any:
    """Return the result of `step`, and measure its time as update time. Do not use it for steps with a closure, because
    the closure computes gradients."""
    with UPDATE:
        return step()


def _derived_torch_optimizer(optimizer: torch.optim.Optimizer, mixin: type) -> Any:
    """Return a view of `optimizer` whose class has `mixin` before its own; shares all attributes but `step`."""
    kind = type(optimizer)
    if issubclass(kind, DistributedTorchMixin | TorchAdasumMixin):
        raise ConfigurationError("optimizer is a DistributedOptimizer already; expected one that is not wrapped")
    derived: Any = type(kind.__name__, (mixin, kind), {"__doc__": kind.__doc__})
    # the wrapped class' step calls hooks; without this flag PyTorch would call them here as well
    derived.step.hooked = True
    wrapped = derived.__new__(derived)
    # A scheduler created earlier has stored a bound `step` in the old object.
    wrapped.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    return wrapped
