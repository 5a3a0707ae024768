"""A device that is simulated: its own memory, its own clock, a compute engine and one copy engine each way.

It trains a multi-layer perceptron (tanh, mean squared error). What it computes is exact; only its time is made up.
Time passes on the device alone: while it waits for the host, its clock stands still.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringtrain.device import HostCallbacks, Inbound, Parameter
from ringtrain.errors import ConfigurationError
from ringtrain_graphcore.device.session import Array


@dataclass(frozen=True)
class Speeds:
    """Speeds of the device per second of simulated time."""

    flops_per_s: float = 1e12
    out_bytes_per_s: float = 1e10
    in_bytes_per_s: float = 1e10


@dataclass(frozen=True)
class Span:
    """One thing that an engine did. Seconds of device time."""

    engine: str
    what: str
    start_s: float
    end_s: float


@dataclass
class Engines:
    """A compute engine and a copy engine each way. A copy out begins when what it copies is computed; a
    computation begins when what it needs has come in. Apart from that they do not wait for each other.
    """

    speeds: Speeds
    trace: list[Span] = field(default_factory=list)
    _free_s: dict[str, float] = field(default_factory=dict)

    def compute(self, what: str, flops: float) -> None:
        begin = max(self._free("compute"), self._free("in"))
        self._work("compute", what, begin, flops / self.speeds.flops_per_s)

    def copy_out(self, what: str, nbytes: int) -> None:
        begin = max(self._free("out"), self._free("compute"))
        self._work("out", what, begin, nbytes / self.speeds.out_bytes_per_s)

    def copy_in(self, what: str, nbytes: int) -> None:
        # What comes in was made from what went out.
        begin = max(self._free("in"), self._free("out"))
        self._work("in", what, begin, nbytes / self.speeds.in_bytes_per_s)

    @property
    def now_s(self) -> float:
        """Return the time at which the last engine finishes."""
        return max(self._free_s.values(), default=0.0)

    def _free(self, engine: str) -> float:
        return self._free_s.get(engine, 0.0)

    def _work(self, engine: str, what: str, begin_s: float, duration_s: float) -> None:
        self._free_s[engine] = begin_s + duration_s
        self.trace.append(Span(engine, what, begin_s, begin_s + duration_s))


class Memory:
    """`capacity_bytes` of memory. `peak_bytes`: the most that was ever in use."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.peak_bytes = 0
        self._buffers: dict[str, Array] = {}

    @property
    def used_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def store(self, name: str, values: Array) -> None:
        """Put `values` into the buffer `name`. Raises ConfigurationError when they do not fit."""
        old = self._buffers.get(name)
        used = self.used_bytes - (old.nbytes if old is not None else 0) + values.nbytes
        if used > self.capacity_bytes:
            raise ConfigurationError(
                f"buffer {name!r} of {values.nbytes} bytes does not fit: the device has {self.capacity_bytes} "
                "bytes and "
                f"{used - values.nbytes} are in use; make the batch or the model smaller"
            )
        self._buffers[name] = values
        self.peak_bytes = max(self.peak_bytes, used)

    def load(self, name: str) -> Array:
        """Return the buffer itself: only the device may look at it."""
        return self._buffers[name]

    def free(self, name: str) -> None:
        del self._buffers[name]

    def names(self) -> list[str]:
        return list(self._buffers)


@dataclass(frozen=True)
class Program:
    """Network that the device trains. `widths`: of the layers, the input first. `learning_rate`: of the device's own
    gradient descent, which runs if the host returns gradients."""

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
        self._host: HostCallbacks | None = None
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

    def connect(self, callbacks: HostCallbacks, inbound: Inbound) -> None:
        self._host, self._inbound = callbacks, inbound
        self._expected.clear()

    def run(self, inputs: Array, targets: Array) -> float:
        """Run one step on a batch and return its loss. Raises what the host's callbacks raise."""
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
        if self._host is None:
            self._descend(name, gradient)
        else:
            self._host.gradient_out(name, self.memory.load(f"gradient of {name}").copy())
            self._expected.add(name)
        self.memory.free(f"gradient of {name}")

    def _arrived(self, name: str) -> Array:
        """Return the weight as the step needs it; take in what the host has for it first."""
        if name in self._expected and self._host is not None:
            value = self._host.value_in(name)
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
