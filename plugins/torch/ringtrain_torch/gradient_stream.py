"""Transfer of gradients from the model to the host optimizer."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ringtrain.adapter import Array
from ringtrain.errors import ConfigurationError, some_of
from ringtrain.optim import HostOptimizer
from ringtrain.step_time import REDUCTION, mark_background_thread
from ringtrain_torch.bridge import real_tensor, tensor_like_param, to_arrays, to_tensor
from ringtrain_torch.hook import TorchGradientHook
from ringtrain_torch.node_sum import TorchNodeSum
from ringtrain_torch.stand_in import TorchGradientStandIn


@dataclass(eq=False, slots=True)
class _StreamedParameter:
    """State of a parameter within an update. `pending`: gradient that was not passed to the host yet. `submitted`:
    whether the host has a gradient. `passes`: number of backward passes with a gradient. `open`, `spent`: stand-ins in
    `param.grad` before and after `step()`. `stale`: whether torch would still add the gradient of the previous step to
    `pending`."""

    name: str
    param: Any
    open: Any = None
    spent: Any = None
    pending: Any = None
    submitted: bool = False
    passes: int = 0
    stale: bool = False
    hooks: list[Any] = field(default_factory=list)

    def clear(self) -> None:
        """Reset the state of this step."""
        self.pending, self.submitted, self.passes, self.stale = None, False, 0, False


@dataclass(frozen=True)
class TorchStreamOptions:
    """Options of `TorchGradientStream`. `begin`: called before the first gradient of an update is passed to the host.
    `expects_zero_grad`: whether gradients remain after `step()`, so that a missing `zero_grad()` is reported. `holds`:
    whether weights change only in `step()`."""

    begin: Callable[[], None]
    expects_zero_grad: bool
    holds: bool


class TorchGradientStream:
    """Transfer of each gradient to the host optimizer as soon as the backward passes of a step have completed it.

    From then on, `param.grad` is a `TorchGradientStandIn`. If weights change only in `step()`, a script may use
    gradients meanwhile as in torch: reading one returns the mean of all ranks, and it may be changed, replaced or
    deleted, or another backward pass may follow. If weights change during the backward pass, this is an error.

    The number of backward passes in a step is known only at the end of the first step, so the gradients of the first
    step are passed to the host then.

    From the CPU a gradient is copied at once. From another device it is copied into pinned memory after the work that
    computes it, and a thread passes it on once the copy is complete, so that the backward pass never waits. With a
    `TorchNodeSum` it stays on the device.
    """

    def __init__(
        self,
        host: HostOptimizer,
        params: Mapping[str, Any],
        node_sum: TorchNodeSum | None,
        options: TorchStreamOptions,
    ) -> None:
        self._host = host
        self._node_sum = node_sum
        self._options = options
        self._params = {name: _StreamedParameter(name, param) for name, param in params.items()}
        self._under_way: list[Future[None]] = []
        self._passes: int | None = None  # backward passes of a step; None: not known yet
        self._means: dict[str, Any] | None = None  # gradients that were read, in this update
        self._any_submitted = False  # whether the host has a gradient of this step
        on_cpu = all(param.device.type == "cpu" for param in params.values())
        self._thread = None if on_cpu else ThreadPoolExecutor(1, "ringtrain-gradients", mark_background_thread)
        self.watch()

    def watch(self) -> None:
        """Install hooks on every parameter that requires a gradient now."""
        for own in self._params.values():
            if not own.hooks and own.param.requires_grad:
                own.open = TorchGradientStandIn.of(own.param, partial(self._read, own), partial(self._zero, own))
                own.spent = TorchGradientStandIn.of(
                    own.param, partial(_refuse_spent_backward, own), partial(self._zero, own), True
                )
                own.hooks = [
                    own.param.register_hook(TorchGradientHook(partial(self._restore_gradient, own))),
                    own.param.register_post_accumulate_grad_hook(TorchGradientHook(partial(self._on_gradient, own))),
                ]

    @property
    def begun(self) -> bool:
        """Whether there are gradients of an update that is not finished."""
        return any(own.submitted or own.pending is not None for own in self._params.values())

    def finish(self) -> None:
        """Wait until the host optimizer has this rank's gradients of the step, or knows which are missing.

        Raises ConfigurationError if `zero_grad()` is missing, or if a script changed gradients or ran another backward
        pass although weights change during the backward pass.
        """
        if stale := [own.name for own in self._all if own.stale]:
            raise ConfigurationError(
                f"step() was called with gradients of {some_of(stale)} from before the last step, which torch "
                "would add to the new ones; call optimizer.zero_grad() after each step()"
            )
        if self._means is None:
            self._check_gradients()
        if any(own.pending is not None and (own.submitted or self._means is not None) for own in self._all):
            self._read_all()  # another backward pass after gradients were passed on; it happens on all ranks
            self._submit_again()
        elif self._means is not None:
            self._host.replace_gradients({own.name: _gradient_array(own.param.grad) for own in self._all})
        else:
            self._submit_rest()
        self._wait_submitted()
        passes = max((own.passes for own in self._all), default=1)
        self._passes = max(self._passes or 1, passes)

    def ended(self) -> None:
        """Discard the gradients of a completed step, and begin the next step."""
        for own in self._all:
            own.clear()
            if own.param.grad is not None:
                own.param.grad = own.spent if self._options.expects_zero_grad else None
        self._means, self._any_submitted = None, False
        self.watch()

    def zero_grad(self, set_to_none: bool) -> None:
        """Discard all gradients. Collective if the host optimizer has received some."""
        if self._any_submitted:
            self._drop()
        for own in self._all:
            there = own.pending is not None or own.param.grad is not None
            own.clear()
            own.param.grad = torch.zeros_like(own.param) if there and not set_to_none else None

    def restore(self) -> None:
        """Move gradients back into `param.grad`: if the host optimizer has some, their means over all ranks, which is
        collective."""
        if self._any_submitted:
            self._read_all()
            self._host.drop()
        for own in self._all:
            if own.param.grad is own.open:
                own.param.grad = own.pending
            own.clear()
        self._means, self._any_submitted = None, False

    def forget(self) -> None:
        """Discard the gradients of an unfinished step. Local: the host optimizer discards its copies itself."""
        under_way, self._under_way = self._under_way, []
        for copy in under_way:
            copy.exception()
        if self._node_sum is not None:
            self._node_sum.forget()
        for own in self._all:
            own.clear()
            own.param.grad = None
        self._means, self._any_submitted = None, False

    def close(self) -> None:
        """Release the parameters."""
        for own in self._all:
            for hook in own.hooks:
                hook.remove()
            if isinstance(own.param.grad, TorchGradientStandIn):
                own.param.grad = None
        if self._thread is not None:
            self._thread.shutdown()
        self._params.clear()

    @property
    def _all(self) -> Iterable[_StreamedParameter]:
        return self._params.values()

    def _restore_gradient(self, own: _StreamedParameter, _: torch.Tensor) -> None:
        """Set `param.grad` to its value without streaming. Runs before autograd adds a gradient to it."""
        grad = own.param.grad
        if self._means is not None:
            own.param.grad = None if grad is None else grad.clone()  # not in the memory that is reduced
        elif grad is not None and (grad is own.open or grad is own.spent) and not _is_accumulated(own.param):
            return  # a backward pass that does not add to `param.grad`
        elif grad is own.open:
            own.param.grad = own.pending
        elif grad is own.spent:
            own.param.grad, own.stale = None, grad is not None
        elif grad is None and (own.submitted or own.pending is not None):
            self._set_to_none(own)

    def _set_to_none(self, own: _StreamedParameter) -> None:
        """Discard the gradient of `own`, because the script has set `param.grad` to None (`model.zero_grad()`)."""
        own.pending, own.passes, own.stale = None, 0, False
        if not own.submitted:
            return
        if all(other.param.grad is not other.open or not other.submitted for other in self._all):
            self._drop()
            return
        self._read_all()
        own.param.grad = None

    def _on_gradient(self, own: _StreamedParameter, param: Any) -> None:
        """Count the gradient that autograd added to `param.grad`, and pass it to the host if it was the last gradient
        of the step."""
        own.pending = param.grad.to_dense() if param.grad.is_sparse else param.grad
        own.passes += 1
        if self._means is not None:
            return
        param.grad = own.open
        if own.submitted:
            if not self._options.holds:
                own.pending, own.passes = None, own.passes - 1
            self._require_hold(f"a gradient of {own.name!r} was computed in more backward passes than in earlier steps")
        elif self._passes is not None and own.passes >= self._passes and not own.stale:
            self._submit_gradient(own)
        elif self._host.has_gradient_memory and param.device.type == "cpu":
            own.pending = self._moved_to_host(own, own.pending)

    def _moved_to_host(self, own: _StreamedParameter, grad: torch.Tensor) -> torch.Tensor:
        """Copy a gradient to which further passes may add into the memory from which it is reduced; return that memory.

        Otherwise the gradients of all parameters would be in memory twice at the end of the last pass.
        """
        room = tensor_like_param(to_tensor(self._host.gradient(own.name)), own.param)
        if room.data_ptr() != grad.data_ptr():
            room.copy_(grad.detach())
        return room

    def _check_gradients(self) -> None:
        """Detect gradients that the script itself stored in `param.grad` or removed, and use these changes."""
        replaced = {}
        for own in self._all:
            grad = own.param.grad
            if grad is own.open and grad is not None:
                continue
            there = None if grad is None or grad is own.spent else grad
            if own.submitted:
                replaced[own] = there
            else:
                own.pending = there
        if replaced:
            self._require_hold(f"the gradient of {next(iter(replaced)).name!r} was replaced before step()")
            self._read_all()
            for own, grad in replaced.items():
                own.param.grad = grad

    def _submit_gradient(self, own: _StreamedParameter) -> None:
        """Pass the gradient of `own` to the host optimizer, or report that there is no gradient."""
        if not self._any_submitted:
            self._options.begin()
            self._any_submitted = True
        grad, own.pending, own.submitted = own.pending, None, True
        if self._node_sum is not None and self._node_sum.carries(own.name):
            there = None if grad is None else real_tensor(grad)
            self._host.submit_with(own.name, partial(self._node_sum.put, own.name, there), grad is not None)
        elif grad is None:
            self._host.submit(own.name, None)
        else:
            self._submit_copy(own, grad)
        if not self._options.holds and grad is not None:
            torch.autograd.graph.increment_version(own.param)  # code that still needs the old value gets torch's error

    def _submit_copy(self, own: _StreamedParameter, grad: torch.Tensor) -> None:
        arrays = to_arrays([real_tensor(grad)])
        if self._thread is None:
            self._host.submit(own.name, arrays()[0])
        else:
            self._under_way.append(self._thread.submit(lambda: self._host.submit(own.name, arrays()[0])))

    def _submit_rest(self) -> None:
        for own in self._all:
            if not own.submitted:
                self._submit_gradient(own)

    def _wait_submitted(self) -> None:
        under_way, self._under_way = self._under_way, []
        for copy in under_way:
            with REDUCTION:  # the previous update may have to end first
                copy.result()

    def _read(self, own: _StreamedParameter) -> torch.Tensor:
        """Return the mean gradient of `own` over all ranks, and store it in `param.grad`."""
        self._require_hold(f"the gradient of {own.name!r} was read before step()")
        self._read_all()
        while any(other.pending is not None for other in self._all):
            self._submit_again()
            self._read_all()
        if own.param.grad is None:
            raise ConfigurationError(
                f"no rank has a gradient of {own.name!r}; read gradients after backward() and before zero_grad()"
            )
        grad: torch.Tensor = own.param.grad
        return grad

    def _read_all(self) -> None:
        """Replace the stand-ins in `param.grad` of all parameters by the mean gradients. Collective."""
        if self._means is not None:
            return
        self._host.require_last_micro_step("gradients were read or changed")
        late = {own: own.pending for own in self._all if own.submitted and own.pending is not None}
        for own in late:
            own.pending = None
        self._submit_rest()
        self._wait_submitted()
        self._means = self._host.gather_gradients()
        for own in self._all:
            mean = self._means[own.name]
            own.param.grad = None if mean is None else tensor_like_param(to_tensor(mean), own.param)
            if own in late:
                own.pending = late[own] if mean is None else late[own] + own.param.grad

    def _submit_again(self) -> None:
        """Submit gradients again that the script has read or changed, plus gradients of later passes. Collective."""
        values = {own: own.param.grad if own.pending is None else own.pending for own in self._all}
        self._host.drop()
        self._means, self._any_submitted = None, False
        for own, value in values.items():
            own.submitted, own.pending = False, value
            own.param.grad = own.open
        self._submit_rest()
        self._wait_submitted()

    def _drop(self) -> None:
        """Make the host optimizer discard its gradients. Collective."""
        self._require_hold("gradients were forgotten after backward()")
        if self._means is None:
            self._submit_rest()
            self._wait_submitted()
        self._host.drop()
        self._means, self._any_submitted = None, False
        for own in self._all:
            own.submitted = False

    def _zero(self, own: _StreamedParameter) -> None:
        """Handle a call of `param.grad.zero_()`, where `param.grad` is the stand-in of `own`."""
        if own.submitted:
            self._require_hold(f"the gradient of {own.name!r} was set to zero before step()")
            self._read_all()
        own.pending, own.passes, own.stale = None, 0, False
        own.param.grad = torch.zeros_like(own.param)

    def _require_hold(self, what: str) -> None:
        if not self._options.holds:
            raise ConfigurationError(
                f"{what}, but with update_during_backward=True HostOptimizer has begun to change weights; remove "
                "update_during_backward"
            )


def _is_accumulated(param: torch.Tensor) -> bool:
    """Return whether the running backward pass adds to `param.grad`. A call of `torch.autograd.grad` does not."""
    try:
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(param).node)
    except RuntimeError:  # raised within torch.autograd.grad
        return False


def _refuse_spent_backward(own: _StreamedParameter) -> torch.Tensor:
    raise ConfigurationError(
        f"the gradient of {own.name!r} was read after step(), which discards gradients; read "
        "gradients between backward() and step()"
    )


def _gradient_array(grad: torch.Tensor | None) -> Array | None:
    if grad is None:
        return None
    return to_arrays([real_tensor(grad.to_dense() if grad.is_sparse else grad)])()[0]
