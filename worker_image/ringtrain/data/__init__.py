"""Input of training: shards of a data set (`shard`), data workers (`service`), MNIST's files (`idx`)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ringtrain.data.idx import Labelled, read_idx, read_mnist
from ringtrain.data.loaders import AsyncDataLoaderMixin, BaseDataLoader
from ringtrain.data.shard import Batch, Shard, shard

if TYPE_CHECKING:
    from ringtrain.data import service

__all__ = [
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
    "Batch",
    "Labelled",
    "Shard",
    "read_idx",
    "read_mnist",
    "service",
    "shard",
]


def __getattr__(name: str) -> Any:
    """Import `service` on first use: it needs protobuf, which `import ringtrain` does not."""
    if name == "service":
        return import_module("ringtrain.data.service")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
