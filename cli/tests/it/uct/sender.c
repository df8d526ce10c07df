/* Rank 0 sends a message and then waits outside of MPI until rank 1 has received it, or a minute.
   Usage: sender FILE, which rank 1 creates. Accumulates fetch, too: a get, and a put behind it.
   At last, each rank puts to the other between fences. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1024, PUTS = 2000 };

static int is_wrong;

static void wait_for(const char *file)
{
    time_t end = time(NULL) + 60;

    while (access(file, F_OK) != 0) {
        if (time(NULL) > end) {
            puts("the message needs further calls of its sender");
            is_wrong = 1;
            return;
        }
        usleep(1000);
    }
}

/* The old values are those from before the replacement. */
static void accumulate(int rank)
{
    int window[COUNT], new[COUNT], old[COUNT];
    MPI_Win shared;

    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < COUNT; i++) {
            window[i] = i + round;
            new[i]    = -i;
            old[i]    = 77;
        }
        MPI_Win_create(window, sizeof(window), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &shared);
        MPI_Win_fence(0, shared);
        if (rank == 0) {
            MPI_Get_accumulate(new, COUNT, MPI_INT, old, COUNT, MPI_INT, 1, 0, COUNT, MPI_INT,
                               MPI_REPLACE, shared);
        }
        MPI_Win_fence(0, shared);
        for (int i = 0; i < COUNT; i++) {
            is_wrong |= rank == 0 && old[i] != i + round;
            is_wrong |= rank == 1 && window[i] != -i;
        }
        MPI_Win_free(&shared);
    }
}

/* More puts than requests are in flight at a time. */
static void fences(int rank)
{
    static int window[PUTS], numbers[PUTS];
    MPI_Win shared;

    MPI_Win_create(window, sizeof(window), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &shared);
    for (int round = 0; round < 5; round++) {
        MPI_Win_fence(0, shared);
        for (int i = 0; i < PUTS; i++) {
            numbers[i] = i + round + rank;
            MPI_Put(&numbers[i], 1, MPI_INT, 1 - rank, i, 1, MPI_INT, shared);
        }
        MPI_Win_fence(0, shared);
        for (int i = 0; i < PUTS; i++) {
            is_wrong |= window[i] != i + round + 1 - rank;
        }
    }
    MPI_Win_free(&shared);
}

int main(int argc, char **argv)
{
    char text[6000] = "from rank 0";
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 2) {
        return 2;
    }
    if (rank == 0) {
        MPI_Send(text, sizeof(text), MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        wait_for(argv[1]);
    } else {
        FILE *file;

        memset(text, 0, sizeof(text));
        MPI_Recv(text, sizeof(text), MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        is_wrong |= strcmp(text, "from rank 0") != 0;
        file = fopen(argv[1], "w");
        if (file != NULL) {
            fclose(file);
        }
    }
    accumulate(rank);
    fences(rank);
    MPI_Allreduce(MPI_IN_PLACE, &is_wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0) {
        puts(is_wrong ? "wrong" : "promises are kept");
    }
    MPI_Finalize();
    return 0;
}
