/* pingpong: half the round-trip time of a message between ranks 0 and 1, by size.
 *
 * One line of JSON for each size on standard output: quantiles and a mean over the repetitions, in
 * microseconds, warm-up excluded. Other ranks, if any, wait in a barrier. The kernel of
 * `eyrie-bench pingpong`. */
#include "bench.h"

static int rank;

static void round_trip(void *buffer, long bytes) {
    if (rank == 0) {
        MPI_Send(buffer, (int)bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(buffer, (int)bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(buffer, (int)bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(buffer, (int)bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    struct bench bench = BENCH_DEFAULTS;
    long before = 0;
    const struct option options[] = {
        BENCH_OPTIONS(bench),
        {"before",
         "MiB sent to and fro before anything is measured, in messages of the largest size",
         .number = &before},
        {0},
    };
    int ranks;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Half round-trip times between ranks 0 and 1, as JSON lines.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks < 2 || bench.smallest < 1 || bench.largest > 1 << 30)
        die("needs 2 ranks, and sizes from 1 byte to 1 GiB");
    void *buffer = bench_buffer((size_t)bench.largest);
    for (long sent = 0; sent < before << 20; sent += 2 * bench.largest)
        round_trip(buffer, bench.largest);
    for (long bytes = bench.smallest; bytes <= bench.largest; bytes *= 2) {
        long count;
        double *us = bench_measure(&bench, round_trip, buffer, bytes, &count);
        for (long i = 0; i < count; i++) us[i] /= 2;
        if (rank == 0) bench_print("pingpong", ranks, bytes, us, count);
        free(us);
    }
    free(buffer);
    MPI_Finalize();
    return 0;
}
