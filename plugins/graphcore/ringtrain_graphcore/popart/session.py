"""Adapter of a PopART session to `DeviceSession`. Gradients leave and return by the streams of hostAllReduce."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ringtrain.errors import ConfigurationError
from ringtrain_graphcore.device.session import Array, HostCallbacks, Inbound, Parameter

# PopART's names of streams for a gradient to the host and back, such as `gr_Gradient___conv1.weight`.
_OUT: Final = "gr_"
_BACK: Final = "gl_"
_GRADIENT: Final = "Gradient___"


class PopartSession:
    """`DeviceSession` on a `popart.TrainingSession` that has hostAllReduce in its options and a prepared device.

    Weights are copied all at once, as in PopART: read_weight copies from the device at its first call, and `flush`
    copies the weights set by write_weight. Tested with a stand-in of PopART's interface, never with PopART.
    """

    def __init__(self, session: Any) -> None:
        """Find the session's streams for gradients. Raises ConfigurationError if one is missing."""
        self._session = session
        handles = list(session.getHostReduceStreamIds())
        self._out = {_weight_of(handle, _OUT): handle for handle in handles if handle.startswith(_OUT)}
        self._back = {_weight_of(handle, _BACK): handle for handle in handles if handle.startswith(_BACK)}
        if not self._out or self._out.keys() != self._back.keys():
            raise ConfigurationError(
                f"the PopART session has the streams {', '.join(handles) or 'none'}; expected {_OUT}… and "
                f"{_BACK}… for each gradient: set hostAllReduce = True, and neither hostWeightUpdate nor "
                "hostAllReduceRemoteBuffer, in its options before you create it"
            )
        self._parameters = {name: _popart_parameter(session.getInfo(name)) for name in self._out}
        self._weights: dict[str, Array] = {}

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Parameters that have a gradient stream, by the name of the weight."""
        return self._parameters

    def read_weight(self, name: str) -> Array:
        """Return a copy of a weight."""
        return self._read()[name].copy()

    def write_weight(self, name: str, values: Array) -> None:
        """Set the weight `name` in host memory; the next `flush` copies it to the device."""
        np.copyto(self._read()[name], values)

    def flush(self) -> None:
        """Copy all written weights to the device."""
        self._session.writeWeights(_weights_io(self._read()))
        self._session.weightsFromHost()

    def connect(self, callbacks: HostCallbacks, inbound: Inbound) -> None:
        """Register `callbacks` on the streams. Raises ConfigurationError unless `inbound` is GRADIENTS."""
        if inbound is not Inbound.GRADIENTS:
            raise ConfigurationError(
                "a PopART session updates its weights itself; use insert_host_allreduce instead of a host optimizer"
            )
        for name, parameter in self._parameters.items():
            self._session.connectStreamToCallback(
                self._out[name], _popart_gradient_sender(name, parameter, callbacks), 0
            )
            self._session.connectStreamToCallback(
                self._back[name], _popart_weight_filler(name, parameter, callbacks), 0
            )

    def _read(self) -> dict[str, Array]:
        if not self._weights:
            made = {name: np.empty(p.shape, p.dtype) for name, p in self._parameters.items()}
            self._session.weightsToHost()
            self._session.readWeights(_weights_io(made))
            self._weights = made
        return self._weights


def _popart_gradient_sender(name: str, parameter: Parameter, callbacks: HostCallbacks) -> Callable[[Any], None]:
    def send(pointer: Any) -> None:
        callbacks.gradient_out(name, _popart_memory(pointer, parameter).copy())

    return send


def _popart_weight_filler(name: str, parameter: Parameter, callbacks: HostCallbacks) -> Callable[[Any], None]:
    def fill(pointer: Any) -> None:
        np.copyto(_popart_memory(pointer, parameter), callbacks.value_in(name))

    return fill


def _popart_memory(pointer: Any, parameter: Parameter) -> Array:
    """Return a stream's buffer as an array. `pointer`: the buffer's address, or a Python capsule that contains it."""
    address = pointer if isinstance(pointer, int) else _popart_address(pointer)
    dtype = np.dtype(parameter.dtype)
    nbytes = int(np.prod(parameter.shape, dtype=np.int64)) * dtype.itemsize
    raw = (ctypes.c_char * nbytes).from_address(address)
    memory: Array = np.frombuffer(raw, dtype=dtype).reshape(parameter.shape)  # type: ignore[call-overload]
    return memory


def _popart_address(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = get(capsule, None)
    return address


def _weight_of(handle: str, prefix: str) -> str:
    return handle.removeprefix(prefix).removeprefix(_GRADIENT)


def _popart_parameter(info: Any) -> Parameter:
    return Parameter(tuple(int(length) for length in info.shape()), str(info.data_type_lcase()))


def _weights_io(weights: dict[str, Array]) -> Any:
    import popart  # type: ignore[import-not-found]

    return popart.PyWeightsIO(weights)
