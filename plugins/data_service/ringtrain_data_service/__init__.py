"""Input pipeline in separate processes: data workers load batches for ranks (`distribute`, `distribute_splits`).

Maturity: Beta.
"""

from ringtrain_data_service.batches import LoadedBatch, SplitBatch
from ringtrain_data_service.streams import BatchStream, SplitStream, distribute, distribute_splits

__all__ = ["BatchStream", "LoadedBatch", "SplitBatch", "SplitStream", "distribute", "distribute_splits"]


def __dir__() -> list[str]:
    return __all__
