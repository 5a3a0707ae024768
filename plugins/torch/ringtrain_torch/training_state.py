"""Complete state of a PyTorch training, as one object that can be saved and resumed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from ringtrain import rank
from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_torch.objects import allgather_object

_RANDOM: Final = "random"


class RandomGenerators:
    """State of the random generators of torch (also of each CUDA device), numpy and Python, on all ranks.

    `state_dict` gathers them and is collective. Each rank restores its own. If there are more ranks than before, the
    additional ranks retain their current generators.
    """

    def state_dict(self) -> dict[Any, Any]:
        """Return the states of all ranks' generators, by rank."""
        gathered: list[Any] = allgather_object(_own_generator_states(), "random generators")
        return dict(enumerate(gathered))

    def load_state_dict(self, state: Mapping[Any, Any]) -> None:
        """Restore this rank's generators."""
        own = state.get(rank())
        if own is None:
            return
        torch.set_rng_state(own["torch"])
        if torch.cuda.is_available() and len(own["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(own["cuda"])
        np.random.set_state(own["numpy"])
        version, numbers, gauss = own["python"]
        random.setstate((version, tuple(numbers), gauss))


def _own_generator_states() -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": np.random.get_state(),
        "python": (version, list(numbers), gauss),
    }


class TrainingState:
    """Model with buffers, optimizer, schedule, scaler, generators and position in the data, for `Checkpoints`.

        state = TrainingState(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, epoch=0)
        if saved := checkpoints.latest():
            state.load_state_dict(saved.state)
        ...
        checkpoints.save(step, state.state_dict())

    `parts`: objects with `state_dict()` and `load_state_dict()`, and plain values, which are attributes of this object:
    `state.epoch += 1`. Random generators are included automatically. Of buffers that differ between ranks (BatchNorm's
    statistics, unless they are synchronized), those of the saving rank are stored, as with DDP.
    """

    def __init__(self, **parts: Any) -> None:
        vars(self)["_names"] = (*parts, _RANDOM)
        for name, part in {_RANDOM: RandomGenerators(), **parts}.items():
            if hasattr(type(self), name) or name.startswith("_"):
                raise ConfigurationError(
                    f"TrainingState: {name!r} is an attribute of TrainingState; choose another name"
                )
            vars(self)[name] = part

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every part, by name. Collective."""
        return {name: _state_of_training_part(getattr(self, name)) for name in self._names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that was saved with the same parts. Raises ConfigurationError if the parts differ."""
        if not isinstance(state, Mapping):
            raise ConfigurationError(
                f"TrainingState: the state is {kind_of(state)}; expected the result of state_dict()"
            )
        if state.keys() != set(self._names):
            missing, more = sorted(set(self._names) - state.keys()), sorted(state.keys() - set(self._names))
            raise ConfigurationError(
                f"TrainingState: the saved state lacks {missing} and has the unknown parts {more}; "
                "create the TrainingState from the same parts as when it was saved"
            )
        for name in self._names:
            part = getattr(self, name)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(state[name])
            else:
                setattr(self, name, state[name])

    _names: tuple[str, ...]


def _state_of_training_part(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else part
