"""TorchX scheduler for ringtrain's jobs. It needs the plugin: `pip install ringtrain-convert`."""

from ringtrain_convert.torchx import *  # noqa: F403
