"""Torch optimizer whose state is in host memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch

from ringtrain import ProcessSet, global_process_set, timeline
from ringtrain.adapter import CollectiveGroup, HostOptimizerGroups
from ringtrain.adapter.devices import ProcessGroup
from ringtrain.errors import ConfigurationError
from ringtrain.optim import HostOptimizer as ArrayOptimizer
from ringtrain.optim import Rule
from ringtrain_torch.bridge import real_tensor, return_freed_memory, tensor_like_param, to_arrays, to_tensor
from ringtrain_torch.gradient_stream import TorchGradientStream, TorchStreamOptions
from ringtrain_torch.hook import TorchGradientHook, record_forward
from ringtrain_torch.host_arguments import check_parameters, named_group_parameters, optimizer_parts
from ringtrain_torch.host_elastic import ElasticTorchHostOptimizer
from ringtrain_torch.host_groups import SharedTorchGroups
from ringtrain_torch.host_state import (
    ParameterState,
    SpreadTorchState,
    TorchHostState,
    simple_options,
)
from ringtrain_torch.node_sum import TorchNodeSum, open_node_sum
from ringtrain_torch.parameters import in_place
from ringtrain_torch.weight_stream import TorchWeightStream


class HostOptimizer(ElasticTorchHostOptimizer, torch.optim.Optimizer):
    """Reduce gradients during the backward pass, and update the weights in host memory in `step()`.

        optimizer = HostOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3), model)
        loss(model(x), y).backward()       # each gradient leaves for the ring as soon as it is complete
        optimizer.step()                   # weights change here, and nowhere else
        optimizer.zero_grad()

    `optimizer`: a torch optimizer, whose parameter groups and hooks this one shares: changes by schedulers and scripts
    take effect in the next step, and parameters may be added to groups and removed. Its own `step()`, `state_dict()`
    and `load_state_dict()` are refused until `close()`. `model`: the module with the parameters; it names them, and
    rank 0's parameters and buffers are sent to all ranks. Without it, parameters are named by their position.
    `HostOptimizer(model, rule)` uses a rule of `ringtrain.optim` (SGD, Adam, AdamW, LAMB) instead of torch's optimizer,
    for all parameters that require a gradient, in one group.

    Gradients are averaged over all ranks. Each rank stores the optimizer's state of 1/size of the elements, in host
    memory; the device stores no state, and each gradient only until it is complete. On the CPU, parameters become views
    of the host's memory: nothing is copied. Optimizers whose update of an element needs others (Adafactor, Muon, or a
    custom class) store the whole state on every rank, as with `sharded=False`. LBFGS, SparseAdam, and custom classes
    whose update of a parameter depends on others, such as the norm of all gradients, are refused with the reason; this
    is tested with small tensors. `state` is empty: see `state_dict`. Weights of a half type have float32 copies, which
    are updated; a weight that a script sets replaces its copy.

    Between `backward()` and `step()` gradients and weights behave as in torch: reading a gradient returns the mean of
    all ranks, and changes of gradients, weights or groups take effect (clipping, GradScaler, manual decay). Every rank
    must do the same. If only one rank changes weights, all ranks raise StateCorrupt within 20 updates (later for single
    elements).

    `update_during_backward`: if True, each weight changes as soon as its gradient is reduced, which leaves less work
    for `step()`. Then nothing may read or write weights, gradients or groups between `backward()` and `step()`: reading
    a gradient raises ConfigurationError, and reading a weight cannot be detected.

    `overlap`: if True, `step()` returns while weights are still being transferred: each layer waits for its own when
    it is called. Until `synchronize()` returns, nothing else may read or write parameters: no EMA, no copy of the
    model. `weight_norm` and other hooks that compute a weight before the forward pass get new values. `state_dict()`
    and `close()` wait by themselves, and so does leaving the world.

    `options`: see `ringtrain.optim.HostOptimizer` (bucket_bytes, sharded, accumulate, clip_norm, schedule, local,
    check_finite, compression, elastic, redundancy). `process_set`: the ranks that train this model together.

    If CUDA tensors use NCCL (or RINGTRAIN_TRANSPORT is torch), and each node has N > 1 ranks, the devices of a node sum
    gradients in rank order, and each passes its part of the sum to the host; new weights are gathered on the devices.
    This is not possible with elastic, check_finite, compression or sharded=False. It is experimental: it has never run
    on a GPU.

    Collective: every rank creates it with the same model and the same arguments, otherwise it raises MismatchError.
    """

    _params: dict[str, Any]
    _node_sum: TorchNodeSum | None
    _used: list[Rule]

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | torch.nn.Module,
        model: torch.nn.Module | Rule | None = None,
        *,
        overlap: bool = False,
        update_during_backward: bool = False,
        process_set: ProcessSet = global_process_set,
        **options: Any,
    ) -> None:
        self._inner, self._model, self._rules, groups = optimizer_parts(optimizer, model, options)
        self._process_set = process_set
        self._options = options
        self._overlap = overlap
        self._during_backward = update_during_backward
        if overlap and self._model is None:
            raise ConfigurationError(
                "HostOptimizer: overlap=True needs the model; pass HostOptimizer(optimizer, model)"
            )
        defaults = {} if self._inner is None else self._inner.defaults
        self._is_made = False
        self._spread = SpreadTorchState()
        super().__init__(groups, defaults)
        self._shared = SharedTorchGroups(self._inner, self)
        self._set_aside: dict[Any, ParameterState] = {}
        self._make()
        return_freed_memory()  # of the parameters, which are now views of the host optimizer's arrays
        self._hooks: list[Any] = []
        if self._model is not None:
            if overlap:
                hook = TorchGradientHook(lambda *_: self.synchronize())
                self._hooks.append(self._model.register_state_dict_pre_hook(hook))
            if timeline.active is not None:
                self._hooks += record_forward(self._model)

    @property
    def state(self) -> Any:
        """Return an empty mapping, because the state is in host memory; `state_dict` gathers it."""
        return self._spread

    @state.setter
    def state(self, value: Any) -> None:
        if self._is_made and value is not self._spread:
            self._spread.clear()

    @torch._disable_dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """End the step. The weights are updated when this returns (with `overlap`, when a layer is called).

        Returns the result of `closure`, if it was passed. Otherwise returns True if the weights were updated, or False
        if further micro-steps follow (`accumulate`). A parameter without a gradient on any rank does not change. Raises
        PeerLost or MismatchError if the ring failed, ConfigurationError if the model's parameters were replaced.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self._check_model()
        if self._shared.changed():
            self._train_grouped()
        self._gradients.finish()
        if self._host.waits_for_step and self._weights.take():
            self._host.take_weights()
        self._set_rules()
        updated = self._host.step(wait=not self._overlap)
        if updated:
            self._weights.expect_step()
            if not self._overlap:
                self._weights.wait_updated()
            self._weights.note()
            self._shared.stepped()
        self._gradients.ended()
        if self._during_backward:
            self._weights.seen()
        return result if closure is not None else updated

    @torch._disable_dynamo
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the gradients since the last step. Collective if some gradients are being reduced."""
        if self._shared.changed():
            self._train_grouped()
        self._gradients.zero_grad(set_to_none)

    def flush(self) -> bool:
        """Update the weights from the micro-steps since the last update, with `accumulate`. Return False if there were
        none. All ranks must call it after the same number of micro-steps."""
        updated = self._host.flush(self._weights.take())
        if updated:
            self._weights.expect_step()
            self._weights.wait_updated()
            self._weights.note()
        return updated

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, trained from now on. Collective: all ranks add the same group, between two steps."""
        if not self._is_made:
            super().add_param_group(param_group)
            return
        self._shared.add(param_group)
        self._train_grouped()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Use `passes` micro-steps per update from the next update on, as `ringtrain.optim.HostOptimizer` does."""
        self._host.set_backward_passes_per_step(passes)

    def synchronize(self) -> None:
        """Wait until all parameters of the model have the values of the last step. Needed only with `overlap`."""
        self._weights.wait_updated()

    wait_for = synchronize

    @property
    def accumulating(self) -> bool:
        """Whether there are gradients of an update that was not made yet: `step()` or micro-steps are missing."""
        return self._host.accumulating or self._gradients.begun

    @property
    def rate(self) -> float:
        """Learning rate of the first parameter group in the next update."""
        self._set_rules()
        return self._host.rate

    @property
    def gradient_norm(self) -> float | None:
        """Global gradient norm, before clipping, of the last update; None without `clip_norm`."""
        return self._host.gradient_norm

    @property
    def takes_node_sums(self) -> bool:
        """Whether the devices of a node sum gradients, so that each host receives only a part of the sum."""
        return self._node_sum is not None

    @property
    def model(self) -> torch.nn.Module | None:
        """Module with the parameters; None if it was not passed."""
        return self._model

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the parameters that this optimizer trains."""
        return tuple(self._params)

    def state_dict(self, root: int | None = None, error_feedback: bool = True) -> dict[str, Any]:
        """Return the state in the format of torch's optimizers: "state" by position of the parameter, and
        "param_groups". The host optimizer's own state is under "ringtrain". Weights are not included: save
        `model.state_dict()` as well.

        The state of all ranks is gathered. Collective, between steps, unless `sharded=False`. `root`: only this rank
        gets the state, the others get {}. `error_feedback`: see `ringtrain.optim.HostOptimizer`. This method's result
        can be loaded into torch's own optimizer, and the state of torch's optimizer into this one.
        """
        self._weights.to_host()
        state = self._state.gather(root, error_feedback)
        if state is None:
            return {}
        dict.update(self._spread, state.by_param)
        try:
            packed: dict[str, Any] = super().state_dict()
        finally:
            dict.clear(self._spread)
        return {**packed, "ringtrain": state.own}

    def shard_dict(self, error_feedback: bool = True) -> dict[str, Any]:
        """Copy this rank's part of weights and state, and the options of the groups, for `ShardedCheckpoints`. Not
        collective. Raises ConfigurationError if torch's code updates the weights: for optimizers except SGD, Adam and
        AdamW, and for options such as `amsgrad`."""
        self._state.check_shards()
        shard = self._host.shard_dict(error_feedback)
        return {**shard, "groups": [simple_options(group) for group in self.param_groups]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load state and groups from `state_dict()`, saved with any number of ranks, or of torch's optimizer of the
        same kind; or weights and state from `shard_dict()`. All ranks load the same state. Not collective."""
        self._weights.wait_updated()
        self._weights.take()
        if "arrays" in state_dict:
            self._state.check_shards()
            self._host.load_state_dict(self._state.arrays_of(state_dict))
            self._set_options(state_dict.get("groups", []))
            self._weights.expect()
            self._weights.wait_updated()
        else:
            state = self._state.checked(state_dict)
            with in_place(self):
                super().load_state_dict({**state_dict, "state": {}})
            self._state.load(state)
        self._weights.note()
        self.commit()

    def close(self) -> None:
        """Release the model, which keeps the weights of the last step: discard a step in progress, remove the hooks,
        and free memory."""
        self._release()
        self._shared.release()
        for hook in self._hooks:
            hook.remove()

    def __getstate__(self) -> NoReturn:
        raise TypeError("a HostOptimizer can't be pickled or copied: its state is spread over ranks; save state_dict()")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__getstate__()

    def _make(self) -> None:
        """Create all objects that depend on the current parameters. Collective."""
        self._params = named_group_parameters(self.param_groups, self._model)
        check_parameters(self._params)
        self._missing_before: set[str] = set()
        group_of = {id(param): index for index, group in enumerate(self.param_groups) for param in group["params"]}
        rules = self._rules.of(self.param_groups)
        names: list[list[str]] = [[] for _ in rules]
        for name, param in self._params.items():
            names[group_of[id(param)]].append(name)
        arrays = {name: to_arrays([real_tensor(param.detach())])()[0] for name, param in self._params.items()}
        self._groups = HostOptimizerGroups(self._process_set)
        options = {
            **self._options, "sharded": self._rules.sharded, "update_during_backward": self._during_backward,
        }  # fmt: skip
        group = self._groups.first(options.get("elastic", False))
        if not self._is_made and self._model is not None and isinstance(group, ProcessGroup) and group.size > 1:
            _broadcast_others(self._model, set(self._params), group)
        self._node_sum = self._open_node_sum(group, options)
        others = list(zip(rules, names, strict=True))[1:]
        self._host = ArrayOptimizer(arrays, rules[0], groups=others, group=group, devices=self._node_sum, **options)
        stream = TorchStreamOptions(self._begin_update, self._inner is not None, not self._during_backward)
        self._gradients = TorchGradientStream(self._host, self._params, self._node_sum, stream)
        self._weights = TorchWeightStream(self._host, self._params, self._node_sum)
        self._weights.wait_updated()
        self._weights.note()
        if self._overlap:
            self._weights.watch(self._model)
        self._state = TorchHostState(self._host, self._params, self._rules, self.param_groups)
        self._shared.note()
        self.commit()
        self._is_made = True

    def _release(self) -> None:
        with contextlib.suppress(RuntimeError):  # error of a failed step: its caller has it
            self.synchronize()
        self._gradients.close()
        self._weights.close()
        self._host.close()
        if self._node_sum is not None:
            self._node_sum.close()
        self._groups.close()

    def _begin_update(self) -> None:
        """Prepare an update, right before its first gradient is passed to the host."""
        if self._during_backward:
            if self._weights.take():
                self._host.take_weights()
            self._used = self._rules.of(self.param_groups)
            self._host.set_rules(self._used)

    def _set_rules(self) -> None:
        """Read the current options of the parameter groups. Raises ConfigurationError if they changed while this step
        updates weights."""
        now = self._rules.of(self.param_groups)
        if not self._during_backward or not self._gradients.begun:
            self._host.set_rules(now)
        elif now != self._used:
            raise ConfigurationError(
                f"parameter groups were changed between backward() and step(), from {self._used} to {now}, but "
                "with update_during_backward=True HostOptimizer has begun to change weights; change groups before "
                "backward(), or remove update_during_backward"
            )

    def _train_grouped(self) -> None:
        """Train the parameters that are now in the groups, and restore their state. Collective."""
        self._gradients.restore()
        self._weights.to_host()
        former = self._state.by_parameter()
        self._release()
        self._make()
        here = {param for group in self.param_groups for param in group["params"]}
        known = {**self._set_aside, **former.states}
        self._set_aside = {param: state for param, state in known.items() if param not in here}
        self._state.load_by_parameter(replace(former, states=known))

    def _check_model(self) -> None:
        """Raise ConfigurationError if a trained parameter left the model, unless a torch optimizer was passed."""
        missing = {name for name, param in self._params.items() if param.grad is None}
        if self._model is None or not missing - self._missing_before:
            return
        held = {id(param) for param in self._model.parameters()}
        gone = [name for name in missing if id(self._params[name]) not in held]
        if gone and self._inner is None:
            raise ConfigurationError(
                f"parameter {sorted(gone)[0]!r} was replaced in the model after HostOptimizer was created, so "
                "HostOptimizer would not train the new parameter; create the HostOptimizer last, or change values in "
                "place (with torch.no_grad(): param.copy_(...))"
            )
        self._missing_before = missing

    def _open_node_sum(self, group: CollectiveGroup, options: Mapping[str, Any]) -> TorchNodeSum | None:
        if not isinstance(group, ProcessGroup) or group.size == 1:
            return None
        whole = options.get("sharded", True) and options.get("compression") is None
        moves = options.get("elastic", False) or options.get("check_finite", False)
        return open_node_sum(self._params, group, self._process_set, suits=whole and not moves)


def _broadcast_others(model: torch.nn.Module, trained: Collection[str], group: ProcessGroup) -> None:
    """Send rank 0's buffers and untrained parameters to all ranks. Collective in `group`."""
    for name, value in model.state_dict().items():
        if name in trained or not isinstance(value, torch.Tensor) or not value.numel():
            continue
        array = to_arrays([real_tensor(value).reshape(-1)])()[0].copy()
        group.broadcast(array.view(np.uint8))
        value.copy_(tensor_like_param(to_tensor(array).view(real_tensor(value).shape), value))
