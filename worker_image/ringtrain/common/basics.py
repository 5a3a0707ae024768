"""Functions that Horovod's API has in every framework module, such as `init`, `rank` and `nccl_built`."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ringtrain as rt
from ringtrain import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    timeline,
)
from ringtrain.adapter import current_world
from ringtrain.errors import ConfigurationError, counted
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


# Quoted, so that help() shows it as short as that.
def init(comm: Any = None, process_sets: "Sequence[ProcessSet] | str | None" = None) -> None:
    """Join the world with the other ranks, and create the process sets in `process_sets`. A second call does nothing.

    `comm`: None, or all ranks of the world (a list or an mpi4py communicator). `process_sets`: sets to create now, the
    same on every rank; "dynamic" is accepted and has no effect, because sets can always be added. If the call fails, it
    leaves neither sets nor a world that it joined. Raises ConfigurationError.
    """
    was_initialized = is_initialized()
    rt.init()
    added: list[ProcessSet] = []
    try:
        _check_comm(comm)
        for process_set in [] if process_sets is None or isinstance(process_sets, str) else process_sets:
            if process_set.process_set_id is None:
                added.append(add_process_set(process_set))
    except ConfigurationError:  # raised on every rank
        for process_set in added:
            remove_process_set(process_set)
        if not was_initialized:
            shutdown()
        raise


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start to record this rank's activity as a timeline in `file_path` (Chrome trace JSON).

    `stop_timeline` ends the file. Ranks other than 0 add their number to the file's name.
    `mark_cycles` is accepted and has no effect: there are no cycles.
    """
    path, own_rank = Path(file_path), rank()
    own = path if own_rank == 0 else path.with_name(f"{path.stem}-rank{own_rank}{path.suffix}")
    timeline.start(own, own_rank, f"{time.time_ns()}")


def stop_timeline() -> None:
    """Stop recording and close the file."""
    current_world()
    timeline.stop()


def is_homogeneous() -> bool:
    """Return whether every host has the same number of ranks."""
    return len(set(current_world().local_sizes)) == 1


def _check_comm(comm: Any) -> None:
    if comm is None:
        return
    given, ranks = len(comm) if isinstance(comm, Sequence) else comm.size, size()
    if given != ranks:
        raise ConfigurationError(
            f"init: comm has {counted(given, 'rank')}, but the world has {ranks}; pass comm=None, and use a "
            "ProcessSet for a part of the world"
        )


def _absent(reason: str) -> Callable[[], bool]:
    def answer() -> bool:
        return False

    answer.__doc__ = f"False: {reason}"
    return answer


mpi_built = _absent("no part of Ringtrain is compiled against MPI; under `mpirun` ranks use the same ring.")
mpi_enabled = _absent("see `mpi_built`.")
mpi_threads_supported = _absent("Ringtrain makes no MPI call, so only mpi4py's own rules apply.")
gloo_built = _absent("collectives are Ringtrain's own, over gRPC and shared memory.")
gloo_enabled = _absent("see `gloo_built`.")
ddl_built = _absent("IBM's DDL is not used.")
ccl_built = _absent("Intel's oneCCL is not used.")
cuda_built = _absent("Ringtrain has no CUDA code; the framework copies CUDA tensors through pinned memory.")
rocm_built = _absent("Ringtrain has no ROCm code.")


def nccl_built() -> int:
    """Return 0, because ringtrain does not use NCCL: tensors of devices are reduced in host memory."""
    return 0
