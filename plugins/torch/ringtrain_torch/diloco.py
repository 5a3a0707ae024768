"""DiLoCo for torch: each rank takes optimizer steps alone, and ranks average the changes of many steps at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from ringtrain.adapter import Array, joins_survivors
from ringtrain.diloco import DiLoCo as ArrayDiLoCo
from ringtrain.diloco import OnHostDiLoCo
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_torch.bridge import real_tensor, to_arrays, to_tensor
from ringtrain_torch.host_arguments import check_devices, named_group_parameters
from ringtrain_torch.host_state import OWN, TorchHostState
from ringtrain_torch.optimizer import DistributedOptimizer
from ringtrain_torch.parameters import in_place
from ringtrain_torch.state import broadcast_parameters, map_tensor_leaves


class _DiLoCoTensors:
    """Weights of a DiLoCo that are torch parameters, on the CPU or a device."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def read(self, names: Sequence[str]) -> Sequence[Array]:
        return to_arrays([real_tensor(self._params[name].detach()) for name in names])()

    def write(self, name: str, values: Array) -> None:
        with torch.no_grad():
            real_tensor(self._params[name].detach()).copy_(to_tensor(values))


class _TorchInnerState:
    """State of the inner optimizer, which is copied to host memory and loaded back into the existing objects."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self._inner = inner

    def state_dict(self) -> Any:
        return map_tensor_leaves(self._inner.state_dict(), _torch_leaf_on_host)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with in_place(self._inner):
            self._inner.load_state_dict(state)


class DiLoCo(OnHostDiLoCo, torch.optim.Optimizer):
    """Train on each rank alone with a torch optimizer, and average the changes of many steps over the ranks.

        inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
        optimizer = DiLoCo(model, inner=inner, outer=Nesterov(lr=0.7, momentum=0.9), sync_every=100)
        for batch in batches:
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.finish()                  # all ranks have the same weights

    `model`: the module with the parameters of `inner`, on the CPU or a device. The module also defines the parameters'
    names. Rank 0's parameters and buffers are sent to all ranks. `inner`: this rank's torch optimizer. Both share
    parameter groups, so schedulers of either work. Each rank has its own inner state. `options`: options of
    `ringtrain.diloco.DiLoCo` (outer, sync_every, fragments, overlap_steps, mix, compression, bucket_bytes, elastic,
    redundancy, sites). The attribute `outer` is a `ringtrain.diloco.DiLoCo`, with the outer weights and the state of
    synchronizations.

    In a site of several ranks, `inner` uses the mean of the site's gradients, computed during the backward pass as by
    `DistributedOptimizer`. To clip that mean, call `synchronize()`, clip, then call `step()` inside
    `skip_synchronize()`. Both do nothing if a rank trains alone.

    With `elastic=True`, pass this object to an `elastic.TorchState`, and call `state.commit()` if `due` is True: that
    synchronizes. A commit copies the state of `inner` to host memory, and a rank that returns to the commit loads it.
    A joining rank starts with a new inner state.

    A parameter without `requires_grad` is sent once, at the start. If it has a gradient later, `step()` raises. Each
    rank updates its own buffers, such as the averages of BatchNorm, until `finish()` sends rank 0's to all ranks.
    Weights are written in place.

    `step()` counts steps. If a GradScaler may skip it, call `count_step()` instead: `optimizer.synchronize()`,
    `scaler.step(inner)`, `scaler.update()`, `optimizer.count_step()`.

    Collective: every rank creates it with the same model and arguments and takes the same number of steps; otherwise
    MismatchError is raised. Maturity: Experimental.
    """

    _host: Any

    def __init__(self, model: torch.nn.Module, *, inner: torch.optim.Optimizer, **options: Any) -> None:
        if not isinstance(model, torch.nn.Module):
            raise ConfigurationError(f"DiLoCo: model is {kind_of(model)}; expected a torch.nn.Module")
        if not isinstance(inner, torch.optim.Optimizer) or hasattr(inner, "synchronize"):
            raise ConfigurationError(
                f"DiLoCo: inner is {kind_of(inner)}; expected an optimizer of torch that is not wrapped"
            )
        self._inner: Any = inner
        self.model = model
        params = named_group_parameters(inner.param_groups, model)
        trained = {name: param for name, param in params.items() if param.requires_grad}
        self._frozen = {name: param for name, param in params.items() if name not in trained}
        if not trained:
            raise ConfigurationError("DiLoCo: no parameter of inner requires a gradient; nothing to train")
        check_devices(trained)
        local = _DiLoCoTensors(trained)
        initial = {name: np.array(local.read([name])[0]) for name in trained}
        self._is_made = False
        super().__init__(inner.param_groups, inner.defaults)
        self._is_made = True
        self.param_groups, self.state = inner.param_groups, inner.state
        self.trained = frozenset(trained)  # names that an elastic state stores by this optimizer
        self.outer = self._host = ArrayDiLoCo(local, initial=initial, inner=_TorchInnerState(inner), **options)
        if self.outer.site is not None:
            self._inner = DistributedOptimizer(inner, params.items(), process_set=self.outer.site)
        others = {name: value for name, value in model.state_dict().items() if name not in trained}
        if not joins_survivors():
            broadcast_parameters({name: v for name, v in others.items() if isinstance(v, torch.Tensor)}, 0)

    def step(self, closure: Callable[[], Any] | None = None, samples: float = 1) -> Any:
        """Take a step of `inner` on `samples` samples, and synchronize a fragment if due.

        Return the result of `inner.step(closure)`.
        Raises PeerLost if the ring failed, MismatchError if ranks took different numbers of steps.
        """
        thawed = [name for name, param in self._frozen.items() if param.grad is not None]
        if thawed:
            raise ConfigurationError(
                f'DiLoCo: parameter "{thawed[0]}" required no gradient when DiLoCo was created, but '
                "requires one now, so ranks would never average it; create DiLoCo after requires_grad_()"
            )
        result = self._inner.step(closure)
        self.count_step(samples)
        return result

    def count_step(self, samples: float = 1) -> None:
        """Count a step of `inner` that the script took itself or skipped on this rank; synchronize if due.

        Raises ConfigurationError if the site's gradients were not averaged before that step.
        """
        if (sync := self._sync) is not None and sync.begun and not sync.is_alone:
            raise ConfigurationError(
                "DiLoCo: count_step() was called after a step whose gradients were not averaged over the site "
                f"{self.outer.site}; call synchronize() before the step"
            )
        self.outer.step(samples)

    def synchronize(self) -> None:
        """Wait until gradients are averaged over the ranks of this site. After that they may be modified."""
        if self._sync is not None:
            self._inner.synchronize()

    def skip_synchronize(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which `step()` does not average gradients, because `synchronize()` already has."""
        skipped: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        return skipped if self._sync is None else self._inner.skip_synchronize()

    def finish(self) -> None:
        """Synchronize all changes. Afterwards, all ranks have the same parameters and buffers.

        Collective. Call it at the end of training and before an evaluation.
        """
        self.outer.finish()
        broadcast_parameters(dict(self.model.named_buffers()), 0)

    @property
    def _sync(self) -> Any:
        """Object that averages gradients within this site; None if the rank trains alone."""
        return getattr(self._inner, "sync", None)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as `torch.optim.Optimizer.zero_grad` does."""
        self._inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise ConfigurationError, because parameters are divided into fragments only once."""
        if self._is_made:
            raise ConfigurationError(
                "DiLoCo does not support add_param_group(); add the group to inner before you create DiLoCo"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, from which training continues bit for bit.

        It has the state of `inner` in torch's format, and under "ringtrain" this rank's weights and the outer
        optimizer. Every rank saves its own. Save the model's buffers separately. Collective.
        """
        own = map_tensor_leaves(
            self.outer.state_dict(), lambda leaf: to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
        )
        return {**self._inner.state_dict(), OWN: own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of this rank's `state_dict()`, weights included. Not collective.

        Raises ConfigurationError for the state of another optimizer, rank, size or model.
        """
        if OWN not in state_dict:
            raise ConfigurationError(
                f"DiLoCo: load_state_dict got {sorted(map(str, state_dict))} without {OWN!r}; expected "
                "the result of state_dict(); load a state of torch's own optimizer into inner"
            )
        self.outer.load_state_dict(TorchHostState.arrays_of(state_dict[OWN]))
        with in_place(self._inner):
            self._inner.load_state_dict({name: value for name, value in state_dict.items() if name != OWN})

    def close(self) -> None:
        """Release memory and file descriptors. The model keeps this rank's weights."""
        self.outer.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError("a DiLoCo can't be pickled or copied: its state is spread over ranks; save state_dict()")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__getstate__()


def _torch_leaf_on_host(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf
