/* What the benchmark kernels share: a range of sizes, repetitions for a size, and one line of JSON
 * for each. It must never print anything else to standard output: `eyrie-bench` and
 * bench/direct.py read it line by line. */
#ifndef EYRIE_EXAMPLES_BENCH_H
#define EYRIE_EXAMPLES_BENCH_H

#include "common.h"
#include <unistd.h>

struct bench {
    long smallest, largest, repetitions, warm_up, budget_ms, batch;
};

#define BENCH_DEFAULTS {8, 4 << 20, 1000, 20, 2000, 1}

/* Up to this size a repetition is a batch. One of larger messages takes long beside a clock. */
enum { BENCH_LARGE = 8192 };

#define BENCH_OPTIONS(b)                                                                           \
    {"min", "smallest message, in bytes", .number = &(b).smallest},                                \
        {"max", "largest message, in bytes; sizes go up by factors of two",                        \
         .number = &(b).largest},                                                                  \
        {"repetitions", "measured repetitions for each size", .number = &(b).repetitions},         \
        {"warm-up", "repetitions before them that do not count", .number = &(b).warm_up},          \
        {"budget-ms", "fewer repetitions, at least 10, where they would take longer than this",    \
         .number = &(b).budget_ms},                                                                \
    {                                                                                              \
        "batch", "a repetition is so many up to 8 KiB, between two readings of the clock",         \
            .number = &(b).batch                                                                   \
    }

/* A buffer of messages, on its own pages, which have been written to. The place where malloc would
 * put it depends on what the MPI library has allocated before, and the time of a copy depends on
 * that place. */
static void *bench_buffer(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (bytes + page - 1) / page * page;
    void *buffer = aligned_alloc(page, whole);
    if (!buffer) die("out of memory: %zu bytes", whole);
    return memset(buffer, 1, whole);
}

/* Repeats `once(buffers, bytes)` and returns the microseconds of each repetition, `*count` of them;
 * of a batch: the mean of its calls. The mean of the warm-up repetitions decides, the same on all
 * ranks, how many fit into the budget. */
static double *bench_measure(const struct bench *b, void (*once)(void *, long), void *context,
                             long bytes, long *count) {
    const long calls = b->batch > 1 && bytes <= BENCH_LARGE ? b->batch : 1;
    double begin = MPI_Wtime(), each_us;
    for (long i = 0; i < b->warm_up * calls; i++) once(context, bytes);
    each_us = (MPI_Wtime() - begin) * 1e6 / (double)(b->warm_up > 0 ? b->warm_up : 1);
    MPI_Allreduce(MPI_IN_PLACE, &each_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    *count = b->repetitions;
    if (b->warm_up > 0 && each_us * (double)*count > (double)b->budget_ms * 1e3)
        *count = (long)((double)b->budget_ms * 1e3 / each_us);
    *count = *count < 10 ? 10 : *count;
    double *us = allocate((size_t)*count, sizeof *us);
    MPI_Barrier(MPI_COMM_WORLD);
    for (long i = 0; i < *count; i++) {
        begin = MPI_Wtime();
        for (long call = 0; call < calls; call++) once(context, bytes);
        us[i] = (MPI_Wtime() - begin) * 1e6 / (double)calls;
    }
    return us;
}

/* Prints the line for one size: of `us`, which is sorted here, the median, the mean, the tenth and
 * ninetieth percentile, the mean of the values between these two, and the largest one. A recorded
 * clock counts whole microseconds, so its median is one of few values. */
static void bench_print(const char *name, int ranks, long bytes, double *us, long count) {
    qsort(us, (size_t)count, sizeof *us, by_value);
    long low = count / 10, high = count > 1 ? count * 9 / 10 : 1;
    double sum = 0, all = 0;
    for (long i = low; i < high; i++) sum += us[i];
    for (long i = 0; i < count; i++) all += us[i];
    printf(
        "{\"bench\":\"%s\",\"ranks\":%d,\"bytes\":%ld,\"repetitions\":%ld,\"median_us\":%.3f,"
        "\"mean_us\":%.4f,\"trimmed_mean_us\":%.4f,\"p10_us\":%.3f,\"p90_us\":%.3f,\"max_us\":%.3f}\n",
        name, ranks, bytes, count, us[count / 2], all / (double)count, sum / (double)(high - low),
        us[low], us[high], us[count - 1]);
    fflush(stdout);
}

#endif
