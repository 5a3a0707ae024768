"""Weights that a DiLoCo trains, for `support.planned_training`."""

from typing import Any

import numpy as np
from support.planned_training import SHAPES, STEPS

import ringtrain as rt
from ringtrain.diloco import DiLoCo


class InDiLoCo:
    """Ranks that step alone, three times from one commit to the next. Changes are integers, and those of all ranks
    add up."""

    in_torch = False

    def __init__(self) -> None:
        self._params = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        outer = rt.optim.SGD(lr=1.0)
        self._diloco = DiLoCo(self._params, outer=outer, sync_every=3, elastic=True)
        self.values = {"diloco": self._diloco}

    def weights(self, state: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Those of the last commit. A mean over three or five ranks is rounded in its last bits."""
        return {name: np.rint(array).astype(np.float32) for name, array in self._diloco.outer_weights.items()}

    def update(self, gradients: dict[str, np.ndarray[Any, Any]], state: Any) -> bool:
        for name, found in gradients.items():
            self._params[name] -= rt.size() * found
        return state.diloco.step() or state.step + 1 == STEPS


class InTorchDiLoCo(InDiLoCo):
    """The same of a module, whose steps SGD makes."""

    in_torch = True

    def __init__(self) -> None:
        import torch

        import ringtrain.torch as hvd

        torch.set_num_threads(1)
        self.model = torch.nn.Module()
        for name, shape in SHAPES.items():
            self.model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)))
        inner = torch.optim.SGD(self.model.parameters(), lr=1.0)
        optimizer = hvd.DiLoCo(self.model, inner=inner, outer=rt.optim.SGD(lr=1.0), sync_every=3, elastic=True)
        self._diloco = optimizer.outer
        self.values = {"optimizer": optimizer}

    def update(self, gradients: dict[str, np.ndarray[Any, Any]], state: Any) -> bool:
        import torch

        for name, param in self.model.named_parameters():
            param.grad = torch.from_numpy(rt.size() * gradients[name].astype(np.float64))
        state.optimizer.step()
        return bool(state.optimizer.due) or state.step + 1 == STEPS
