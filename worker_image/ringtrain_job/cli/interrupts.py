"""Ctrl-C while modules are imported: exit with 130, without a traceback.

This module imports only what Python has already loaded, so not `signal`, but the built-in module below it.
"""

import _signal as signal  # type: ignore[import-not-found]
import os
import sys

STOPPED_EARLY = "stopped before the ranks started"
EXIT_INTERRUPTED = 128 + signal.SIGINT


def exit_on_interrupt() -> None:
    """Exit at once on SIGINT until `raise_on_interrupt` is called. If SIGINT is ignored, it remains so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_on_interrupt() -> None:
    """Raise KeyboardInterrupt on SIGINT from now on: modules are imported, and the command may have to clean up."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    starts_ranks = sys.argv[1:2] == ["run"] or os.path.basename(sys.argv[0]) == "horovodrun"
    try:
        os.write(2, f"{STOPPED_EARLY}\n".encode() if starts_ranks else b"")
    finally:
        os._exit(EXIT_INTERRUPTED)
