"""Latency and bandwidth of MPI_Allreduce over message sizes, in the manner of the OSU micro-benchmarks.

mpirun -np 4 python examples/mpi/allreduce.py --max-bytes 67108864

For each size: iterations that are not timed, then timed ones between barriers. The latency is the mean over
iterations, then over ranks (with the fastest and the slowest rank beside it); the bus bandwidth counts
2(N - 1)/N of the message, which is what a ring moves.
"""

import argparse

import numpy as np
from mpi4py import MPI


def measure(world: MPI.Comm, length: int, iterations: int, warmup: int) -> tuple[float, float, float]:
    """(mean, lowest, highest) over ranks of the seconds that one allreduce of `length` float32 takes."""
    source, target = np.ones(length, np.float32), np.empty(length, np.float32)
    elapsed = 0.0
    for iteration in range(warmup + iterations):
        world.Barrier()
        started = MPI.Wtime()
        world.Allreduce(source, target, MPI.SUM)
        if iteration >= warmup:
            elapsed += MPI.Wtime() - started
    if length and (target[0], target[-1]) != (world.size, world.size):
        raise SystemExit(f"rank {world.rank}: the sum of {world.size} ones is {target[0]}, {target[-1]}")
    mine = elapsed / iterations
    return (
        world.allreduce(mine, MPI.SUM) / world.size,
        world.allreduce(mine, MPI.MIN),
        world.allreduce(mine, MPI.MAX),
    )


def main() -> None:
    """Print the table on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--min-bytes", type=int, default=4)
    parser.add_argument("--max-bytes", type=int, default=1 << 24)
    parser.add_argument("--iterations", type=int, default=0, help="per size; default: fewer for larger messages")
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    if world.rank == 0:
        print(f"# MPI_Allreduce, {world.size} ranks, float32, {MPI.Get_library_version().splitlines()[0].strip()}")
        print(f"{'bytes':>12} {'mean us':>12} {'min us':>12} {'max us':>12} {'bus MB/s':>12}", flush=True)
    size = max(4, options.min_bytes)
    while size <= options.max_bytes:
        iterations = options.iterations or max(5, min(200, (64 << 20) // size))
        mean, low, high = measure(world, size // 4, iterations, warmup=max(1, iterations // 10))
        if world.rank == 0:
            bus = 2 * (world.size - 1) / world.size * size / mean / 1e6
            print(f"{size:12d} {mean * 1e6:12.2f} {low * 1e6:12.2f} {high * 1e6:12.2f} {bus:12.1f}", flush=True)
        size *= 4


if __name__ == "__main__":
    main()
