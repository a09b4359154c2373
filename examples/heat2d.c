/* heat2d: heat spreading over a plate; explicit 5-point stencil, 2D decomposition, nonblocking halo
 * exchange.
 *
 * Every step each rank posts receives for its four edges, sends its own, computes the inside while
 * they travel, waits, and computes the rim. Rank 0 collects the plate at the end and writes it to a
 * file. Shows the most common pattern: Irecv, Isend, Waitall with derived datatypes. The result
 * file and the output are the same in every run of the same size, rank count and steps, so that a
 * run with failures can be compared byte for byte. With --log rank 0 also appends its progress to a
 * file as it goes: the log must have each line once, in order, also after failures of rank 0. With
 * --slow-until rank 0, and so every rank, runs slowly until a file exists: for tests that do
 * something to a job while it runs, and then let it end. */
#include "common.h"
#include "pace.h"
#include <math.h>

struct plate {
    long nx, ny; /* of this rank, without the halo */
    long x0, y0; /* its place in the whole */
    double *now, *next;
    int north, south, west, east;
    MPI_Comm grid;
    MPI_Datatype column;
};

#define AT(p, field, i, j) ((p)->field[(i) * ((p)->ny + 2) + (j)])

static void set_up(struct plate *p, long size_x, long size_y) {
    int ranks, rank, dims[2] = {0, 0}, periods[2] = {0, 0}, at[2];
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Dims_create(ranks, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &p->grid);
    MPI_Comm_rank(p->grid, &rank);
    MPI_Cart_coords(p->grid, rank, 2, at);
    MPI_Cart_shift(p->grid, 0, 1, &p->north, &p->south);
    MPI_Cart_shift(p->grid, 1, 1, &p->west, &p->east);
    p->x0 = block_begin(size_x, dims[0], at[0]);
    p->y0 = block_begin(size_y, dims[1], at[1]);
    p->nx = block_begin(size_x, dims[0], at[0] + 1) - p->x0;
    p->ny = block_begin(size_y, dims[1], at[1] + 1) - p->y0;
    if (p->nx < 1 || p->ny < 1)
        die("a plate of %ld x %ld is too small for %d x %d ranks", size_x, size_y, dims[0],
            dims[1]);
    p->now = allocate((size_t)(p->nx + 2) * (p->ny + 2), sizeof(double));
    p->next = allocate((size_t)(p->nx + 2) * (p->ny + 2), sizeof(double));
    MPI_Type_vector((int)p->nx, 1, (int)(p->ny + 2), MPI_DOUBLE, &p->column);
    MPI_Type_commit(&p->column);
    for (long i = 1; i <= p->nx; i++) /* a cold plate with warm spots */
        for (long j = 1; j <= p->ny; j++)
            AT(p, now, i, j) =
                random_word(1, (uint64_t)((p->x0 + i) * (size_y + 2) + p->y0 + j)) % 97 == 0 ? 100.0
                                                                                             : 0.0;
}

static void start_exchange(struct plate *p, MPI_Request *requests) {
    MPI_Irecv(&AT(p, now, 0, 1), (int)p->ny, MPI_DOUBLE, p->north, 0, p->grid, &requests[0]);
    MPI_Irecv(&AT(p, now, p->nx + 1, 1), (int)p->ny, MPI_DOUBLE, p->south, 1, p->grid,
              &requests[1]);
    MPI_Irecv(&AT(p, now, 1, 0), 1, p->column, p->west, 2, p->grid, &requests[2]);
    MPI_Irecv(&AT(p, now, 1, p->ny + 1), 1, p->column, p->east, 3, p->grid, &requests[3]);
    MPI_Isend(&AT(p, now, p->nx, 1), (int)p->ny, MPI_DOUBLE, p->south, 0, p->grid, &requests[4]);
    MPI_Isend(&AT(p, now, 1, 1), (int)p->ny, MPI_DOUBLE, p->north, 1, p->grid, &requests[5]);
    MPI_Isend(&AT(p, now, 1, p->ny), 1, p->column, p->east, 2, p->grid, &requests[6]);
    MPI_Isend(&AT(p, now, 1, 1), 1, p->column, p->west, 3, p->grid, &requests[7]);
}

static void compute(struct plate *p, long i0, long i1, long j0, long j1) {
    for (long i = i0; i <= i1; i++)
        for (long j = j0; j <= j1; j++)
            AT(p, next, i, j) =
                AT(p, now, i, j) +
                0.2 * (AT(p, now, i - 1, j) + AT(p, now, i + 1, j) + AT(p, now, i, j - 1) +
                       AT(p, now, i, j + 1) - 4.0 * AT(p, now, i, j));
}

static void step(struct plate *p) {
    MPI_Request requests[8];
    start_exchange(p, requests);
    compute(p, 2, p->nx - 1, 2, p->ny - 1);
    MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
    compute(p, 1, 1, 1, p->ny);
    if (p->nx > 1) compute(p, p->nx, p->nx, 1, p->ny);
    compute(p, 2, p->nx - 1, 1, 1);
    if (p->ny > 1) compute(p, 2, p->nx - 1, p->ny, p->ny);
    double *swap = p->now;
    p->now = p->next;
    p->next = swap;
}

