/* Messages of many sizes around a ring, collectives and one-sided operations, with their contents
 * checked. The argument is the size of the largest message in MiB. Rank 0 prints "contents are
 * right" at the end. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;
static long wrong;

static unsigned char byte_of(size_t at, int sender, int round)
{
    return (unsigned char)(at * 31 + sender * 7 + round);
}

/* Every rank sends to the next one and receives from any. */
static void ring(size_t length, int rounds)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    unsigned char *out = malloc(length + 1), *in = malloc(length + 1);

    for (int round = 0; round < rounds; ++round) {
        MPI_Request requests[2];
        MPI_Status statuses[2];
        int received;

        for (size_t at = 0; at < length; ++at) {
            out[at] = byte_of(at, rank, round);
        }
        MPI_Irecv(in, (int)length, MPI_BYTE, MPI_ANY_SOURCE, round, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, (int)length, MPI_BYTE, next, round, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, statuses);
        MPI_Get_count(&statuses[0], MPI_BYTE, &received);
        wrong += (size_t)received != length || statuses[0].MPI_SOURCE != previous;
        for (size_t at = 0; at < length; ++at) {
            wrong += in[at] != byte_of(at, previous, round);
        }
    }
    free(out);
    free(in);
}

static void collectives(void)
{
    long own = rank + 1, sum = 0, all[64] = {0};

    MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    wrong += sum != (long)ranks * (ranks + 1) / 2;
    MPI_Allgather(&own, 1, MPI_LONG, all, 1, MPI_LONG, MPI_COMM_WORLD);
    for (int other = 0; other < ranks; ++other) {
        wrong += all[other] != other + 1;
    }
}

static void one_sided(void)
{
    enum { ADDITIONS = 100 };
    long *memory, one = 1, before, put = 1000 + rank, got = 0;
    MPI_Win window;

    MPI_Win_allocate(64 * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory,
                     &window);
    for (int at = 0; at < 64; ++at) {
        memory[at] = 0;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    for (int round = 0; round < ADDITIONS; ++round) {
        MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
    }
    MPI_Put(&put, 1, MPI_LONG, 0, 1 + rank, 1, MPI_LONG, window);
    MPI_Win_flush(0, window);
    MPI_Get(&got, 1, MPI_LONG, 0, 1 + rank, 1, MPI_LONG, window);
    MPI_Win_flush(0, window);
    MPI_Win_unlock_all(window);
    wrong += got != put;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        wrong += memory[0] != (long)ADDITIONS * ranks;
    }
    MPI_Win_free(&window);
}

int main(int count, char **arguments)
{
    static const size_t lengths[] = {0, 1, 8, 100, 1000, 4096, 8192, 8193, 65536};
    long sum = 0;

    MPI_Init(&count, &arguments);
    if (count != 2) {
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (size_t at = 0; at < sizeof(lengths) / sizeof(*lengths); ++at) {
        ring(lengths[at], 20);
    }
    ring((size_t)atoi(arguments[1]) << 20, 1);
    collectives();
    one_sided();
    MPI_Reduce(&wrong, &sum, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("contents are %s: %ld wrong\n", sum == 0 ? "right" : "wrong", sum);
    }
    MPI_Finalize();
    return 0;
}
