"""TorchX's scheduler, by the plugin ringtrain-convert: `pip install ringtrain-convert`."""

from ringtrain_convert.torchx import *  # noqa: F403
