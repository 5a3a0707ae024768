"""Elastic state for PyTorch: models, optimizers, samplers, and plain values."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch

from ringtrain.adapter import OnHostOptimizer, join
from ringtrain.adapter.state import (
    ElasticOptimizer,
    HandlerParticipant,
    OptimizerParticipant,
    StatefulObjectHandler,
    participants_by_type,
)
from ringtrain.elastic import Participant, State, StateExtension, StateHandler, register_extension
from ringtrain_torch.elastic.sampler import ElasticSampler
from ringtrain_torch.objects import TORCH_VALUES
from ringtrain_torch.optimizer import DistributedTorchMixin
from ringtrain_torch.parameters import in_place
from ringtrain_torch.state import broadcast_optimizer_state, broadcast_parameters

Registry = list[tuple[type, Any]]


class ModelStateHandler(StateHandler):
    """Handler that saves and restores the parameters and buffers of a module for an elastic state."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self._left_out: Collection[str] = ()
        self._saved: dict[str, Any] = {}
        self.save()

    def leave_out(self, names: Collection[str]) -> None:
        """Exclude the parameters `names`, because another object saves them."""
        self._left_out = names
        self._saved = {name: value for name, value in self._saved.items() if name not in names}

    def save(self) -> None:
        self._saved = _copied_torch_value(self._own(), self._saved)

    def restore(self) -> None:
        self.value.load_state_dict(self._saved, strict=not self._left_out)

    def sync(self, root: int = 0) -> None:
        own = self._own()
        broadcast_parameters({name: value for name, value in own.items() if isinstance(value, torch.Tensor)}, root)

    def _own(self) -> dict[str, Any]:
        return {name: value for name, value in self.value.state_dict().items() if name not in self._left_out}


class BuffersHandler(ModelStateHandler):
    """Handler for a model whose trained parameters an optimizer saves: only its buffers and untrained parameters."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer.model)
        self.leave_out(optimizer.trained)


class OptimizerStateHandler(StateHandler):
    """Handler that saves and restores state and options of a torch optimizer for an elastic state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self._saved: dict[str, Any] = {}
        self.save()

    def save(self) -> None:
        self._saved = _copied_torch_value(self.value.state_dict(), self._saved)

    def restore(self) -> None:
        if isinstance(self.value, DistributedTorchMixin):
            self.value.sync.reset()  # of a world that was left: its reductions will not complete
        self.value.zero_grad()
        with in_place(self.value):
            self.value.load_state_dict(copy.deepcopy(self._saved))  # torch would use these tensors without a copy

    def sync(self, root: int = 0) -> None:
        broadcast_optimizer_state(self.value, root)


def _copied_torch_value(value: Any, kept: Any) -> Any:
    """Return a copy of `value`. Tensors are copied into tensors of `kept`, an earlier copy, if shape and type match."""
    if isinstance(value, torch.Tensor):
        fits = isinstance(kept, torch.Tensor) and (kept.shape, kept.dtype, kept.device) == (
            value.shape, value.dtype, value.device
        )  # fmt: skip
        return kept.copy_(value.detach()) if fits else value.detach().clone()
    if type(value) is dict:
        former = kept if type(kept) is dict else {}
        return {key: _copied_torch_value(one, former.get(key)) for key, one in value.items()}
    return copy.deepcopy(value)


class SamplerStateHandler(StatefulObjectHandler):
    """Handler that saves and restores a sampler's position in the epoch for an elastic state."""


_handler_registry: Registry = [
    (ElasticOptimizer, OptimizerParticipant),
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    """Return pairs of a type and the handler class for its values. The first pair that matches is used."""
    return _handler_registry


def set_handler_registry(registry: Registry) -> None:
    """Replace the pairs of type and handler class, for states that are created after this call."""
    global _handler_registry
    _handler_registry = registry


class TorchState(State):
    """Models, optimizers and other values from which a PyTorch training resumes, as attributes of this object.

        state = TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)

    `model`, `optimizer`, `kwargs`: models, optimizers (also `DistributedOptimizer` and `HostOptimizer`), samplers,
    objects with `state_dict()`, and plain values, which may contain tensors. A `HostOptimizer` saves the parameters
    that it trains itself: a commit copies only the buffers of its model. Values of types with a registered handler are
    passed to that handler.
    """

    _foreign = TORCH_VALUES

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        super().__init__(handlers=_handler_registry, **given)
        hosts: list[Any] = [value for value in given.values() if isinstance(value, OnHostOptimizer)]
        trained = {name for host in hosts for name in host.trained}
        for participant in self._participants.values():
            if isinstance(participant, HandlerParticipant) and isinstance(participant.handler, ModelStateHandler):
                participant.handler.leave_out(trained)

    def sync(self) -> None:
        """Synchronize like `ringtrain.elastic.State.sync`. First, all ranks call `join`, so that a rank that still runs
        a collective does not hang."""
        join()
        super().sync()


def _torch_participants(left: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Participant]:
    """Return participants of an elastic state for the models and optimizers in `left`, and for the buffers of models
    that only a host optimizer references."""
    pairs = [(torch.nn.Module, ModelStateHandler), (torch.optim.Optimizer, OptimizerStateHandler)]
    made = participants_by_type(left, pairs)
    models = [value for value in values.values() if isinstance(value, torch.nn.Module)]
    known = {id(part) for model in models for part in model.modules()}
    for name, value in values.items():
        model = getattr(value, "model", None) if isinstance(value, OnHostOptimizer) else None
        if isinstance(model, torch.nn.Module) and id(model) not in known:
            made[f"{name}.buffers"] = HandlerParticipant(BuffersHandler(value))
    return made


register_extension(StateExtension(_torch_participants))  # a plain `ringtrain.elastic.State` accepts them as well
