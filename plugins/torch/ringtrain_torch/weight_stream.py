"""Transfer of weights from the host optimizer to the model."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from ringtrain.adapter import Array
from ringtrain.errors import ConfigurationError
from ringtrain.optim import HostOptimizer
from ringtrain_torch.bridge import real_tensor, tensor_like_param, to_tensor
from ringtrain_torch.hook import TorchGradientHook
from ringtrain_torch.node_sum import TorchNodeSum


class TorchWeightStream:
    """Transfer of new weights from the host optimizer's flat arrays to the parameters of each layer, right before the
    layer is called. With a `TorchNodeSum`, which transfers the weights of a step itself, the parameters use its memory.

    Parameters on the CPU are views of the flat arrays. If a script assigns other memory to a parameter
    (`param.data = …`, `share_memory()`), the parameter retains that memory, as in torch: values are copied from it
    before an update, and to it afterwards.
    """

    def __init__(self, host: HostOptimizer, params: Mapping[str, Any], node_sum: TorchNodeSum | None) -> None:
        self._host = host
        self._node_sum = node_sum
        self._by_node: set[str] = set()  # their values of the last step are on the device, and may not be here
        self._params = params
        self._kinds = {name: param.device.type for name, param in params.items()}
        self._names = {id(param): name for name, param in params.items()}
        self._expected: set[str] = set(params)
        self._hooks: list[Any] = []
        self._views: dict[str, torch.Tensor] = {}
        self._addresses: dict[str, int] = {}  # in the arena, for parameters on the CPU
        self._places: dict[str, int] = {}  # their addresses when they were last seen
        self._versions: dict[str, int] = {}
        self._pinned: list[int] = []
        self.follow()

    def follow(self) -> None:
        """Use the current weights of the host optimizer: parameters on the CPU become views of them."""
        self._unpin()
        self.expect()
        moved = {name for name in self._addresses if self._is_moved(name)}
        self._views = {name: to_tensor(self._host.weights[name]) for name in self._params}
        for name, param in self._params.items():
            if param.device.type == "cpu":
                self._addresses[name] = self._host.weights[name].ctypes.data
                # assigned from a new tensor, so that moving the memory of `param` does not affect the view
                if name not in moved:
                    param.data = tensor_like_param(to_tensor(self._host.weights[name]), param)
            elif self._node_sum is not None and self._node_sum.carries(name):
                param.data = tensor_like_param(self._node_sum.weight(name).view(self._views[name].shape), param)
        if any(param.device.type == "cuda" for param in self._params.values()):
            self._pinned = [address for arena in _weight_arenas(self._host) if (address := _pinned_arena(arena))]

    def take(self) -> bool:
        """Copy weights that a script has set since the last step to the host; return whether there were any.

        Raises ConfigurationError if a parameter's shape, type or device has changed.
        """
        changed = False
        for name, param in self._params.items():
            is_set = param._version != self._versions[name]
            if param.device.type != self._kinds[name] or self._is_moved(name):
                self._check_kind(name, param)
                is_set |= param.data_ptr() != self._places[name]
                self._views[name].copy_(real_tensor(param.detach()))
            elif is_set and param.device.type != "cpu":
                self._views[name].copy_(real_tensor(param.detach()))
            changed |= is_set
        return changed

    def note(self) -> None:
        """Record that the parameters have the weights of the host optimizer."""
        torch.autograd.graph.increment_version(list(self._params.values()))
        self.seen()

    def seen(self) -> None:
        """Record the present versions and addresses of the parameters, to detect later changes by a script."""
        self._versions = {name: param._version for name, param in self._params.items()}
        self._places = {name: param.data_ptr() for name, param in self._params.items()}

    def _is_moved(self, name: str) -> bool:
        """Return whether a script has assigned other CPU memory to the parameter."""
        param = self._params[name]
        return name in self._addresses and param.numel() > 0 and param.data_ptr() != self._addresses[name]

    def _check_kind(self, name: str, param: Any) -> None:
        view = self._views[name]
        now = (tuple(real_tensor(param.detach()).shape), real_tensor(param.detach()).dtype, param.device.type)
        if now != (tuple(view.shape), view.dtype, self._kinds[name]):
            raise ConfigurationError(
                f"parameter {name!r} is {tuple(param.shape)} {param.dtype} on {param.device}, but was "
                f"{tuple(view.shape)} {view.dtype} on {self._kinds[name]} when HostOptimizer was created; change "
                "and move the model before you create the HostOptimizer"
            )

    def watch(self, model: Any) -> None:
        """Make each module of `model` wait for new values of its own parameters before it runs."""
        for module in model.modules():
            own = [self._names[id(param)] for param in module.parameters(recurse=False) if id(param) in self._names]
            if own:
                hook = TorchGradientHook(partial(self._called, tuple(own)))
                # Before hooks that compute a weight from others, such as weight_norm's.
                self._hooks.append(module.register_forward_pre_hook(hook, prepend=True))

    def expect(self) -> None:
        """Expect new weights of all parameters from the host, not from a `TorchNodeSum`."""
        self._expected.update(self._params)
        self._by_node.clear()

    def expect_step(self) -> None:
        """Expect the new weights of a step."""
        self.expect()
        if (node_sum := self._node_sum) is not None:
            on_device = (name for name, param in self._params.items() if param.device.type != "cpu")
            self._by_node.update(name for name in on_device if node_sum.carries(name))

    def to_host(self) -> None:
        """Copy to the host the weights whose newest values are only on the device."""
        self.wait_updated()
        for name in self._by_node:
            self._views[name].copy_(real_tensor(self._params[name].detach()))

    def wait_updated(self) -> None:
        """Wait until every parameter has the values in the host optimizer's flat arrays."""
        self._wait_for(tuple(self._params))
        self._host.wait_for()

    def close(self) -> None:
        """Release the parameters. Their values are then in memory that only they use."""
        for hook in self._hooks:
            hook.remove()
        self._unpin()
        for name, param in self._params.items():
            if param.device.type == "cpu" and not self._is_moved(name):
                param.data = param.data.clone()
        self._views.clear()

    def _called(self, names: tuple[str, ...], *_: Any) -> None:
        self._wait_for(names)

    def _unpin(self) -> None:
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()

    def _wait_for(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self._expected:
                continue
            self._host.wait_for(name)
            self._expected.discard(name)
            param = self._params[name]
            if self._is_moved(name) or (param.device.type != "cpu" and name not in self._by_node):
                with torch.no_grad():
                    param.copy_(tensor_like_param(self._views[name], param), non_blocking=True)


def _weight_arenas(host: HostOptimizer) -> list[Array]:
    """Return the arrays of which all of the optimizer's weights are views."""
    found = {}
    for array in host.weights.values():
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        found[id(base)] = base
    return list(found.values())


def _pinned_arena(arena: Array) -> int:
    """Page-lock the host array `arena` for asynchronous copies to a device; return its address, or 0 if the driver
    refuses."""
    address = arena.ctypes.data
    refused = int(torch.cuda.cudart().cudaHostRegister(address, arena.nbytes, 0))
    return 0 if refused else address
