/* bandwidth: what a message takes that rank 0 sends to rank 1 in a window of messages, by size.
 *
 * The method is that of osu_bw in the OSU Micro-Benchmarks: so many messages are under way at once,
 * then the receiver answers with four bytes. With `--both 1` each rank sends the other a window, as
 * osu_bibw does. With `--seconds` windows of the largest size follow each other for so long, and
 * the mean says what an exchange sustains. One line of JSON for each size on standard output: the
 * microseconds of a window divided by its messages, so the bandwidth is bytes / microseconds MB/s.
 * Other ranks, if any, wait. A kernel of bench/direct.py. */
#include "bench.h"

enum { MESSAGE = 100, ANSWER, GO_ON };

/* More windows than any sustained exchange has. */
#define MOST_WINDOWS (1L << 20)

static int rank;

struct windows {
    long size, both;
    MPI_Request *requests;
    void *out, *in;
};

static void window(void *context, long bytes) {
    struct windows *w = context;
    MPI_Request *next = w->requests;
    const int other = 1 - rank;
    int answer = 0;
    if (rank > 1) return;
    if (rank == 1 || w->both)
        for (long i = 0; i < w->size; i++)
            MPI_Irecv(w->in, (int)bytes, MPI_BYTE, other, MESSAGE, MPI_COMM_WORLD, next++);
    if (rank == 0 || w->both)
        for (long i = 0; i < w->size; i++)
            MPI_Isend(w->out, (int)bytes, MPI_BYTE, other, MESSAGE, MPI_COMM_WORLD, next++);
    MPI_Waitall((int)(next - w->requests), w->requests, MPI_STATUSES_IGNORE);
    if (rank == 0)
        MPI_Recv(&answer, 1, MPI_INT, 1, ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&answer, 1, MPI_INT, 0, ANSWER, MPI_COMM_WORLD);
}

/* Rank 0 decides after each window whether there is time for another one. */
static double *sustained(struct windows *w, long bytes, double seconds, long *count) {
    double *us = allocate((size_t)MOST_WINDOWS, sizeof *us), start = MPI_Wtime(), before = start;
    int goes_on = rank < 2;
    for (*count = 0; goes_on && *count < MOST_WINDOWS; ++*count) {
        window(w, bytes);
        if (rank == 0) {
            double now = MPI_Wtime();
            us[*count] = (now - before) * 1e6;
            before = now;
            goes_on = now - start < seconds;
            MPI_Send(&goes_on, 1, MPI_INT, 1, GO_ON, MPI_COMM_WORLD);
        } else {
            MPI_Recv(&goes_on, 1, MPI_INT, 0, GO_ON, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    return us;
}

static void print_each(int ranks, long bytes, const struct windows *w, double *us, long count) {
    for (long i = 0; i < count; i++) us[i] /= (double)w->size;
    if (rank == 0) bench_print("bandwidth", ranks, bytes, us, count);
    free(us);
}

int main(int argc, char **argv) {
    struct bench bench = BENCH_DEFAULTS;
    struct windows w = {.size = 64};
    double seconds = 0;
    long count;
    int ranks;
    bench.largest = 1 << 20;
    const struct option options[] = {
        BENCH_OPTIONS(bench),
        {"window", "messages that are under way at once", .number = &w.size},
        {"both", "1: both ranks send", .number = &w.both},
        {"seconds", "for so long windows of the largest size, and no others", .real = &seconds},
        {0},
    };
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Times of messages in windows between ranks 0 and 1, as JSON lines.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2 || bench.smallest < 1 || bench.largest > 1 << 30 || w.size < 1 ||
        w.size > 1 << 20)
        die("needs 2 ranks, sizes from 1 byte to 1 GiB, and windows of 1 to 1048576 messages");
    w.requests = allocate(2 * (size_t)w.size, sizeof *w.requests);
    w.out = bench_buffer((size_t)bench.largest), w.in = bench_buffer((size_t)bench.largest);
    if (seconds > 0) {
        double *us = sustained(&w, bench.largest, seconds, &count);
        print_each(ranks, bench.largest, &w, us, count);
    } else {
        for (long bytes = bench.smallest; bytes <= bench.largest; bytes *= 2) {
            double *us = bench_measure(&bench, window, &w, bytes, &count);
            print_each(ranks, bytes, &w, us, count);
        }
    }
    free(w.requests), free(w.out), free(w.in);
    MPI_Finalize();
    return 0;
}
