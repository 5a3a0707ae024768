"""`tensorflow.python.ipu.horovod` by its names: `ringtrain.tensorflow`, and the strategy."""

from types import SimpleNamespace

from ringtrain.tensorflow import *  # noqa: F403
from ringtrain.tensorflow import __all__ as _names
from ringtrain.tensorflow.distribute import HorovodStrategy

ipu_horovod_strategy = SimpleNamespace(IPUHorovodStrategy=HorovodStrategy)

__all__ = [*_names, "ipu_horovod_strategy"]
