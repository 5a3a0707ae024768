"""The compiled library, if this installation has one."""

import ctypes
import functools
import importlib.util
import logging
from typing import Final

_NAME: Final = "ringtrain.kernels._native"
# Counted up with every change of a structure or signature in native/.
_INTERFACE: Final = 7

log = logging.getLogger("ringtrain")


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """Return the library, or None: then numpy does the work. Logs once why."""
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:
        log.info("ringtrain was installed without a C compiler: numpy does what compiled kernels would do faster")
        return None
    library = ctypes.CDLL(spec.origin)
    try:
        interface = int(library.ringtrain_interface())
    except AttributeError:
        interface = 0
    if interface != _INTERFACE:
        log.warning(
            "%s has interface %d, expected %d: install ringtrain again; numpy does its work until then",
            spec.origin, interface, _INTERFACE,
        )  # fmt: skip
        return None
    return library
