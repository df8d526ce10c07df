/* Two ranks start a third process, exchange a message with it and leave it. */
#include <mpi.h>
#include <stdio.h>

static int is_wrong;

static void parents(char *program, int rank)
{
    MPI_Comm child;
    int number = 0;

    MPI_Comm_spawn(program, MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &child,
                   MPI_ERRCODES_IGNORE);
    MPI_Send(&rank, 1, MPI_INT, 0, 0, child);
    MPI_Recv(&number, 1, MPI_INT, 0, 0, child, MPI_STATUS_IGNORE);
    is_wrong |= number != rank + 10;
    MPI_Comm_disconnect(&child);
}

static void spawned(MPI_Comm parents)
{
    for (int rank = 0; rank < 2; rank++) {
        int number = -1;

        MPI_Recv(&number, 1, MPI_INT, rank, 0, parents, MPI_STATUS_IGNORE);
        number += 10;
        MPI_Send(&number, 1, MPI_INT, rank, 0, parents);
    }
    MPI_Comm_disconnect(&parents);
}

int main(int argc, char **argv)
{
    MPI_Comm above;
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&above);
    if (above != MPI_COMM_NULL) {
        spawned(above);
        MPI_Finalize();
        return 0;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    parents(argv[0], rank);
    MPI_Allreduce(MPI_IN_PLACE, &is_wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0) {
        puts(is_wrong ? "wrong" : "promises are kept");
    }
    MPI_Finalize();
    return 0;
}
