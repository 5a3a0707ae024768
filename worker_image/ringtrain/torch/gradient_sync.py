"""Reduce each parameter's gradient as the backward pass produces it."""

import time
import warnings
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ringtrain import rank, timeline
from ringtrain.common.util import split_list
from ringtrain.errors import ConfigurationError
from ringtrain.process_groups.context import current
from ringtrain.process_groups.process_sets import ProcessSet, members, trains_alone
from ringtrain.reduction.ops import Sum
from ringtrain.torch.compression import Compressor
from ringtrain.torch.fingerprint import Fingerprint
from ringtrain.torch.handles import TorchHandle, synchronize
from ringtrain.torch.reduce import grouped_allreduce_async
from ringtrain.torch.sparse import SparseHandle, sparse_allreduce_async

# A parameter: torch.nn.Parameter, whose stubs are not looked at.
Param = Any


@dataclass(frozen=True)
class SyncOptions:
    """How gradients are reduced. `op`: Sum or Average. `predivide`: divides before an average's sum; the rest of
    the division comes after it.
    """

    compression: type[Compressor]
    passes: int
    op: Any
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet

    @property
    def op_and_factors(self) -> tuple[Any, float, float]:
        """The operation for dense gradients in the present world, and the factors before and after it."""
        if self.predivide == 1.0:
            return self.op, 1.0, 1.0
        return Sum, 1.0 / self.predivide, self.predivide / members(self.process_set)


@dataclass(frozen=True)
class _UnderWay:
    """`given`: what each parameter's gradient was when its reduction began."""

    handle: TorchHandle | SparseHandle
    params: tuple[Param, ...]
    given: tuple[Fingerprint, ...]
    contexts: tuple[Any, ...]


class GradientSync:
    """The reductions of one model's gradients. `names`: of each parameter. `groups`: parameters that travel
    together; a parameter in none travels alone.
    """

    def __init__(self, names: dict[Param, str], groups: Sequence[Sequence[Param]], options: SyncOptions) -> None:
        self.options = options
        self._names = names
        in_groups = {param for group in groups for param in group}
        self._units = [tuple(group) for group in groups] + [(param,) for param in names if param not in in_groups]
        self._unit_of = {param: index for index, unit in enumerate(self._units) for param in unit}
        self._passes_left: dict[Param, int] = {}
        self._ready: set[Param] = set()
        self._under_way: dict[int, _UnderWay] = {}
        self._hooks: dict[Param, Any] = {}
        self._began_ns = 0  # the backward pass, with its first gradient
        self._world = weakref.ref(current())
        self.set_passes(options.passes)
        self.watch()

    def watch(self) -> None:
        """Install a hook on every parameter that requires a gradient by now."""
        if trains_alone(self.options.process_set):
            return
        for param in self._names:
            if param.requires_grad and param not in self._hooks:
                self._hooks[param] = param.register_post_accumulate_grad_hook(self._on_gradient)

    def set_passes(self, passes: int) -> None:
        """Expect so many backward passes before a step."""
        self._passes = passes
        self._passes_left = dict.fromkeys(self._names, passes)

    @property
    def busy(self) -> bool:
        """Whether gradients are on their way in the present world."""
        return bool(self._under_way or self._ready) and self._world() is current()

    def finish(self) -> None:
        """Submit what the backward pass left out, wait for everything, and leave reduced gradients in
        `param.grad`.

        A parameter that the pass did not reach counts as a gradient of zeros, since another rank may have reached
        it. Raises ConfigurationError where a gradient was changed or taken away after its reduction had begun.
        """
        self._enter_world()
        if trains_alone(self.options.process_set):
            return
        if self.busy:
            timeline.record_since(self._began_ns, "backward", "backward")
        for param in self._names:
            if param.requires_grad and not self._submitted(param):
                if param.grad is None:
                    param.grad = torch.zeros_like(param)
                self._ready.add(param)
        for unit in sorted({self._unit_of[param] for param in self._ready}):
            self._submit(unit)
        changed: set[Param] = set()
        for under_way in self._under_way.values():
            reduced = self._received(under_way)
            for param, given, grad in zip(under_way.params, under_way.given, reduced, strict=True):
                if given.is_of(param.grad):
                    _store(param, grad)
                else:
                    changed.add(param)
        self.reset()
        self.watch()
        if changed:
            raise ConfigurationError(_changed([name for param, name in self._names.items() if param in changed]))

    def reset(self) -> None:
        """Begin the next step."""
        self._under_way.clear()
        self._ready.clear()
        self._passes_left = dict.fromkeys(self._names, self._passes)

    def _enter_world(self) -> None:
        """In another world than before forget the step that was under way there: nothing of it will come."""
        world = current()
        if self._world() is not world:
            self._world = weakref.ref(world)
            self.reset()

    def _on_gradient(self, param: torch.Tensor) -> None:
        self._enter_world()
        if trains_alone(self.options.process_set):
            return
        known: Param = param
        if self._submitted(known) or self._passes_left[known] <= 0:
            raise AssertionError(
                f"the gradient of {self._names[known]!r} was computed more than backward_passes_per_step = "
                f"{self._passes} "
                "times before step(); raise backward_passes_per_step to accumulate gradients locally"
            )
        if not self.busy:
            self._began_ns = time.perf_counter_ns()
        self._passes_left[known] -= 1
        if self._passes_left[known] == 0:
            self._ready.add(known)
            unit = self._unit_of[known]
            if all(member in self._ready or not member.requires_grad for member in self._units[unit]):
                self._submit(unit)

    def _submitted(self, param: Param) -> bool:
        return param in self._ready or self._unit_of[param] in self._under_way

    def _submit(self, unit: int) -> None:
        present = tuple(param for param in self._units[unit] if param in self._ready)
        self._ready.difference_update(present)
        self._under_way[unit] = self._reduced(present)

    def _reduced(self, params: tuple[Param, ...]) -> _UnderWay:
        options = self.options
        given = tuple(Fingerprint.of(param.grad) for param in params)
        grads = [_gradient(param, options.sparse_as_dense) for param in params]
        if any(grad.is_sparse for grad in grads):
            if len(params) > 1:
                raise ConfigurationError(
                    "a group holds a sparse gradient; pass sparse_as_dense=True, or leave it out"
                )
            handle = sparse_allreduce_async(grads[0], self._names[params[0]], options.op, options.process_set)
            return _UnderWay(handle, params, given, ())
        small = [options.compression.compress(grad) for grad in grads]
        tensors = [tensor for tensor, _ in small]
        # Not in place: the gradient stays as it is until the step, so that a change of it is seen.
        dense = grouped_allreduce_async(
            tensors, None, self._names[params[0]], *options.op_and_factors, options.process_set
        )
        return _UnderWay(dense, params, given, tuple(ctx for _, ctx in small))

    def _received(self, under_way: _UnderWay) -> list[torch.Tensor]:
        if isinstance(under_way.handle, SparseHandle):
            return [under_way.handle()]
        tensors = synchronize(under_way.handle)
        decompress = self.options.compression.decompress
        return [decompress(tensor, ctx) for tensor, ctx in zip(tensors, under_way.contexts, strict=True)]


