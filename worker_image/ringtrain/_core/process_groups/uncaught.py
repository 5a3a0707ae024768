"""Short output of a rank that ends because it lost a peer; the rank that failed prints the full traceback."""

import re
import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

from ringtrain.errors import PeerLost

_PACKAGE = str(Path(__file__).parents[2])
# TensorFlow wraps an error of an operation in a graph, and quotes it after the graph.
_IN_A_GRAPH = re.compile(rf"\b{PeerLost.__name__}: (.*)$", re.MULTILINE)


def shorten_lost_peers() -> None:
    """Install a hook that prints one line, without traceback, for an uncaught PeerLost.

    Every other error prints its traceback, and so does a PeerLost raised while another error was handled. A hook that
    the script has set is not replaced.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_uncaught


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    lost = _lost_peer(error)
    if not lost or _follows_another(error):
        sys.__excepthook__(kind, error, trace)
        return
    place = next((f" ({frame.filename}:{frame.lineno})" for frame in _script_of_uncaught(error)), "")
    print(f"{PeerLost.__module__}.{PeerLost.__qualname__}: {lost}{place}", file=sys.stderr, flush=True)


def _lost_peer(error: BaseException) -> str:
    """Return the message if `error` is a PeerLost, also one wrapped by TensorFlow; empty for another error."""
    if isinstance(error, PeerLost):
        return str(error)
    found = _IN_A_GRAPH.search(str(error)) if type(error).__module__.startswith("tensorflow.") else None
    return found.group(1) if found else ""


def _follows_another(error: BaseException) -> bool:
    """Return whether `error` was raised while the script handled another error, which may be the actual cause."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while before is not None:
        frames = traceback.extract_tb(before.__traceback__)
        if not frames or not frames[0].filename.startswith(_PACKAGE):
            return True
        before = before.__cause__ or (None if before.__suppress_context__ else before.__context__)
    return False


def _script_of_uncaught(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the traceback's frames in the user's script, without libraries, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    libraries = (_PACKAGE, sysconfig.get_path("stdlib"), "<")
    own = [f for f in frames if not f.filename.startswith(libraries) and "site-packages" not in f.filename]
    return list(reversed(own))