/* Rank 0 prints and logs the change of the last step over the whole plate. */
static void report(struct plate *p, long at_step, FILE *log) {
    double change = 0.0, total;
    int rank;
    MPI_Comm_rank(p->grid, &rank);
    for (long i = 1; i <= p->nx; i++)
        for (long j = 1; j <= p->ny; j++) change += fabs(AT(p, now, i, j) - AT(p, next, i, j));
    MPI_Allreduce(&change, &total, 1, MPI_DOUBLE, MPI_SUM, p->grid);
    if (rank != 0) return;
    printf("step %ld change %.12e\n", at_step, total);
    fflush(stdout);
    if (log && (fprintf(log, "step %ld change %.12e\n", at_step, total) < 0 || fflush(log) != 0))
        die("cannot append to the log: %s", strerror(errno));
}

/* Rank 0 receives every rank's rows and writes the whole plate: a line of text, then size_x rows of
 * doubles. */
static void write_result(struct plate *p, const char *path, long size_x, long size_y, long steps) {
    int rank, ranks, dims[2], periods[2], at[2];
    MPI_Cart_get(p->grid, 2, dims, periods, at);
    MPI_Comm_rank(p->grid, &rank);
    MPI_Comm_size(p->grid, &ranks);
    if (rank != 0) {
        for (long i = 1; i <= p->nx; i++)
            MPI_Send(&AT(p, now, i, 1), (int)p->ny, MPI_DOUBLE, 0, 9, p->grid);
        return;
    }
    double *row = allocate((size_t)size_y, sizeof *row);
    uint64_t hash = HASH_START;
    FILE *file = path ? fopen(path, "wb") : NULL;
    if (path && !file) die("cannot write %s: %s", path, strerror(errno));
    if (file)
        fprintf(file, "heat2d %ld x %ld after %ld steps, doubles by rows\n", size_x, size_y, steps);
    for (int gi = 0; gi < dims[0]; gi++)
        for (long i = block_begin(size_x, dims[0], gi); i < block_begin(size_x, dims[0], gi + 1);
             i++) {
            for (int gj = 0; gj < dims[1]; gj++) {
                long y0 = block_begin(size_y, dims[1], gj),
                     ny = block_begin(size_y, dims[1], gj + 1) - y0;
                int owner, owner_at[2] = {gi, gj};
                MPI_Cart_rank(p->grid, owner_at, &owner);
                if (owner == 0)
                    memcpy(row + y0, &AT(p, now, i + 1, 1), (size_t)ny * sizeof *row);
                else
                    MPI_Recv(row + y0, (int)ny, MPI_DOUBLE, owner, 9, p->grid, MPI_STATUS_IGNORE);
            }
            hash = hash_bytes(hash, row, (size_t)size_y * sizeof *row);
            if (file && fwrite(row, sizeof *row, (size_t)size_y, file) != (size_t)size_y)
                die("cannot write %s: %s", path, strerror(errno));
        }
    if (file && fclose(file) != 0) die("cannot write %s: %s", path, strerror(errno));
    printf("plate %016llx\n", (unsigned long long)hash);
    free(row);
}

int main(int argc, char **argv) {
    long size_x = 512, size_y = 512, steps = 1000, every = 100;
    const char *out = NULL, *log_path = NULL;
    struct pace pace = {.slow_ms = 5};
    const struct option options[] = {
        {"nx", "rows of the plate", .number = &size_x},
        {"ny", "columns of the plate", .number = &size_y},
        {"steps", "time steps", .number = &steps},
        {"every", "report the change every so many steps (0: never)", .number = &every},
        {"out", "write the plate to this file", .text = &out},
        {"log", "append the reports to this file as well", .text = &log_path},
        PACE_OPTIONS(pace),
        {0},
    };
    struct plate plate = {0};
    int rank;
    FILE *log = NULL;
    MPI_Init(&argc, &argv);
    parse_options(argc, argv, "Heat on a plate: 5-point stencil with nonblocking halo exchange.",
                  options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    set_up(&plate, size_x, size_y);
    if (rank == 0 && log_path && !(log = fopen(log_path, "a")))
        die("cannot append to %s: %s", log_path, strerror(errno));
    for (long s = 1; s <= steps; s++) {
        step(&plate);
        if (every > 0 && s % every == 0) report(&plate, s, log);
        keep_pace(&pace, rank);
    }
    write_result(&plate, out, size_x, size_y, steps);
    if (log && fclose(log) != 0) die("cannot append to %s: %s", log_path, strerror(errno));
    free(plate.now);
    free(plate.next);
    MPI_Type_free(&plate.column);
    MPI_Comm_free(&plate.grid);
    MPI_Finalize();
    return 0;
}
