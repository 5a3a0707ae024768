"""TorchX's scheduler, by the plugin ringtrain-convert: `pip install ringtrain-convert`."""

from ringtrain_convert.torchx import RingtrainScheduler as RingtrainScheduler
from ringtrain_convert.torchx import create_scheduler as create_scheduler
