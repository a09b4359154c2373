/* hybrid: heat in a bar, MPI between ranks and OpenMP threads in each; explicit 5-point stencil.
 *
 * Every step the threads of a rank compute its rows, then its first thread, which alone calls MPI
 * (MPI_THREAD_FUNNELED), exchanges the rim with the neighbours. Rank 0 prints the change now and
 * then, and the hash of the bar at the end. Sums are made in a fixed order, whichever thread has
 * computed the parts, so the output is the same with every number of threads (OMP_NUM_THREADS).
 * With --slow-until rank 0, and so every rank, runs slowly until a file exists. */
#include "common.h"
#include "pace.h"
#include <math.h>
#include <omp.h>

struct bar {
    long rows, columns, all_rows; /* of this rank, without the halo; of all */
    long first;
    double *now, *next, *row_change;
    int above, below;
};

#define AT(b, field, i, j) ((b)->field[(i) * ((b)->columns + 2) + (j)])

static void set_up(struct bar *b, int rank, int ranks) {
    b->first = block_begin(b->all_rows, ranks, rank);
    b->rows = block_begin(b->all_rows, ranks, rank + 1) - b->first;
    if (b->rows < 1) die("%ld rows are too few for %d ranks", b->all_rows, ranks);
    b->above = rank == 0 ? MPI_PROC_NULL : rank - 1;
    b->below = rank == ranks - 1 ? MPI_PROC_NULL : rank + 1;
    b->now = allocate((size_t)(b->rows + 2) * (b->columns + 2), sizeof(double));
    b->next = allocate((size_t)(b->rows + 2) * (b->columns + 2), sizeof(double));
    b->row_change = allocate((size_t)b->rows + 1, sizeof(double));
    for (long i = 1; i <= b->rows; i++) /* a cold bar with warm spots */
        for (long j = 1; j <= b->columns; j++)
            AT(b, now, i, j) =
                random_word(1, (uint64_t)((b->first + i) * (b->columns + 2) + j)) % 97 == 0 ? 100.0
                                                                                            : 0.0;
}

static void exchange(struct bar *b) {
    int count = (int)b->columns;
    MPI_Sendrecv(&AT(b, now, 1, 1), count, MPI_DOUBLE, b->above, 0, &AT(b, now, b->rows + 1, 1),
                 count, MPI_DOUBLE, b->below, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&AT(b, now, b->rows, 1), count, MPI_DOUBLE, b->below, 1, &AT(b, now, 0, 1), count,
                 MPI_DOUBLE, b->above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void step(struct bar *b) {
    exchange(b);
#pragma omp parallel for schedule(static)
    for (long i = 1; i <= b->rows; i++) {
        double change = 0.0;
        for (long j = 1; j <= b->columns; j++) {
            double rest = AT(b, now, i - 1, j) + AT(b, now, i + 1, j) + AT(b, now, i, j - 1) +
                          AT(b, now, i, j + 1) - 4.0 * AT(b, now, i, j);
            AT(b, next, i, j) = AT(b, now, i, j) + 0.2 * rest;
            change += fabs(rest);
        }
        b->row_change[i] = change;
    }
    double *swap = b->now;
    b->now = b->next;
    b->next = swap;
}

/* The sum of this rank's numbers, always in the same order. */
static double total(const struct bar *b) {
    double sum = 0.0;
    for (long i = 1; i <= b->rows; i++) sum += b->row_change[i];
    return sum;
}

/* Each rank continues the hash of the rank above with its own rows. */
static void report_hash(struct bar *b, int rank, int ranks) {
    uint64_t hash = HASH_START;
    MPI_Recv(&hash, 1, MPI_UINT64_T, b->above, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (long i = 1; i <= b->rows; i++)
        hash = hash_bytes(hash, &AT(b, now, i, 1), (size_t)b->columns * sizeof(double));
    MPI_Send(&hash, 1, MPI_UINT64_T, b->below, 2, MPI_COMM_WORLD);
    if (ranks > 1 && rank == ranks - 1) MPI_Send(&hash, 1, MPI_UINT64_T, 0, 3, MPI_COMM_WORLD);
    if (ranks > 1 && rank == 0)
        MPI_Recv(&hash, 1, MPI_UINT64_T, ranks - 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 0) printf("bar %016llx\n", (unsigned long long)hash);
}

int main(int argc, char **argv) {
    long steps = 1000, every = 100;
    struct bar bar = {.all_rows = 400, .columns = 400};
    struct pace pace = {.slow_ms = 5};
    const struct option options[] = {
        {"rows", "rows of the bar", .number = &bar.all_rows},
        {"columns", "columns of the bar", .number = &bar.columns},
        {"steps", "time steps", .number = &steps},
        {"every", "report the change every so many steps (0: never)", .number = &every},
        PACE_OPTIONS(pace),
        {0},
    };
    int rank, ranks, provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    if (provided < MPI_THREAD_FUNNELED) die("the MPI library allows no threads");
    parse_options(argc, argv, "Heat in a bar: MPI between ranks, OpenMP within.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    set_up(&bar, rank, ranks);
    for (long s = 1; s <= steps; s++) {
        step(&bar);
        if (every > 0 && s % every == 0) {
            double change = total(&bar), all;
            MPI_Allreduce(&change, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            if (rank == 0) printf("step %ld change %.12e\n", s, all);
            fflush(stdout);
        }
        keep_pace(&pace, rank);
    }
    report_hash(&bar, rank, ranks);
    free(bar.now);
    free(bar.next);
    free(bar.row_change);
    MPI_Finalize();
    return 0;
}
