"""Interface between Ringtrain and a device runtime that is not a framework."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]


class Inbound(Enum):
    """Kind of values that the host returns to the device for each gradient."""

    WEIGHTS = "weights"  # the host has updated them
    GRADIENTS = "gradients"  # the host has reduced them; the device updates


@dataclass(frozen=True)
class Parameter:
    """Shape and dtype (a numpy name) of a weight and its gradient."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class HostCallbacks:
    """Callbacks of the host that a session calls during a step.

    `gradient_out(name, values)`: called when a gradient has left the device, in any order and from any thread; does not
    wait for other ranks. `value_in(name)`: called before the device needs the value of the next step; waits until the
    host has it. Both raise the error of a failed step. An array is valid until the call returns.
    """

    gradient_out: Callable[[str, Array], None]
    value_in: Callable[[str], Array]


class DeviceSession(Protocol):
    """Compiled training program on a device.

    The program computes gradients one after the other; each leaves the device as soon as it is complete, while the rest
    of the backward pass continues.
    """

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Trained parameters by name, in the order of the forward pass."""

    def read_weight(self, name: str) -> Array:
        """Copy a weight from the device."""

    def write_weight(self, name: str, values: Array) -> None:
        """Copy `values` to the weight `name` on the device. Must not be called while a step runs."""

    def connect(self, callbacks: HostCallbacks, inbound: Inbound) -> None:
        """Register `callbacks`, which the session calls from the next step on."""
