"""Estimate pi with mpi4py: each rank integrates its share of 4 / (1 + x²) from 0 to 1.

mpirun -np 4 python examples/mpi/pi.py
"""

import math
import sys

import numpy as np
from mpi4py import MPI


def share(rank: int, size: int, intervals: int) -> float:
    """Midpoint rule over every `size`-th interval, from the `rank`-th on."""
    x = (np.arange(rank, intervals, size) + 0.5) / intervals
    return float((4.0 / (1.0 + x * x)).sum() / intervals)


def main() -> None:
    """Print every rank's part, and on rank 0 the sum."""
    world = MPI.COMM_WORLD
    intervals = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    part = share(world.rank, world.size, intervals)
    print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}: {part:.12f}", flush=True)
    pi = world.reduce(part, MPI.SUM, root=0)
    if world.rank == 0:
        print(f"pi is about {pi:.12f} (off by {abs(pi - math.pi):.1e})")


if __name__ == "__main__":
    main()
