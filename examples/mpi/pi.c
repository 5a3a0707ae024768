/* Estimate pi: each rank throws darts at a square, and the shares that hit the circle are averaged.
 *
 *     mpicc -O2 -o pi pi.c && mpirun -np 4 ./pi 100000000
 */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* xorshift64*, after Marsaglia 2003 and Vigna 2016: seeded by rank, so that a run can be repeated. */
static double uniform(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)((*state * 2685821657736338717ULL) >> 11) / 9007199254740992.0;
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    const long darts = argc > 1 ? atol(argv[1]) : 10000000;
    uint64_t state = 0x9E3779B97F4A7C15ULL * (uint64_t)(rank + 1);
    long hits = 0;
    for (long dart = 0; dart < darts; dart++) {
        const double x = uniform(&state), y = uniform(&state);
        hits += x * x + y * y <= 1.0;
    }
    printf("rank %d of %d: %ld of %ld darts hit\n", rank, size, hits, darts);
    fflush(stdout);

    long all_hits = 0;
    MPI_Reduce(&hits, &all_hits, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        const double pi = 4.0 * (double)all_hits / ((double)darts * size);
        printf("pi is about %.6f (off by %.6f)\n", pi, fabs(pi - M_PI));
    }
    MPI_Finalize();
    return 0;
}
