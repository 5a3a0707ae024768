"""Data-parallel training: ring allreduce over gRPC and an optimizer that lives in host memory."""

import os

from ringtrain import requirements as requirements  # first: it says what the others would fail of

# isort: split
from ringtrain import checkpoint, data, elastic, errors, optim, timeline
from ringtrain.api.collectives import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from ringtrain.api.objects import allgather_object, broadcast_object
from ringtrain.contract import RELEASE
from ringtrain.errors import (
    CheckpointError,
    ConfigurationError,
    DataError,
    MismatchError,
    NotInitializedError,
    NotRestored,
    ObjectMissing,
    PeerLost,
    RankFailed,
    RingtrainError,
    StateCorrupt,
    StateLost,
    StorageError,
)
from ringtrain.local_ranks import run
from ringtrain.process_groups.context import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from ringtrain.process_groups.executor import Handle, poll, synchronize
from ringtrain.process_groups.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from ringtrain.reduction.ops import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from ringtrain.report import report

__all__ = [
    "Adasum",
    "Average",
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "Handle",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "NotRestored",
    "ObjectMissing",
    "PeerLost",
    "ProcessSet",
    "Product",
    "RankFailed",
    "ReduceOp",
    "RingtrainError",
    "StateCorrupt",
    "StateLost",
    "StorageError",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "checkpoint",
    "cross_rank",
    "cross_size",
    "data",
    "elastic",
    "errors",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "optim",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "report",
    "run",
    "shutdown",
    "size",
    "synchronize",
    "timeline",
]

# Data loaders fork. gRPC's handlers for that wait for its threads, which are ours, and hang the child or abort the
# rank. gRPC looks here when it is loaded, which no import above does.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = RELEASE


def __dir__() -> list[str]:
    """The public API: what completion in a shell offers."""
    return [*__all__, "__version__"]
