"""Data-parallel training: ring allreduce over gRPC, and an optimizer whose state is in host memory."""

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from ringtrain.report import report as report  # here, as its module's name would hide it
from ringtrain.shared.contract import RELEASE

if TYPE_CHECKING:
    from ringtrain import checkpoint as checkpoint
    from ringtrain import data as data
    from ringtrain import elastic as elastic
    from ringtrain import optim as optim
    from ringtrain.public import *  # noqa: F403

# Data loaders fork. gRPC's fork handlers wait for its threads, which belong to this runtime; a forked child then hangs
# or the rank aborts. gRPC reads this variable when it is imported, and no import above imports gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = RELEASE

# Loaded on first use, each by itself: they are a third of the time that importing all takes.
_PACKAGES = ("checkpoint", "data", "elastic", "optim")


def __getattr__(name: str) -> Any:
    """Load the public API on first use of a name. Agents, launchers and commands need neither it nor numpy."""
    if name in (*_PACKAGES, "errors", "timeline"):
        return importlib.import_module(f"ringtrain.{name}")
    # Python looks up dunder names on modules itself, and an import statement loads submodules itself.
    if (name.startswith("_") and name != "__all__") or importlib.util.find_spec(f"ringtrain.{name}") is not None:
        raise AttributeError(f"module 'ringtrain' has no attribute {name!r}")
    public = importlib.import_module("ringtrain.public")
    globals().update({each: getattr(public, each) for each in public.__all__})
    globals()["__all__"] = sorted([*public.__all__, *_PACKAGES])
    if name not in globals():
        raise AttributeError(f"module 'ringtrain' has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    """Return the names of the public API, for completion in a shell."""
    return [*__getattr__("__all__"), "__version__"]
