"""What Horovod's modules have for every framework: the world, process sets, reductions, and what was built."""

from collections.abc import Callable

from ringtrain import cross_rank, cross_size, local_rank, local_size, rank, size
from ringtrain._core.negotiation.queues import (
    init,
    is_homogeneous,
    remove_process_set,
    start_timeline,
    stop_timeline,
)
from ringtrain._core.process_groups.context import is_initialized, shutdown
from ringtrain._core.process_groups.process_sets import ProcessSet, add_process_set, global_process_set
from ringtrain._core.reduction.ops import Adasum, Average, Max, Min, Product, Sum
from ringtrain.errors import RingtrainError as HorovodInternalError

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def _absent(reason: str) -> Callable[[], bool]:
    def answer() -> bool:
        return False

    answer.__doc__ = f"False: {reason}"
    return answer


mpi_built = _absent("no part of Ringtrain is compiled against MPI; under `mpirun` the ring is the same.")
mpi_enabled = _absent("as `mpi_built`.")
mpi_threads_supported = _absent("Ringtrain makes no MPI call, so mixing it with mpi4py is up to mpi4py alone.")
gloo_built = _absent("collectives are Ringtrain's own, over gRPC and shared memory.")
gloo_enabled = _absent("as `gloo_built`.")
ddl_built = _absent("IBM's DDL is not used.")
ccl_built = _absent("Intel's oneCCL is not used.")
cuda_built = _absent("Ringtrain has no CUDA code; the framework copies CUDA tensors through pinned memory.")
rocm_built = _absent("Ringtrain has no ROCm code.")


def nccl_built() -> int:
    """0: tensors of other devices are reduced in host memory."""
    return 0
