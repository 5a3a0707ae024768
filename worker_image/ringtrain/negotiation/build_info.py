"""What this build has and has not: the answers to Horovod's questions about itself."""


def mpi_built() -> bool:
    """False: no part of Ringtrain is compiled against MPI; under `mpirun` the ring is the same."""
    return False


def mpi_enabled() -> bool:
    """False, as `mpi_built`."""
    return False


def mpi_threads_supported() -> bool:
    """False: Ringtrain makes no MPI call, so mixing it with mpi4py is up to mpi4py alone."""
    return False


def gloo_built() -> bool:
    """False: collectives are Ringtrain's own, over gRPC and shared memory."""
    return False


def gloo_enabled() -> bool:
    """False, as `gloo_built`."""
    return False


def nccl_built() -> int:
    """0: tensors of other devices are reduced in host memory."""
    return 0


def ddl_built() -> bool:
    """False: IBM's DDL is not used."""
    return False


def ccl_built() -> bool:
    """False: Intel's oneCCL is not used."""
    return False


def cuda_built() -> bool:
    """False: Ringtrain has no CUDA code; CUDA tensors are copied through pinned memory by the framework."""
    return False


def rocm_built() -> bool:
    """False: Ringtrain has no ROCm code."""
    return False
