"""Gradients on their way to the host, and weights on their way back."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch

from ringtrain.collectives.tensors import Array
from ringtrain.errors import ConfigurationError
from ringtrain.optim import HostOptimizer
from ringtrain.step_time import REDUCTION, beside_training
from ringtrain.torch.bridge import to_arrays, to_tensor
from ringtrain.torch.node_sum import NodeSum


class HandedOver(torch.Tensor):
    """Stands in `param.grad` from the hand-over of a gradient to the end of its step, and needs no memory.

    Whatever is done with it raises ConfigurationError: `clip_grad_norm_`, for one, passes over a gradient that is
    None without a word.
    """

    parameter: str

    @classmethod
    def of(cls, name: str, param: torch.Tensor) -> "HandedOver":
        one = torch.zeros((), dtype=param.dtype, device=param.device)
        made: HandedOver = torch.Tensor._make_subclass(cls, one.expand(param.shape))
        made.__dict__["parameter"] = name
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = next((arg for arg in _flat(args) if isinstance(arg, cls)), None)
        name = "a parameter" if own is None else repr(own.__dict__["parameter"])
        raise ConfigurationError(
            f"the gradient of {name} was handed to the HostOptimizer during backward() and is no longer in "
            "param.grad; to clip, pass clip_norm=... to HostOptimizer, whose gradient_norm then tells the norm; "
            "to change single gradients, do it in a hook on the parameter (param.register_hook)"
        )


class GradientStream:
    """Hands each gradient to the host optimizer when the backward pass has completed it. Until the step ends a
    `HandedOver` is in its place.

    From the CPU it is copied at once. From another device it is copied into pinned memory behind the work that
    makes it, and a thread hands it over when the copy is there, so that the backward pass never waits. With a
    `NodeSum` it stays on the device.
    """

    def __init__(
        self, host: HostOptimizer, params: Mapping[str, Any], model: torch.nn.Module, node_sum: NodeSum | None
    ) -> None:
        self._host = host
        self._node_sum = node_sum
        self._params = params
        self._model = model
        self._unused: set[str] = set()  # had no gradient in the last step
        self._arrived: set[str] = set()
        self._under_way: list[Future[None]] = []
        on_cpu = all(param.device.type == "cpu" for param in params.values())
        self._thread = None if on_cpu else ThreadPoolExecutor(1, "ringtrain-gradients", beside_training)
        self._stand_ins = {name: HandedOver.of(name, param) for name, param in params.items()}
        self._hooks = [param.register_hook(_make_way(param)) for param in params.values()]
        self._hooks += [
            param.register_post_accumulate_grad_hook(lambda param, name=name: self._take(name, param))
            for name, param in params.items()
        ]

    def finish(self) -> None:
        """Return when every gradient of this step is with the host; those that never came are zeros.

        Raises ConfigurationError where none came, and for a parameter that the model no longer has.
        """
        missing = {name: param for name, param in self._params.items() if name not in self._arrived}
        self._check_missing(missing)
        for name, param in missing.items():
            param.grad = torch.zeros_like(param) if param.grad is None else param.grad
            self._take(name, param)
        self._clear()
        under_way, self._under_way = self._under_way, []
        for copy in under_way:
            with REDUCTION:  # the update before may have to end first
                copy.result()

    def forget(self) -> None:
        """Give up the gradients of a step that is not ended."""
        self._clear()
        under_way, self._under_way = self._under_way, []
        for copy in under_way:
            copy.exception()
        if self._node_sum is not None:
            self._node_sum.forget()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._clear()
        if self._thread is not None:
            self._thread.shutdown()

    def _check_missing(self, missing: Mapping[str, Any]) -> None:
        if missing.keys() - self._unused:  # not in each step of a model with unused layers
            held = {id(param) for param in self._model.parameters()}
            gone = [name for name, param in missing.items() if id(param) not in held]
            if gone:
                raise ConfigurationError(
                    f"parameter {gone[0]!r} was replaced in the model after HostOptimizer was made, which would "
                    "never train the new one; make the HostOptimizer last, or change values in place (with "
                    "torch.no_grad(): param.copy_(...))"
                )
        if len(missing) == len(self._params) and all(param.grad is None for param in missing.values()):
            raise ConfigurationError(
                "step() was called without a gradient; call loss.backward() before it, with a loss that depends "
                "on the model's parameters"
            )
        self._unused = set(missing)

    def _clear(self) -> None:
        self._arrived.clear()
        for param in self._params.values():
            if isinstance(param.grad, HandedOver):
                param.grad = None

    def _take(self, name: str, param: Any) -> None:
        grad = param.grad.to_dense() if param.grad.is_sparse else param.grad
        param.grad = self._stand_ins[name]
        self._arrived.add(name)
        if self._node_sum is not None and self._node_sum.carries(name):
            self._host.submit_with(name, partial(self._node_sum.put, name, grad))
            return
        arrays = to_arrays([grad])
        if self._thread is None:
            self._host.submit(name, arrays()[0])
            return
        self._under_way.append(self._thread.submit(lambda: self._host.submit(name, arrays()[0])))


class WeightStream:
    """Brings new weights from the host arena to the parameters, each when its layer is about to be called. A
    `NodeSum` brings those of a step itself: the parameters are its memory."""

    def __init__(self, host: HostOptimizer, params: Mapping[str, Any], node_sum: NodeSum | None) -> None:
        self._host = host
        self._node_sum = node_sum
        self._by_node: set[str] = set()  # their values of the last step are on the device, and may not be here
        self._params = params
        self._names = {id(param): name for name, param in params.items()}
        self._expected: set[str] = set(params)
        self._hooks: list[Any] = []
        self._views: dict[str, torch.Tensor] = {}
        self._pinned: list[int] = []
        self.follow()

    def follow(self) -> None:
        """Take the weights from where the host has them now: parameters on the CPU become views of that."""
        self._unpin()
        self.expect()
        self._views = {name: to_tensor(self._host.weights[name]) for name in self._params}
        for name, param in self._params.items():
            if param.device.type == "cpu":
                param.data = self._views[name]
            elif self._node_sum is not None and self._node_sum.carries(name):
                param.data = self._node_sum.weight(name).view(param.shape)
        if any(param.device.type == "cuda" for param in self._params.values()):
            self._pinned = [address for arena in _arenas(self._host) if (address := _pinned(arena))]

    def watch(self, model: Any) -> None:
        """Let each module of `model` wait for its own parameters before it runs."""
        for module in model.modules():
            own = [
                self._names[id(param)] for param in module.parameters(recurse=False) if id(param) in self._names
            ]
            if own:
                self._hooks.append(module.register_forward_pre_hook(lambda *_, own=tuple(own): self._back(own)))

    def expect(self) -> None:
        """New weights are on their way, by way of the host."""
        self._expected.update(self._params)
        self._by_node.clear()

    def expect_step(self) -> None:
        """New weights are on their way: those of a step."""
        self.expect()
        if (node_sum := self._node_sum) is not None:
            on_device = (name for name, param in self._params.items() if param.device.type != "cpu")
            self._by_node.update(name for name in on_device if node_sum.carries(name))

    def to_host(self) -> None:
        """Give the host the values that only the device has."""
        self.all_back()
        for name in self._by_node:
            self._views[name].copy_(self._params[name].detach())

    def all_back(self) -> None:
        """Return when every parameter has the host's values."""
        self._back(tuple(self._params))
        self._host.wait_for()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._unpin()

    def _unpin(self) -> None:
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()

    def _back(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self._expected:
                continue
            self._host.wait_for(name)
            self._expected.discard(name)
            param = self._params[name]
            if param.device.type != "cpu" and name not in self._by_node:
                with torch.no_grad():
                    param.copy_(self._views[name], non_blocking=True)


def _make_way(param: Any) -> Callable[[torch.Tensor], None]:
    """Return a hook that runs before autograd adds to `param.grad`."""

    def clear(_: torch.Tensor) -> None:
        if isinstance(param.grad, HandedOver):
            param.grad = None

    return clear


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _arenas(host: HostOptimizer) -> list[Array]:
    """The arrays that all of the optimizer's weights are views of."""
    found = {}
    for array in host.weights.values():
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        found[id(base)] = base
    return list(found.values())


def _pinned(arena: Array) -> int:
    """Page-lock `arena`, so that copies to the device do not wait; return its address. 0 where the driver refuses:
    copies wait then.
    """
    address = arena.ctypes.data
    refused = int(torch.cuda.cudart().cudaHostRegister(address, arena.nbytes, 0))
    return 0 if refused else address
