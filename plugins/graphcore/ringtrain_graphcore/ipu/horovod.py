"""Replacement for `tensorflow.python.ipu.horovod`: the names of `ringtrain.tensorflow`, and the strategy."""

from types import SimpleNamespace

from ringtrain_graphcore.distribute import HorovodStrategy
from ringtrain_tensorflow import *  # noqa: F403
from ringtrain_tensorflow import __all__ as _names

ipu_horovod_strategy = SimpleNamespace(IPUHorovodStrategy=HorovodStrategy)

__all__ = [*_names, "ipu_horovod_strategy"]
