/* One-way latency of a message between two ranks: the median of batches, in nanoseconds.
 *
 * usage: mpirun -n 2 pingpong BYTES ROUNDS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCHES 21

static void rounds(int rank, char *buffer, int bytes, int count)
{
    for (int i = 0; i < count; i++) {
        if (rank == 0)
            MPI_Send(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(buffer, bytes, MPI_BYTE, !rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int bytes = argc == 3 ? atoi(argv[1]) : 0, count = argc == 3 ? atoi(argv[2]) : 0;
    if (size != 2 || bytes < 1 || count < 1) {
        fprintf(stderr, "usage: mpirun -n 2 pingpong BYTES ROUNDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    char *buffer = calloc(1, bytes);
    double times[BATCHES];
    rounds(rank, buffer, bytes, count);
    for (int i = 0; i < BATCHES; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        rounds(rank, buffer, bytes, count);
        times[i] = (MPI_Wtime() - begun) / count / 2 * 1e9;
    }
    qsort(times, BATCHES, sizeof *times, ascending);
    if (rank == 0)
        printf("%.1f\n", times[BATCHES / 2]);
    free(buffer);
    MPI_Finalize();
    return 0;
}
