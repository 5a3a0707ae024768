"""Reduce each parameter's gradient as the backward pass produces it."""

import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from ringtrain import rank, timeline
from ringtrain.common.util import split_list
from ringtrain.errors import ConfigurationError
from ringtrain.process_groups.context import current
from ringtrain.process_groups.process_sets import ProcessSet, members, trains_alone
from ringtrain.reduction.ops import Sum
from ringtrain.torch.compression import Compressor
from ringtrain.torch.fingerprint import Fingerprint
from ringtrain.torch.handles import Gathered, TorchHandle, synchronize
from ringtrain.torch.reduce import allreduce_request
from ringtrain.torch.sparse import SparseHandle, sparse_allreduce_async

# A parameter: torch.nn.Parameter, whose stubs are not looked at.
Param = Any

# A script changes gradients too early in all steps or in none: their bits are looked at whole in the first steps
# and now and then, and in part in the others.
_FIRST_STEPS: Final = 10
_EVERY_STEPS: Final = 64


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
    """`given`: what each member's gradient was when its reduction began."""

    handle: TorchHandle | SparseHandle
    members: "tuple[_Member, ...]"
    given: tuple[Fingerprint, ...]
    contexts: tuple[Any, ...]


@dataclass(eq=False, slots=True)
class _Member:
    """A parameter. `ready`: its gradient is complete, and not yet submitted."""

    param: Param
    name: str
    passes_left: int = 0
    ready: bool = False
    hook: Any = None


@dataclass(eq=False, slots=True)
class _Unit:
    """What travels together: a group of parameters, or one alone."""

    members: tuple[_Member, ...]
    under_way: _UnderWay | None = None


class GradientSync:
    """The reductions of one model's gradients. `names`: of each parameter. `groups`: parameters that travel
    together; a parameter in none travels alone.
    """

    def __init__(self, names: dict[Param, str], groups: Sequence[Sequence[Param]], options: SyncOptions) -> None:
        self.options = options
        self._members = {param: _Member(param, name) for param, name in names.items()}
        in_groups = {param for group in groups for param in group}
        units = [tuple(group) for group in groups] + [(param,) for param in names if param not in in_groups]
        self._units = [_Unit(tuple(self._members[param] for param in unit)) for unit in units]
        self._gathered = Gathered(options.process_set)
        self._steps = 0
        self._busy = False
        self._began_ns = 0  # the backward pass, with its first gradient
        self._world: weakref.ref[Any] = weakref.ref(current())
        self._alone = trains_alone(options.process_set)
        self.set_passes(options.passes)
        self.watch()

    def watch(self) -> None:
        """Install a hook on every parameter that requires a gradient by now."""
        if self._alone:
            return
        for unit in self._units:
            for member in unit.members:
                if member.hook is None and member.param.requires_grad:
                    hook = partial(self._on_gradient, unit, member)
                    member.hook = member.param.register_post_accumulate_grad_hook(hook)

    def set_passes(self, passes: int) -> None:
        """Expect so many backward passes before a step."""
        self._passes = passes
        for member in self._members.values():
            member.passes_left = passes

    @property
    def busy(self) -> bool:
        """Whether gradients are on their way in the present world."""
        return self._busy and self._world() is current()

    def finish(self) -> None:
        """Submit what the backward pass left out, wait for everything, and leave reduced gradients in
        `param.grad`.

        A parameter that the pass did not reach counts as a gradient of zeros, since another rank may have reached
        it. Raises ConfigurationError where a gradient was changed or taken away after its reduction had begun.
        """
        self._enter_world()
        if self._alone:
            return
        if self._busy:
            timeline.record_since(self._began_ns, "backward", "backward")
        for unit in self._units:
            self._submit_rest(unit)
        self._gathered.submit()
        changed: set[str] = set()
        for unit in self._units:
            if unit.under_way is not None:
                changed.update(self._take(unit.under_way))
        self.reset()
        self.watch()
        self._steps += 1
        if changed:
            raise ConfigurationError(
                _changed([member.name for member in self._members.values() if member.name in changed])
            )

    def reset(self) -> None:
        """Begin the next step."""
        self._busy = False
        self._gathered.forget()
        for unit in self._units:
            unit.under_way = None
            for member in unit.members:
                member.ready, member.passes_left = False, self._passes

    def _enter_world(self) -> None:
        """In another world than before forget the step that was under way there: nothing of it will come."""
        world = current()
        if self._world() is not world:
            self._world = weakref.ref(world)
            self._alone = trains_alone(self.options.process_set)
            self.reset()

    def _on_gradient(self, unit: _Unit, member: _Member, param: torch.Tensor) -> None:
        self._enter_world()
        if self._alone:
            return
        if member.ready or unit.under_way is not None or member.passes_left <= 0:
            raise AssertionError(
                f"the gradient of {member.name!r} was computed more than backward_passes_per_step = "
                f"{self._passes} "
                "times before step(); raise backward_passes_per_step to accumulate gradients locally"
            )
        if not self._busy:
            self._began_ns = time.perf_counter_ns()
        member.passes_left -= 1
        if member.passes_left == 0:
            self._busy = member.ready = True
            if all(other.ready or not other.param.requires_grad for other in unit.members):
                self._submit(unit)

    def _submit_rest(self, unit: _Unit) -> None:
        """Submit what the backward pass has not: gradients of zeros, and groups that it did not fill."""
        if unit.under_way is not None:
            return
        for member in unit.members:
            if member.param.requires_grad and not member.ready:
                if member.param.grad is None:
                    member.param.grad = torch.zeros_like(member.param)
                member.ready = True
        if any(member.ready for member in unit.members):
            self._submit(unit)

    def _submit(self, unit: _Unit) -> None:
        present = tuple(member for member in unit.members if member.ready)
        for member in present:
            member.ready = False
        self._busy = True
        unit.under_way = self._reduced(present)

    def _reduced(self, members: tuple[_Member, ...]) -> _UnderWay:
        options = self.options
        whole = self._steps < _FIRST_STEPS or self._steps % _EVERY_STEPS == 0
        given = tuple(Fingerprint.of(member.param.grad, whole) for member in members)
        grads = [_gradient(member.param, options.sparse_as_dense) for member in members]
        if any(grad.is_sparse for grad in grads):
            if len(members) > 1:
                raise ConfigurationError(
                    "a group holds a sparse gradient; pass sparse_as_dense=True, or leave it out"
                )
            handle = sparse_allreduce_async(grads[0], members[0].name, options.op, options.process_set)
            return _UnderWay(handle, members, given, ())
        small = [options.compression.compress(grad) for grad in grads]
        # Not in place: the gradient stays as it is until the step, so that a change of it is seen.
        request = allreduce_request(members[0].name, *options.op_and_factors, options.process_set)
        dense = self._gathered.add(request, [tensor for tensor, _ in small])
        return _UnderWay(dense, members, given, tuple(ctx for _, ctx in small))

    def _take(self, under_way: _UnderWay) -> Iterator[str]:
        """Put what was reduced into the gradients; return the names of those that have changed meanwhile."""
        reduced = self._received(under_way)
        for member, given, grad in zip(under_way.members, under_way.given, reduced, strict=True):
            if given.is_of(member.param.grad):
                _store(member.param, grad)
            else:
                yield member.name

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