def named_or_numbered(
    named_parameters: Iterable[tuple[str, Param]] | None, optimizer: torch.optim.Optimizer
) -> dict[Param, str]:
    """Return the name of each of the optimizer's parameters. Raises ConfigurationError where names do not fit."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if named_parameters is None:
        return {param: f"gradient.noname.{index}" for index, param in enumerate(params)}
    named = list(named_parameters)
    if any(not isinstance(entry, tuple) for entry in named):
        raise ConfigurationError(
            "named_parameters: expected (name, parameter) pairs, as model.named_parameters() gives"
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"named_parameters: {twice} name more than one parameter; expected unique names")
    by_param = {param: f"gradient.{name}" for name, param in named}
    missing = [index for index, param in enumerate(params) if param not in by_param]
    if missing:
        raise ConfigurationError(
            f"named_parameters: parameters {missing} of the optimizer (by position) have no name; pass all, as "
            "model.named_parameters() gives"
        )
    return {param: by_param[param] for param in params}


def grouped(groups: Any, params: Sequence[Param]) -> list[list[Param]]:
    """Return the groups that `groups` asks for: a number of them, or lists of parameters."""
    if groups is None or groups == 0:
        return []
    if isinstance(groups, int) and groups > 0:
        return [group for group in split_list(list(params), groups) if group]
    if isinstance(groups, list) and all(isinstance(group, list) for group in groups):
        flat = [param for group in groups for param in group]
        if len(set(flat)) != len(flat):
            raise ConfigurationError("groups: a parameter is in two groups; expected each in one at most")
        return [group for group in groups if group]
    raise ConfigurationError(
        f"groups is {groups!r}; expected a number, 0 or more, or a list of lists of parameters"
    )


def _gradient(param: Param, sparse_as_dense: bool) -> torch.Tensor:
    grad: torch.Tensor = param.grad
    return grad.to_dense() if grad.is_sparse and sparse_as_dense else grad


def _store(param: Param, reduced: torch.Tensor) -> None:
    """Put `reduced` where the parameter's gradient is. A sparse one stays sparse: SparseAdam takes no other."""
    if param.grad.is_sparse:
        param.grad = reduced if reduced.is_sparse else reduced.to_sparse(param.grad.sparse_dim())
        return
    with torch.no_grad():
        param.grad.copy_(reduced)


def _changed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"rank {rank()}: {shown}: changed, replaced or set to None after its reduction had begun, so that ranks "
        "would end with different weights; expected gradients to stay as backward() made them until they are "
        "reduced. To clip or unscale: loss.backward(); optimizer.synchronize(); change the gradients; "
        "with optimizer.skip_synchronize(): optimizer.step()"
    )


def warn_twice() -> None:
    warnings.warn(
        "step() reduces gradients that synchronize() has reduced already; use `with optimizer.skip_synchronize()` "
        "around step() after synchronize()",
        stacklevel=3,
    )
