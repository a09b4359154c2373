/* alltoall: the time of MPI_Alltoall over all ranks, by the bytes each rank sends to each other.
 *
 * One line of JSON for each size on standard output: quantiles and a mean over the repetitions of
 * the slowest rank's time, in microseconds, warm-up excluded. The kernel of `eyrie-bench alltoall`.
 */
#include "bench.h"

struct buffers {
    unsigned char *out, *in;
};

static void exchange(void *context, long bytes) {
    struct buffers *b = context;
    MPI_Alltoall(b->out, (int)bytes, MPI_BYTE, b->in, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    struct bench bench = BENCH_DEFAULTS;
    struct buffers buffers;
    int rank, ranks;
    bench.largest = 1 << 20;
    const struct option options[] = {BENCH_OPTIONS(bench), {0}};
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Times of MPI_Alltoall by size, as JSON lines.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (bench.smallest < 1 || bench.largest > 1 << 28) die("sizes go from 1 byte to 256 MiB");
    buffers.out = bench_buffer((size_t)bench.largest * (size_t)ranks);
    buffers.in = bench_buffer((size_t)bench.largest * (size_t)ranks);
    for (long bytes = bench.smallest; bytes <= bench.largest; bytes *= 2) {
        long count;
        double *us = bench_measure(&bench, exchange, &buffers, bytes, &count);
        MPI_Reduce(rank == 0 ? MPI_IN_PLACE : us, us, (int)count, MPI_DOUBLE, MPI_MAX, 0,
                   MPI_COMM_WORLD);
        if (rank == 0) bench_print("alltoall", ranks, bytes, us, count);
        free(us);
    }
    free(buffers.out), free(buffers.in);
    MPI_Finalize();
    return 0;
}
