"""A device that is simulated: its own memory, its own clock, a compute engine and one copy engine each way.

It trains a multi-layer perceptron (tanh, mean squared error). What it computes is exact; only its time is made up.
Time passes on the device alone: while it waits for the host, its clock stands still.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringtrain.device.clock import Engines, Speeds
from ringtrain.device.memory import Memory
from ringtrain.device.session import Array, Inbound, Parameter, Streams
from ringtrain.errors import ConfigurationError


@dataclass(frozen=True)
class Program:
    """What runs on the device. `widths`: of the layers, the input first. `learning_rate`: of the device's own
    gradient descent, which runs where gradients come back from the host."""

    widths: Sequence[int]
    learning_rate: float = 0.1
    seed: int = 0


@dataclass
class SimulatedSession:
    """A `Program` on a device with `memory_bytes` of memory. `engines.trace` tells what happened when."""

    program: Program
    memory_bytes: int = 1 << 30
    speeds: Speeds = field(default_factory=Speeds)

    def __post_init__(self) -> None:
        self.memory = Memory(self.memory_bytes)
        self.engines = Engines(self.speeds)
        self._streams: Streams | None = None
        self._inbound = Inbound.WEIGHTS
        self._expected: set[str] = set()
        generator = np.random.default_rng(self.program.seed)
        for name, parameter in self.parameters.items():
            scale = 1.0 / np.sqrt(parameter.shape[0]) if len(parameter.shape) > 1 else 0.0
            self.memory.store(name, (generator.normal(size=parameter.shape) * scale).astype(parameter.dtype))

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        found = {}
        for layer in range(self._depth):
            rows, columns = self.program.widths[layer : layer + 2]
            found[f"layer{layer}.weight"] = Parameter((rows, columns), "float32")
            found[f"layer{layer}.bias"] = Parameter((columns,), "float32")
        return found

    def read_weight(self, name: str) -> Array:
        return self.memory.load(name).copy()

    def write_weight(self, name: str, values: Array) -> None:
        expected = self.parameters[name]
        if values.shape != expected.shape:
            raise ConfigurationError(f"weight {name!r} is {values.shape}; expected {expected.shape}")
        self.memory.store(name, np.array(values))
        self._expected.discard(name)

    def connect(self, streams: Streams, inbound: Inbound) -> None:
        self._streams, self._inbound = streams, inbound
        self._expected.clear()

    def run(self, inputs: Array, targets: Array) -> float:
        """Run one step on a batch and return its loss. Raises what the host's streams raise."""
        activations = [inputs]
        for layer in range(self._depth):
            weight, bias = (self._arrived(f"layer{layer}.{part}") for part in ("weight", "bias"))
            self.engines.compute(f"forward layer{layer}", 2 * len(inputs) * weight.size)
            output = activations[-1] @ weight + bias
            activations.append(np.tanh(output) if layer + 1 < self._depth else output)
        self.memory.store("activations", np.concatenate([a.reshape(-1) for a in activations]))
        error = 2.0 * (activations[-1] - targets) / targets.size
        for layer in reversed(range(self._depth)):
            error = self._backward(layer, activations, error)
        self.memory.free("activations")
        return float(np.mean(np.square(activations[-1] - targets)))

    def settle(self) -> None:
        """Bring every value that is still on its way to the device."""
        for name in list(self._expected):
            self._arrived(name)

    @property
    def _depth(self) -> int:
        return len(self.program.widths) - 1

    def _backward(self, layer: int, activations: list[Array], error: Array) -> Array:
        weight = self.memory.load(f"layer{layer}.weight")
        below = error @ weight.T * (1.0 - np.square(activations[layer]))
        self.engines.compute(f"backward layer{layer}", 4 * len(error) * weight.size)
        # The weights of this layer are not needed any more: their gradients may leave.
        self._send(f"layer{layer}.bias", error.sum(axis=0))
        self._send(f"layer{layer}.weight", activations[layer].T @ error)
        return below

    def _send(self, name: str, gradient: Array) -> None:
        self.memory.store(f"gradient of {name}", gradient)
        self.engines.copy_out(name, gradient.nbytes)
        if self._streams is None:
            self._descend(name, gradient)
        else:
            self._streams.gradient_out(name, self.memory.load(f"gradient of {name}").copy())
            self._expected.add(name)
        self.memory.free(f"gradient of {name}")

    def _arrived(self, name: str) -> Array:
        """Return the weight as the step needs it; take in what the host has for it first."""
        if name in self._expected and self._streams is not None:
            value = self._streams.value_in(name)
            self.engines.copy_in(name, value.nbytes)
            self._expected.discard(name)
            if self._inbound is Inbound.WEIGHTS:
                self.memory.store(name, np.array(value))
            else:
                self._descend(name, value)
        return self.memory.load(name)

    def _descend(self, name: str, gradient: Array) -> None:
        self.engines.compute(f"update {name}", 2 * gradient.size)
        rate = np.float32(self.program.learning_rate)
        self.memory.store(name, (self.memory.load(name) - rate * gradient).astype(np.float32))
