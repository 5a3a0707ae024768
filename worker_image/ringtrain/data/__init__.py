"""Input: which samples each rank sees (`shard`), who loads them (`service`), MNIST's file format (`idx`)."""

from ringtrain.data import service
from ringtrain.data.idx import Labelled, read_idx, read_mnist
from ringtrain.data.shard import Batch, Shard, shard

__all__ = ["Batch", "Labelled", "Shard", "read_idx", "read_mnist", "service", "shard"]


def __dir__() -> list[str]:
    return __all__
