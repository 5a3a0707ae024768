"""A torch model whose optimizer lives in host memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ringtrain import timeline
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain.optim import HostOptimizer as ArrayOptimizer
from ringtrain.optim import Rule
from ringtrain.optim.arguments import check_rule
from ringtrain.optim.cut import first_group
from ringtrain.process_groups.group import Group, ProcessGroup
from ringtrain.process_groups.process_sets import ProcessSet, global_process_set, open_group
from ringtrain.torch.bridge import to_arrays, to_tensor
from ringtrain.torch.node_sum import NodeSum, open_node_sum
from ringtrain.torch.state import map_leaves
from ringtrain.torch.streams import GradientStream, WeightStream

_NO_TORCH_OPTIMIZER = (
    "ringtrain.torch.HostOptimizer is no torch optimizer: it has no param_groups, which torch's schedulers "
    "and GradScaler change. Pass schedule=... to HostOptimizer for a learning rate that changes, and train in "
    "bfloat16, which needs no GradScaler; or take ringtrain.torch.DistributedOptimizer"
)


class HostOptimizer:
    """Stream gradients to the host during the backward pass, update there, and stream new weights back.

        optimizer = HostOptimizer(model, AdamW(lr=1e-3))
        loss(model(x), y).backward()       # each gradient leaves for the ring as soon as it is complete
        optimizer.step()                   # returns while weights are still on their way
        model(x)                           # each layer waits for its own weights only

    `model`: a module, on any device. Its parameters that require a gradient are trained; gradients are averaged
    over all ranks, and rank 0's initial weights are sent to all. The device holds neither gradients (after a
    parameter's own is complete) nor optimizer state. On the CPU parameters become views of the host arena: nothing
    is copied.
    Where CUDA tensors go through NCCL (or RINGTRAIN_TRANSPORT is torch), and each node has N > 1 ranks, the
    devices of a node add up gradients, in rank order, and each takes its part of the sum to the host; new
    weights are gathered on the devices. Not with elastic, check_finite, compression or sharded=False.

    `rule`: of `ringtrain.optim` (SGD, Adam, AdamW, LAMB). `options`: as of
    `ringtrain.optim.HostOptimizer` (bucket_bytes, sharded, accumulate, clip_norm, schedule, local, check_finite,
    elastic).
    `overlap`: False makes `step()` wait for all weights; needed by a model that reads parameters of a layer
    without calling that layer. `process_set`: the ranks that train this model together.

    Collective: every rank makes it of the same model with the same arguments, else MismatchError.
    """

    def __init__(
        self,
        model: Any,
        rule: Rule,
        *,
        overlap: bool = True,
        process_set: ProcessSet = global_process_set,
        **options: Any,
    ) -> None:
        check_rule(rule)
        self._params = _trained(model)
        arrays = {name: to_arrays([param])()[0] for name, param in self._params.items()}
        self._process_set = process_set
        self._groups: list[ProcessGroup] = []  # of this world, and of the one that is prepared
        group = first_group(options.get("elastic", False), self._open_group)
        self._node_sum = self._open_node_sum(group, options)
        self._host = ArrayOptimizer(arrays, rule, group=group, devices=self._node_sum, **options)
        self._overlap = overlap
        self._gradients = GradientStream(self._host, self._params, model, self._node_sum)
        self._weights = WeightStream(self._host, self._params, self._node_sum)
        self._weights.all_back()
        if overlap:
            self._weights.watch(model)
        self._state_hook = model.register_state_dict_pre_hook(lambda *_: self.synchronize())
        if timeline.is_active():
            _record_forward(model)

    def step(self) -> bool:
        """End the step. True: the weights are new, or will be when a layer is called or `synchronize()` returns.
        False: with `accumulate`, more micro-steps are to come.

        A parameter that the backward pass did not reach counts as a gradient of zeros. Raises ConfigurationError
        where there was no backward pass, or where the model has other parameters by now; PeerLost or MismatchError
        when the ring failed.
        """
        self._gradients.finish()
        updated = self._host.step(wait=not self._overlap)
        if updated:
            self._weights.expect_step()
            if not self._overlap:
                self._weights.all_back()
        return updated

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Take `passes` micro-steps an update from the next one on, as
        `ringtrain.optim.HostOptimizer.set_backward_passes_per_step`."""
        self._host.set_backward_passes_per_step(passes)

    def synchronize(self) -> None:
        """Return when every parameter of the model is that of the last step."""
        self._weights.all_back()

    wait_for = synchronize

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing is left to forget: gradients leave the model as they are made."""

    @property
    def param_groups(self) -> Any:
        """Raises AttributeError that tells what to use in their place."""
        raise AttributeError(_NO_TORCH_OPTIMIZER)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # What isinstance() goes by. Whoever wants a torch optimizer gets to param_groups, which tells the way out;
        # torch's schedulers, for one, would say no more than "is not an Optimizer".
        return torch.optim.Optimizer

    def rollback(self, to: int | None = None) -> int:
        """Give up the step that is under way and go back to the last update that is done, or to the one before, as
        `ringtrain.optim.HostOptimizer.rollback`. Gradients of a backward pass since are forgotten. Local.
        """
        self._gradients.forget()
        updates = self._host.rollback(to)
        self._weights.expect()
        return updates

    def reform(self, former: Sequence[int | None]) -> None:
        """Go on in this process's world of now: `prepare`, then `adopt`. Collective."""
        self.prepare(None, former)
        self.adopt()

    def prepare(self, group: Group | None, former: Sequence[int | None]) -> None:
        """Bring weights and state into the world of now, beside those of the former one, as
        `ringtrain.optim.HostOptimizer.prepare`; the model keeps its parameters. Collective in the process set, of
        whose ranks it opens a group of its own: `group` is not used.
        """
        self._host.prepare(self._open_group(), former)

    def adopt(self) -> None:
        """Go on with what `prepare` brought; the model's parameters have its values then. Local."""
        self._host.adopt()
        self._groups = self._groups[-1:]
        self._weights.follow()
        self._weights.all_back()

    def discard(self) -> None:
        """Forget what `prepare` brought. Local."""
        self._host.discard()

    @property
    def accumulating(self) -> bool:
        """Whether gradients of an update that has not been made are here: some of its micro-steps are missing."""
        return self._host.accumulating

    @property
    def rate(self) -> float:
        """The learning rate of the next update."""
        return self._host.rate

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self._host.updates

    @property
    def gradient_norm(self) -> float | None:
        """Global gradient norm of the last update before clipping; None without `clip_norm`."""
        return self._host.gradient_norm

    @property
    def state_bytes(self) -> int:
        """Bytes of optimizer state that this rank holds in host memory."""
        return self._host.state_bytes

    @property
    def takes_node_sums(self) -> bool:
        """Whether the devices of a node add up gradients, and the host of each takes a part of that sum; else it
        takes every gradient of its device."""
        return self._node_sum is not None

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the parameters that it trains."""
        return tuple(self._params)

    def state_dict(self, root: int | None = None, error_feedback: bool = True) -> dict[str, Any]:
        """Gather weights and state of all ranks as tensors by name, for `torch.save` or `Checkpoints`. Collective.
        `root`: only this rank gets them. `error_feedback`: as of `ringtrain.optim.HostOptimizer`.
        """
        self._weights.to_host()
        state = self._host.state_dict(root, error_feedback)
        tensors: dict[str, Any] = map_leaves(state, lambda v: to_tensor(v) if isinstance(v, np.ndarray) else v)
        return tensors

    def shard_dict(self, error_feedback: bool = True) -> dict[str, Any]:
        """Copy this rank's part of weights and state, for `ShardedCheckpoints`. Not collective; as of
        `ringtrain.optim.HostOptimizer`."""
        return self._host.shard_dict(error_feedback)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set weights and state, of any world size, from tensors or arrays; the model's parameters follow."""
        arrays = map_leaves(state, lambda v: to_arrays([v])()[0] if isinstance(v, torch.Tensor) else v)
        self._host.load_state_dict(arrays)
        self._weights.expect()
        self._weights.all_back()

    def close(self) -> None:
        """Let go of the model, which has the weights of the last step: remove the hooks, and give up a step that
        is under way.
        """
        with contextlib.suppress(RuntimeError):  # ours or the device's, of a step that failed: its caller has it
            self.synchronize()
        self._state_hook.remove()
        self._gradients.close()
        self._weights.close()
        self._host.close()
        if self._node_sum is not None:
            self._node_sum.close()
        for group in self._groups:
            group.close()

    def _open_node_sum(self, group: Group, options: Mapping[str, Any]) -> NodeSum | None:
        if not isinstance(group, ProcessGroup) or group.size == 1:
            return None
        whole = options.get("sharded", True) and options.get("compression") is None
        moves = options.get("elastic", False) or options.get("check_finite", False)
        return open_node_sum(self._params, group, self._process_set, suits=whole and not moves)

    def _open_group(self) -> ProcessGroup:
        self._groups.append(open_group(self._process_set))
        return self._groups[-1]


def _trained(model: Any) -> dict[str, Any]:
    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(
            f"HostOptimizer: model is {kind_of(model)}; expected a torch.nn.Module: pass the model itself, "
            "not its parameters"
        )
    named: Iterable[tuple[str, Any]] = model.named_parameters()
    trained = {name: param for name, param in named if param.requires_grad}
    if not trained:
        raise ConfigurationError("HostOptimizer: no parameter of the model requires a gradient; nothing to train")
    devices = {str(param.device) for param in trained.values()}
    if len(devices) > 1:
        raise ConfigurationError(f"HostOptimizer: parameters are on {sorted(devices)}; expected one device")
    if torch.device(devices.pop()).type == "meta":
        raise ConfigurationError("HostOptimizer: parameters are on the meta device; move the model to a real one")
    return trained


def _record_forward(model: Any) -> None:
    """Have the timeline show when the model's forward passes ran."""
    began_ns: list[int] = []
    model.register_forward_pre_hook(lambda *_: began_ns.append(time.perf_counter_ns()))
    model.register_forward_hook(lambda *_: timeline.record_since(began_ns.pop(), "forward", "forward"))
