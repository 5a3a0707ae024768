"""The compiled library, if this installation has one."""

import ctypes
import functools
import importlib.util
import logging
from typing import Final

from ringtrain.kernels.structures import differing_layout

_NAME: Final = "ringtrain.kernels._native"
# Counted up with every change of a signature, or of what a field means, in native/.
_INTERFACE: Final = 10


log = logging.getLogger("ringtrain")


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """Return the library, or None: then numpy does the work. Logs once why."""
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:
        log.info("ringtrain was installed without a C compiler: numpy does what compiled kernels would do faster")
        return None
    library = ctypes.CDLL(spec.origin)
    if difference := _difference(library):
        log.warning(
            "%s is of another version of ringtrain: %s. Install ringtrain again; numpy does its work until then",
            spec.origin, difference,
        )  # fmt: skip
        return None
    return library


def _difference(library: ctypes.CDLL) -> str:
    try:
        interface = int(library.ringtrain_interface())
    except AttributeError:
        interface = 0
    if interface != _INTERFACE:
        return f"it has interface {interface}, expected {_INTERFACE}"
    return differing_layout(library)
