"""What this build has and has not: the answers to Horovod's questions about itself."""

from collections.abc import Callable


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
