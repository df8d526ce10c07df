/* Times of batches of calls, for `cargo xtask compare driver`: the counterpart of benches/mlx5_0/stopwatch.rs. */
#ifndef STOPWATCH_H
#define STOPWATCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <x86intrin.h>

struct stopwatch {
    struct timespec since;
    uint64_t first, started, *batches;
    size_t count, batch;
};

static void stopwatch_open(struct stopwatch *w, int calls, int batch)
{
    w->batch = batch;
    w->batches = calloc((size_t)calls / w->batch + 1, sizeof *w->batches);
    w->count = 0;
    clock_gettime(CLOCK_MONOTONIC, &w->since);
    w->first = __rdtsc();
}

static inline void stopwatch_start(struct stopwatch *w) { w->started = __rdtsc(); }
static inline void stopwatch_stop(struct stopwatch *w) { w->batches[w->count++] = __rdtsc() - w->started; }
static inline void stopwatch_discard(struct stopwatch *w) { w->count--; }

static int stopwatch_order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Prints the median time of a call in nanoseconds, with the 10th and the 90th percentile of the batches. */
static void stopwatch_print(struct stopwatch *w)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double elapsed = (now.tv_sec - w->since.tv_sec) * 1e9 + (now.tv_nsec - w->since.tv_nsec);
    double tick = elapsed / (double)(__rdtsc() - w->first);
    qsort(w->batches, w->count, sizeof *w->batches, stopwatch_order);
    double at[3];
    const size_t ranks[] = { 50, 10, 90 };
    for (int i = 0; i < 3; i++)
        at[i] = w->count ? w->batches[(w->count - 1) * ranks[i] / 100] * tick / w->batch : 0;
    printf("{\"nanoseconds\": %.3f, \"p10\": %.3f, \"p90\": %.3f}\n", at[0], at[1], at[2]);
}

#endif
