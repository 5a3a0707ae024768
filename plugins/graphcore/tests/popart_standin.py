"""A small module in the place of `popart`: its training session's interface, over a simulated device."""

import ctypes
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.simulated_device import SimulatedSession

from ringtrain.device import HostCallbacks, Inbound


@dataclass
class SessionOptions:
    hostAllReduce: bool = False


class PyWeightsIO:
    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights


@dataclass(frozen=True)
class TensorInfo:
    lengths: tuple[int, ...]
    kind: str

    def shape(self) -> list[int]:
        return list(self.lengths)

    def data_type_lcase(self) -> str:
        return self.kind


class TrainingSession:
    """Streams have PopART's names; a callback gets the address of the stream's buffer as a capsule."""

    def __init__(self, device: SimulatedSession, options: SessionOptions) -> None:
        self.device, self.copies = device, 0
        self._callbacks: dict[str, Callable[[Any], None]] = {}
        self._handles = [f"{p}Gradient___{n}" for p in ("gr_", "gl_") for n in device.parameters]
        if options.hostAllReduce:
            device.connect(HostCallbacks(self._out, self._back), Inbound.GRADIENTS)
        else:
            self._handles = []
        self._host: dict[str, np.ndarray] = {}

    def getHostReduceStreamIds(self) -> list[str]:
        return self._handles

    def getInfo(self, name: str) -> TensorInfo:
        parameter = self.device.parameters[name]
        return TensorInfo(parameter.shape, parameter.dtype)

    def connectStreamToCallback(self, handle: str, callback: Callable[[Any], None], index: int) -> None:
        assert handle in self._handles
        assert index == 0
        self._callbacks[handle] = callback

    def weightsToHost(self) -> None:
        self.copies += 1
        self._host = {name: self.device.read_weight(name) for name in self.device.parameters}

    def readWeights(self, weights: PyWeightsIO) -> None:
        for name, values in weights.weights.items():
            values[...] = self._host[name]

    def writeWeights(self, weights: PyWeightsIO) -> None:
        self._host.update({name: values.copy() for name, values in weights.weights.items()})

    def weightsFromHost(self) -> None:
        self.copies += 1
        for name, values in self._host.items():
            self.device.write_weight(name, values)

    def _out(self, name: str, gradient: np.ndarray) -> None:
        self._callbacks[f"gr_Gradient___{name}"](_capsule(np.ascontiguousarray(gradient)))

    def _back(self, name: str) -> np.ndarray:
        buffer = np.full(self.device.parameters[name].shape, np.nan, self.device.parameters[name].dtype)
        self._callbacks[f"gl_Gradient___{name}"](_capsule(buffer))
        return buffer


def _capsule(array: np.ndarray) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(array.ctypes.data, None, None)


def install() -> types.ModuleType:
    """Have `import popart` give this stand-in."""
    module = types.ModuleType("popart")
    for name in ("PyWeightsIO", "SessionOptions", "TrainingSession"):
        setattr(module, name, globals()[name])
    sys.modules["popart"] = module
    return module
