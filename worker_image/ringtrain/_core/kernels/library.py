"""Loading of the compiled library, if this installation has one."""

import ctypes
import functools
import importlib
import importlib.util
import logging
from types import ModuleType
from typing import Any, Final

from numpy.typing import NDArray

from ringtrain._core.kernels.structures import differing_layout

_NAME: Final = "ringtrain._core.kernels._native"
_CALLS: Final = "ringtrain._core.kernels._calls"
_INTERFACE: Final = 15  # INTERFACE in native/fold.h


log = logging.getLogger("ringtrain")


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """Return the compiled library; None, with the reason logged once, if numpy must be used instead."""
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:
        log.info("ringtrain was installed without a C compiler: numpy is used instead of the faster compiled kernels")
        return None
    library = ctypes.CDLL(spec.origin)
    if difference := _library_difference(library):
        log.warning(
            "%s is of another version of ringtrain: %s. Install ringtrain again; numpy is used until then",
            spec.origin, difference,
        )  # fmt: skip
        return None
    return library


@functools.cache
def native_calls() -> ModuleType | None:
    """Return the extension module of native/calls.c; None if it is not compiled or is of another version."""
    try:
        calls = importlib.import_module(_CALLS)
    except ImportError:
        return None
    return calls if calls.INTERFACE == _INTERFACE else None


def address_of(buffer: NDArray[Any]) -> int:
    """Return the memory address of the buffer's first element."""
    address = None if _address_of is None else _address_of(buffer)
    return int(buffer.ctypes.data if address is None else address)


def _library_difference(library: ctypes.CDLL) -> str:
    try:
        interface = int(library.ringtrain_interface())
    except AttributeError:
        interface = 0
    if interface != _INTERFACE:
        return f"it has interface {interface}, expected {_INTERFACE}"
    return differing_layout(library)


_address_of: Final = getattr(native_calls(), "address_of", None)
